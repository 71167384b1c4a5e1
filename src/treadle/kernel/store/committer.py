"""The committer batches all writes of a process: it commits immediately when idle, otherwise with the next batch.

There are no timers and no batch sizes to tune: under load, batches grow while the database is busy. When a batch fails, the
committer halves it until the failing unit stands alone. While the store is unreachable, units wait and are sent again (the
store recognises repeats) until their sender's patience ends. A batch that exceeds the time limit of the database is halved, too,
and the next ones stay smaller until the database is fast enough again. Callers with limited patience are refused while too many
rows wait, so that a slow database cannot fill the memory; decisions made under a claim are always accepted.

`transact` is the one loop for "read, decide, commit, and start over if something changed meanwhile".
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from treadle.kernel.store.ports import LATER, STREAM, Store
from treadle.kernel.store.process import check_process, failpoint
from treadle.kernel.store.records import PutOutcome
from treadle.kernel.store.units import (
    DONE,
    DOUBTFUL_TRANSITIONS,
    Finish,
    Redrive,
    Requeue,
    Row,
    Seen,
    Unit,
    UnitAnswer,
    Verdict,
    returned,
)
from treadle.kernel.telemetry.events import Emit, LoopError, StoreBack, StoreTrouble, log_event
from treadle.kernel.telemetry.observer import TasksStored, telemetry_of, timed
from treadle.model.clock import Clock
from treadle.model.errors import (
    Contended,
    IllegalTransition,
    StoreBusy,
    StoreError,
    StoreOverloaded,
    StoreTimeout,
    StoreUnavailable,
)
from treadle.model.retry import STORE_BACKOFF
from treadle.model.tasks import Claim, NewTask, Task

BATCH_ROWS = 1000
"""Limit on the rows (settlements and new tasks) of one commit, unless a single unit has more."""

MAX_STALLED_ROWS = 20_000
"""Rows that may wait for a store that is in trouble, or has answered nothing for `_SLOW` seconds, before callers are refused."""

MAX_QUEUED_ROWS = 200_000
"""Rows that may wait for any store before callers are refused."""

_SLOW = 5.0

TRIES = 500
"""Attempts that `Committer.transact` makes by default before it raises `Contended`. Each failed one means that another change
succeeded, so that many callers can change one thing at the same time."""

_NEVER = 2**63
_ANY = -1


OnAnswer = Callable[[UnitAnswer | BaseException], None]
"""Receives the answer of a unit or the error, once, on the event loop."""

T = TypeVar("T")


class Stale(Exception):
    """Raised by an attempt with outdated reads: `Committer.transact` starts it over."""


class _Submission:
    """A queued unit; its answer goes to a future or to a callback."""

    __slots__ = ("answer", "on_answer", "origin", "sent_at", "unit", "until")

    def __init__(
        self, unit: Unit, answer: asyncio.Future[UnitAnswer] | None, on_answer: OnAnswer | None, until: float | None
    ) -> None:
        self.unit = unit
        self.answer = answer
        self.on_answer = on_answer
        self.until = until
        """End of the sender's patience on the monotonic clock; None waits forever."""
        self.sent_at = 0.0
        self.origin: object = None
        """Trace context of the sender, for units with new tasks while telemetry is observed."""

    @property
    def open(self) -> bool:
        """Whether the sender still waits for the answer."""
        return self.on_answer is not None if self.answer is None else not self.answer.done()

    def resolve(self, answer: UnitAnswer | BaseException) -> None:
        """Deliver the answer, unless already delivered."""
        if self.answer is None:
            on_answer, self.on_answer = self.on_answer, None
            if on_answer is not None:
                on_answer(answer)
        elif not self.answer.done():
            if isinstance(answer, BaseException):
                self.answer.set_exception(answer)
            else:
                self.answer.set_result(answer)


class Committer:
    """The only path to `Store.commit` in a process.

    Calls `on_ready(queue_ids)` after tasks became ready, `on_finished(task_ids)` after tasks ended, and `on_fenced(task_ids)`
    after an operator took tasks from their holders.
    """

    def __init__(self, store: Store, clock: Clock, emit: Emit = log_event) -> None:
        self._store = store
        self._clock = clock
        self._emit = emit
        self._telemetry = telemetry_of(emit)
        self._queue: deque[_Submission] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._pid = 0
        """The process of the senders."""
        self._taking = False
        """Whether a sender is about to take a batch."""
        self._trouble = False
        self._waiting_rows = 0
        self._batch_rows = BATCH_ROWS
        """Limit on the rows of the next commit: halved after each timeout, doubled after each success."""
        self._answered_at = clock.monotonic()
        self._attached: dict[Claim, tuple[Row, ...]] = {}
        self._queues_to_notify: set[int] = set()
        self._notifying: asyncio.Task[None] | None = None
        self.on_ready: list[Callable[[tuple[int, ...]], None]] = []
        self.on_finished: list[Callable[[list[str]], None]] = []
        self.on_fenced: list[Callable[[list[str]], None]] = []
        self.on_streamed: list[Callable[[], None]] = []
        """Called after entries of a stream were stored."""
        self.on_requeued: list[Callable[[int], None]] = []
        """Called with the delay in milliseconds until the first of the committed tasks is due."""

    def submit(self, unit: Unit, patience: float | None = None) -> asyncio.Future[UnitAnswer]:
        """Queue the unit; the future receives its answer. Call it on the event loop.

        `patience`: seconds after which the sender gets `StoreUnavailable`. None waits forever and never raises a `StoreError`:
        a decision made under a claim must not be lost because a disk was full. With patience, raises `StoreOverloaded`
        immediately while too many rows wait.
        """
        if patience is not None and self._waiting_rows >= MAX_STALLED_ROWS:
            self._refuse_if_behind()
        answer: asyncio.Future[UnitAnswer] = asyncio.get_running_loop().create_future()
        self._enqueue(_Submission(unit, answer, None, None if patience is None else self._clock.monotonic() + patience))
        return answer

    def submit_callback(self, unit: Unit, on_answer: OnAnswer) -> None:
        """Like `submit` without patience, but calls `on_answer` instead of waking a waiting coroutine; it must not raise."""
        self._enqueue(_Submission(unit, None, on_answer, None))

    def attach(self, claim: Claim, rows: tuple[Row, ...]) -> None:
        """Commit these rows with every settlement under the claim, until `detach`."""
        if rows:
            self._attached[claim] = rows

    def detach(self, claim: Claim) -> None:
        """Forget the rows of a claim after its attempt."""
        if self._attached:
            self._attached.pop(claim, None)

    def _with_attached(self, unit: Unit) -> Unit:
        claims = [unit.guard] if isinstance(unit.guard, Claim) and isinstance(unit.settlement, Finish | Requeue) else []
        claims += [guard for guard, _ in unit.also if isinstance(guard, Claim)]
        rows = [row for claim in claims for row in self._attached.get(claim, ())]
        return msgspec.structs.replace(unit, rows=(*unit.rows, *rows)) if rows else unit

    def _enqueue(self, submission: _Submission) -> None:
        if self._senders:
            check_process(self._pid)
        if self._attached:
            submission.unit = self._with_attached(submission.unit)
        if submission.unit.tasks and self._telemetry.observe is not None:
            spans = self._telemetry.spans
            submission.sent_at, submission.origin = self._clock.monotonic(), None if spans is None else spans.origin()
        self._queue.append(submission)
        self._waiting_rows += 1 + len(submission.unit.tasks)
        self._start_sender()

    def _refuse_if_behind(self) -> None:
        """Raise `StoreOverloaded` if the store is in trouble, slow, or far behind."""
        slow = self._trouble or self._clock.monotonic() - self._answered_at > _SLOW
        if slow or self._waiting_rows >= MAX_QUEUED_ROWS:
            raise StoreOverloaded(self._waiting_rows)

    @staticmethod
    async def transact(attempt: Callable[[], Awaitable[T]], act: str, *, tries: int = TRIES) -> T:
        """Read, decide and commit, starting over when another change came first; returns the result of the attempt.

        `attempt` reads, decides, and passes its unit to `commit` (or returns without a write). It is called again each time
        it raises `Stale`, so it must have no effect before its commit. After `tries` calls this raises `Contended`, with
        `act` as the infinitive in its message ("cancel the run 0190...").
        """
        for _ in range(tries):
            try:
                return await attempt()
            except Stale:
                continue
        raise Contended(act, tries)

    async def commit(self, unit: Unit, patience: float | None = None) -> UnitAnswer:
        """Commit an operator's unit and return its answer; raises `Stale` unless the verdict is `done`.

        A transition that has become illegal since the attempt read the run is stale, too.
        """
        failpoint("operate.before_commit")
        try:
            answer = await self.submit_unique(unit, patience)
        except IllegalTransition as error:
            raise Stale from error
        failpoint("operate.after_commit")
        if answer.verdict is not Verdict.DONE:
            raise Stale
        return answer

    async def submit_unique(self, unit: Unit, patience: float | None = None) -> UnitAnswer:
        """Submit a unit; raises `Stale` if one of its unique keys, although it was free, was taken during the commit."""
        try:
            return await self.submit(unit, patience)
        except StoreBusy as error:
            if not unit.exclusive:
                raise
            raise Stale from error

    async def drain(self) -> None:
        """Wait until all units submitted so far are answered and announced."""
        while self._queue or self._senders or self._notifying:
            pending: set[asyncio.Future[None]] = set(self._senders)
            if self._notifying is not None:
                pending.add(self._notifying)
            if pending:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop sending; queued units fail with `StoreUnavailable`."""
        self._queues_to_notify.clear()
        self._fail_queued()  # first, so that a finishing sender finds an empty queue
        for sender in [*self._senders, *([self._notifying] if self._notifying else [])]:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    def _fail_queued(self) -> None:
        self._waiting_rows = 0
        while self._queue:
            self._queue.popleft().resolve(StoreUnavailable("The engine was closed before this was committed."))

    def _start_sender(self) -> None:
        """Start a sender for queued units, unless one is about to take them or the store benefits from no more."""
        if self._queue and not self._taking and len(self._senders) < self._store.parallel_commits:
            self._taking = True
            if not self._senders:
                self._pid = os.getpid()
                self._answered_at = self._clock.monotonic()  # it was idle, not slow
            sender = asyncio.get_running_loop().create_task(self._send_queued())
            self._senders.add(sender)
            sender.add_done_callback(self._sent)

    async def _send_queued(self) -> None:
        """Send batches until the queue is empty. Callers that an answer has woken queue their next units before the next batch."""
        while self._queue:
            self._taking = False
            batch = self._take_batch()
            self._start_sender()
            await self._send(batch)
            self._taking = True
            await asyncio.sleep(0)
        self._taking = False

    def _sent(self, sender: asyncio.Task[None]) -> None:
        self._senders.discard(sender)
        self._taking = False  # it may have been canceled before it took a batch
        if sender.cancelled():  # the process ends: what is queued must not start senders that are canceled, too
            self._fail_queued()
        elif (error := sender.exception()) is not None:
            self._emit(LoopError("committer", repr(error)))
        self._start_sender()

    def _take_batch(self) -> list[_Submission]:
        batch: list[_Submission] = []
        rows = 0
        effects: set[str] = set()
        while self._queue:
            unit = self._queue[0].unit
            rows += 1 + len(unit.tasks)
            if batch and (rows > self._batch_rows or (effects and _ends_effect(unit, effects))):
                break
            if unit.rows and unit.guard is not None and any(type(row) is PutOutcome for row in unit.rows):
                effects.add(unit.guard.task_id)
            batch.append(self._queue.popleft())
            self._waiting_rows -= 1 + len(unit.tasks)
        return batch

    async def _send(self, batch: list[_Submission]) -> None:
        """Send the batch until each unit has its answer or its sender's patience has ended."""
        delay = STORE_BACKOFF.first
        try:
            while batch := [submission for submission in batch if submission.open]:
                try:
                    self._answer(batch, await self._commit([submission.unit for submission in batch]))
                except StoreError as error:
                    self._refuse_impatient(batch, error)
                    self._trouble = True
                    self._emit(StoreTrouble("committing", str(error), delay))
                    await self._clock.sleep(delay)
                    delay = STORE_BACKOFF.after(delay)
                    if isinstance(error, StoreTimeout) and len(batch) > 1:
                        self._batch_rows = max(min(self._batch_rows, _rows_of(batch)) // 2, 1)
                        await self._send_halves(batch)
                except Exception as error:
                    if len(batch) == 1:
                        batch[0].resolve(error)
                        self._rolled_back(batch[0].unit)
                        return
                    await self._send_halves(batch)
        except asyncio.CancelledError:
            for submission in batch:
                submission.resolve(StoreUnavailable("The engine was closed during this commit; it may or may not be there."))
            raise

    async def _send_halves(self, batch: list[_Submission]) -> None:
        middle = len(batch) // 2
        await self._send(batch[:middle])
        await self._send(batch[middle:])

    def _commit(self, units: list[Unit]) -> Awaitable[list[UnitAnswer]]:
        observe = self._telemetry.observe
        call = self._store.commit(units)
        return call if observe is None else timed(observe, self._clock, "commit", call, len)

    def _refuse_impatient(self, batch: Sequence[_Submission], error: StoreError) -> None:
        """Fail the senders with no patience left, including those queued behind this batch, which may never finish."""
        now = self._clock.monotonic()
        lasting = not isinstance(error, StoreUnavailable)
        for submission in batch:
            if submission.until is not None and (lasting or now >= submission.until):
                submission.resolve(error)
                self._rolled_back(submission.unit)
        for submission in self._queue:
            if submission.until is not None and now >= submission.until:
                submission.resolve(error)
        if not all(submission.open for submission in self._queue):
            self._queue = deque(submission for submission in self._queue if submission.open)
            self._waiting_rows = _rows_of(self._queue)

    def _answer(self, batch: Sequence[_Submission], answers: Sequence[UnitAnswer]) -> None:
        self._answered_at = self._clock.monotonic()
        if self._batch_rows < BATCH_ROWS:
            self._batch_rows = min(self._batch_rows * 2, BATCH_ROWS)
        if self._trouble:
            self._trouble = False
            self._emit(StoreBack("committing"))
        finished: list[str] = []
        fenced: list[str] = []
        queues: set[int] = set()
        unsignaled: set[int] = set()
        soonest = _NEVER
        for submission, answer in zip(batch, answers, strict=True):
            submission.resolve(answer)
            unit = submission.unit
            if answer is DONE and type(unit.guard) is Claim and type(unit.settlement) is Finish and not unit.tasks:
                finished.append(unit.guard.task_id)  # the usual unit
                continue
            if answer.queue_ids:
                queues.update(answer.queue_ids)
                if not answer.is_signaled:
                    unsignaled.update(answer.queue_ids)
            if unit.tasks and self._telemetry.observe is not None and (created := _made(unit, answer)):
                took = self._clock.monotonic() - submission.sent_at if submission.sent_at else 0.0
                self._telemetry.observe(TasksStored(created, took, submission.origin))
            if answer.verdict is not Verdict.DONE:
                continue
            guard, ends = unit.guard, isinstance(unit.settlement, Finish)
            if unit.tasks or not (ends or unit.settlement is None):
                soonest = min(soonest, _first_delay(unit))
            if guard is not None:
                if ends:
                    finished.append(guard.task_id)
                if (
                    isinstance(guard, Seen)
                    and unit.settlement
                    and not (isinstance(unit.settlement, Requeue) and unit.settlement.stays)
                ):
                    fenced.append(guard.task_id)
        self.fenced(fenced)
        if soonest < _NEVER:
            self._requeued(soonest)
        if finished:
            for listener in self.on_finished:
                listener(finished)
        if queues:
            self._notify_here(tuple(queues))
            self._notify_others(unsignaled)

    def _requeued(self, delay: int) -> None:
        """Inform this process's wakers of the next due time; without any here, inform other processes."""
        for listener in self.on_requeued:
            listener(delay)
        if not self.on_requeued:
            self._notify_others((LATER,))

    def fenced(self, task_ids: list[str]) -> None:
        """Report to this process that an operator took these tasks from their holders; other processes poll for it."""
        for listener in self.on_fenced if task_ids else ():
            listener(task_ids)

    def notify(self, queue_ids: tuple[int, ...]) -> None:
        """Report ready tasks in these queues: immediately in this process, soon to the others."""
        self._notify_here(queue_ids)
        self._notify_others(queue_ids)

    def streamed(self) -> None:
        """Report new entries of streams to readers: immediately in this process, soon to the others."""
        for listener in self.on_streamed:
            listener()
        self._notify_others((STREAM,))

    def _rolled_back(self, unit: Unit) -> None:
        """Let all workers claim: the failed commit may have held ready tasks, which claims skipped meanwhile."""
        if unit.guard is not None or unit.rows:
            self._notify_here(())
            self._notify_others((_ANY,))

    def _notify_here(self, queue_ids: tuple[int, ...]) -> None:
        for listener in self.on_ready:
            listener(queue_ids)

    def _notify_others(self, queue_ids: Iterable[int] = ()) -> None:
        self._queues_to_notify.update(queue_ids)
        if self._notifying is None and self._queues_to_notify:
            self._notifying = asyncio.get_running_loop().create_task(self._notify())
            self._notifying.add_done_callback(self._notified)

    async def _notify(self) -> None:
        await asyncio.sleep(0)  # callers that the answer has woken send their next units first: the database is the slower part
        while self._queues_to_notify:
            queues, self._queues_to_notify = tuple(self._queues_to_notify), set()
            try:
                await self._store.notify(() if _ANY in queues else queues)
            except StoreError:
                return  # only a hint: processes that miss it poll soon

    def _notified(self, sender: asyncio.Task[None]) -> None:
        self._notifying = None
        if sender.cancelled():
            return
        if (error := sender.exception()) is not None:
            self._emit(LoopError("notify", repr(error)))
        self._notify_others()  # queues added after the last notification was sent


def _made(unit: Unit, answer: UnitAnswer) -> Sequence[NewTask]:
    """The tasks that this unit created."""
    if answer.verdict is not Verdict.DONE:
        return ()
    if not answer.existing and not answer.same:
        return unit.tasks
    keys = {task.unique_key for task in unit.tasks}
    if not keys.issuperset(answer.existing):
        return ()  # another run already has the idempotency key: the store wrote nothing of the unit
    return [task for task in unit.tasks if task.id not in answer.same and task.unique_key not in answer.existing]


def _rows_of(batch: Iterable[_Submission]) -> int:
    return sum(1 + len(submission.unit.tasks) for submission in batch)


def _first_delay(unit: Unit) -> int:
    """Milliseconds until the first delayed task of the unit is due; ready tasks do not count."""
    waits = [task.delay for task in unit.tasks if task.delay > 0]
    if isinstance(unit.settlement, Requeue | Redrive) and unit.settlement.delay is not None:
        waits.append(unit.settlement.delay)
    return min(waits, default=_NEVER)


def _ends_effect(unit: Unit, effects: Collection[str]) -> bool:
    """Whether the unit ends the claim of a task whose effect begins in the same batch: the store must see it begun before."""
    ends = isinstance(unit.settlement, Finish | Requeue) and unit.settlement.transition in DOUBTFUL_TRANSITIONS
    return ends and unit.guard is not None and unit.guard.task_id in effects


WITHIN = 5.0
"""Seconds that a canceled caller waits for the call; a store that does not answer must not keep it."""


async def uninterrupted(call: Awaitable[T], undo: Callable[[T], Coroutine[Any, Any, None]] | None = None) -> T:
    """Return the result of the call. A cancellation is raised after its end, and after `undo` with the result."""
    calling = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(calling)
    except asyncio.CancelledError:
        if calling.cancelled():
            raise
        await asyncio.wait({asyncio.create_task(_finish(calling, undo))}, timeout=WITHIN)
        raise


async def claim_tasks(
    store: Store, queue_ids: Sequence[int], owner_id: str, lease_for: int, limit: int, scopes: Sequence[str] | None = None
) -> list[Task]:
    """Claim tasks with `TaskStore.claim`; they are released if the caller is canceled before it receives them."""

    async def release(tasks: list[Task]) -> None:
        units = [Unit(task.claim, returned(task, "the caller that claimed it was canceled")) for task in tasks]
        if units:
            await store.commit(units)
            await store.notify(sorted({task.queue_id for task in tasks}))

    return await uninterrupted(store.tasks.claim(queue_ids, owner_id, lease_for, limit, scopes), release)


async def _finish(calling: asyncio.Future[T], undo: Callable[[T], Coroutine[Any, Any, None]] | None) -> None:
    try:
        result = await calling
        if undo is not None:
            await undo(result)
    except Exception:  # noqa: S110 - nobody waits for the result; the lease expires
        pass
