"""Natural batching: a flush goes out at once when nothing is in flight, else all that is queued goes with the next one.

No timers, no sizes to tune: under load, commits grow as large as the database is slow. When a batch fails, it is halved
until the culprit stands alone. When the store cannot be reached, units wait and are sent again (which the store
recognises), for as long as their sender's patience lasts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.ports import LATER, Store
from treadle.kernel.store.units import Answer, Finish, Park, Revive, Seen, Unit, Verdict
from treadle.kernel.telemetry.events import Emit, LoopError, StoreBack, StoreTrouble, log_event
from treadle.kernel.telemetry.observer import TasksStored, telemetry_of, timed
from treadle.model.clock import Clock
from treadle.model.errors import Contended, IllegalMove, StoreError, StoreUnavailable
from treadle.model.tasks import NewTask

BATCH_ROWS = 1000
"""Rows (settlements and new tasks) that one commit takes at most, unless a single unit has more."""

TRIES = 10
"""Attempts that `Committer.transact` makes by default before it raises `Contended`."""

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 2.0
_NEVER = 2**63


Told = Callable[[Answer | BaseException], None]
"""Is called with the answer of a unit, or with why there is none; once, on the event loop."""


T = TypeVar("T")


class Stale(Exception):
    """Raised by an attempt whose reads are out of date: `Committer.transact` starts it over."""


class _Wish:
    """A unit on its way, and who is told the answer: whoever awaits the future, or a function."""

    __slots__ = ("answer", "origin", "sent_at", "told", "unit", "until")

    def __init__(self, unit: Unit, answer: asyncio.Future[Answer] | None, told: Told | None, until: float | None) -> None:
        self.unit = unit
        self.answer = answer
        self.told = told
        self.until = until
        """When the sender's patience ends, on the monotonic clock; None means never."""
        self.sent_at = 0.0
        self.origin: object = None
        """Of units with new tasks, while somebody observes: when and where they were asked for."""

    @property
    def open(self) -> bool:
        """Whether somebody still waits for the answer."""
        return self.told is not None if self.answer is None else not self.answer.done()

    def tell(self, answer: Answer | BaseException) -> None:
        """Answer it, unless that was done."""
        if self.answer is None:
            told, self.told = self.told, None
            if told is not None:
                told(answer)
        elif not self.answer.done():
            if isinstance(answer, BaseException):
                self.answer.set_exception(answer)
            else:
                self.answer.set_result(answer)


class Committer:
    """The one way to `Store.commit` in a process.

    `on_ready(lane_ids)` is called after tasks became ready, `on_finished(task_ids)` after tasks ended, `on_fenced(task_ids)`
    after an operator's act took tasks from whoever held them.
    """

    def __init__(self, store: Store, clock: Clock, emit: Emit = log_event) -> None:
        self._store = store
        self._clock = clock
        self._emit = emit
        self._telemetry = telemetry_of(emit)
        self._queue: deque[_Wish] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._trouble = False
        self._lanes_to_tell: set[int] = set()
        self._telling: asyncio.Task[None] | None = None
        self.on_ready: list[Callable[[tuple[int, ...]], None]] = []
        self.on_finished: list[Callable[[list[str]], None]] = []
        self.on_fenced: list[Callable[[list[str]], None]] = []
        self.on_parked: list[Callable[[int], None]] = []
        """Called with the milliseconds after which the first of the tasks just committed is due."""

    def submit(self, unit: Unit, patience: float | None = None) -> asyncio.Future[Answer]:
        """Queue the unit; the future has its answer. Must be called on the event loop.

        `patience`: seconds after which `StoreUnavailable` is raised to the sender; None waits for ever, and then no
        `StoreError` is ever raised: what was decided under a claim must not be lost because a disk was full.
        """
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._wish(_Wish(unit, answer, None, None if patience is None else self._clock.monotonic() + patience))
        return answer

    def submit_told(self, unit: Unit, told: Told) -> None:
        """As `submit` without patience, for those who have nothing else to do until the answer: nobody has to be woken for it.

        `told` must not raise.
        """
        self._wish(_Wish(unit, None, told, None))

    def _wish(self, wish: _Wish) -> None:
        if wish.unit.tasks and self._telemetry.observe is not None:
            spans = self._telemetry.spans
            wish.sent_at, wish.origin = self._clock.monotonic(), None if spans is None else spans.origin()
        self._queue.append(wish)
        if not self._scheduled and len(self._senders) < self._store.parallel_commits:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

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

    async def commit(self, unit: Unit, patience: float | None = None) -> Answer:
        """Commit an operator's unit and return its answer; raises `Stale` unless the verdict is `done`.

        A move that has become illegal since the attempt read the run is stale, too.
        """
        reach("operate.before_commit")
        try:
            answer = await self.submit(unit, patience)
        except IllegalMove as error:
            raise Stale from error
        reach("operate.after_commit")
        if answer.verdict is not Verdict.DONE:
            raise Stale
        return answer

    async def drain(self) -> None:
        """Return when everything submitted so far has been answered and told."""
        while self._queue or self._senders or self._telling:
            pending: set[asyncio.Future[None]] = set(self._senders)
            if self._telling is not None:
                pending.add(self._telling)
            if pending:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop sending; what is still queued is refused with `StoreUnavailable`."""
        self._lanes_to_tell.clear()
        while self._queue:  # first, so that a sender that ends finds nothing more to send
            self._queue.popleft().tell(StoreUnavailable("The engine was closed before this was committed."))
        for sender in [*self._senders, *([self._telling] if self._telling else [])]:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    def _flush(self) -> None:
        self._scheduled = False
        while self._queue and len(self._senders) < self._store.parallel_commits:
            sender = asyncio.get_running_loop().create_task(self._send(self._take_batch()))
            self._senders.add(sender)
            sender.add_done_callback(self._sent)

    def _sent(self, sender: asyncio.Task[None]) -> None:
        self._senders.discard(sender)
        if not sender.cancelled() and (error := sender.exception()) is not None:
            self._emit(LoopError("committer", repr(error)))
        self._flush()

    def _take_batch(self) -> list[_Wish]:
        batch: list[_Wish] = []
        rows = 0
        while self._queue:
            rows += 1 + len(self._queue[0].unit.tasks)
            if batch and rows > BATCH_ROWS:
                break
            batch.append(self._queue.popleft())
        return batch

    async def _send(self, batch: list[_Wish]) -> None:
        """Send the batch until each unit has its answer or its sender has lost patience."""
        delay = _FIRST_DELAY
        try:
            while batch := [wish for wish in batch if wish.open]:
                try:
                    self._answer(batch, await self._commit([wish.unit for wish in batch]))
                except StoreError as error:
                    self._refuse_impatient(batch, error)
                    self._trouble = True
                    self._emit(StoreTrouble("committing", str(error), delay))
                    await self._clock.sleep(delay)
                    delay = min(delay * 2, _LONGEST_DELAY)
                except Exception as error:
                    if len(batch) == 1:
                        batch[0].tell(error)
                        return
                    middle = len(batch) // 2
                    await self._send(batch[:middle])
                    await self._send(batch[middle:])
        except asyncio.CancelledError:
            for wish in batch:
                wish.tell(StoreUnavailable("The engine was closed during this commit; it may or may not be there."))
            raise

    def _commit(self, units: list[Unit]) -> Awaitable[list[Answer]]:
        observe = self._telemetry.observe
        call = self._store.commit(units)
        return call if observe is None else timed(observe, self._clock, "commit", call, len)

    def _refuse_impatient(self, batch: Sequence[_Wish], error: StoreError) -> None:
        """Tell those who wait no longer; also those queued behind this batch, which may never come to an end."""
        now = self._clock.monotonic()
        lasting = not isinstance(error, StoreUnavailable)
        for wish in batch:
            if wish.until is not None and (lasting or now >= wish.until):
                wish.tell(error)
        for wish in self._queue:
            if wish.until is not None and now >= wish.until:
                wish.tell(error)

    def _answer(self, batch: Sequence[_Wish], answers: Sequence[Answer]) -> None:
        if self._trouble:
            self._trouble = False
            self._emit(StoreBack("committing"))
        finished: list[str] = []
        fenced: list[str] = []
        lanes: set[int] = set()
        soonest = _NEVER
        for wish, answer in zip(batch, answers, strict=True):
            wish.tell(answer)
            if answer.lane_ids:
                lanes.update(answer.lane_ids)
            unit = wish.unit
            if unit.tasks and self._telemetry.observe is not None and (made := _made(unit, answer)):
                took = self._clock.monotonic() - wish.sent_at if wish.sent_at else 0.0
                self._telemetry.observe(TasksStored(made, took, wish.origin))
            if answer.verdict is not Verdict.DONE:
                continue
            guard, ends = unit.guard, isinstance(unit.settlement, Finish)
            if unit.tasks or not (ends or unit.settlement is None):
                soonest = min(soonest, _due_for(unit))
            if guard is not None:
                if ends:
                    finished.append(guard.task_id)
                if isinstance(guard, Seen):
                    fenced.append(guard.task_id)
        self.fenced(fenced)
        if soonest < _NEVER:
            self._parked(soonest)
        if finished:
            for heard in self.on_finished:
                heard(finished)
        if lanes:
            self.tell(tuple(lanes))

    def _parked(self, delay: int) -> None:
        """Tell those here who wake what is due; where there are none, others have to hear of it."""
        for expected in self.on_parked:
            expected(delay)
        if not self.on_parked:
            self._lanes_to_tell.add(LATER)
            self._tell_others()

    def fenced(self, task_ids: list[str]) -> None:
        """Tell this process at once that these tasks were taken from whoever held them; others look by themselves."""
        for heard in self.on_fenced if task_ids else ():
            heard(task_ids)

    def tell(self, lane_ids: tuple[int, ...]) -> None:
        """Tell this process at once, and the others soon, that there is something in those lanes."""
        for heard in self.on_ready:
            heard(lane_ids)
        self._lanes_to_tell.update(lane_ids)
        self._tell_others()

    def _tell_others(self) -> None:
        if self._telling is None and self._lanes_to_tell:
            self._telling = asyncio.get_running_loop().create_task(self._tell())
            self._telling.add_done_callback(self._told)

    async def _tell(self) -> None:
        while self._lanes_to_tell:
            lanes, self._lanes_to_tell = tuple(self._lanes_to_tell), set()
            try:
                await self._store.notify(lanes)
            except StoreError:
                return  # a hint only: whoever missed it looks by itself before long

    def _told(self, telling: asyncio.Task[None]) -> None:
        self._telling = None
        if telling.cancelled():
            return
        if (error := telling.exception()) is not None:
            self._emit(LoopError("notify", repr(error)))
        self._tell_others()  # what was heard of between its last look and now


def _made(unit: Unit, answer: Answer) -> Sequence[NewTask]:
    """Those of the unit's tasks that are new now."""
    if answer.verdict is not Verdict.DONE:
        return ()
    if not answer.existing and not answer.same:
        return unit.tasks
    keys = {task.unique_key for task in unit.tasks}
    if not keys.issuperset(answer.existing):
        return ()  # a run's key stood for another run: nothing of the unit was stored
    return [task for task in unit.tasks if task.id not in answer.same and task.unique_key not in answer.existing]


def _due_for(unit: Unit) -> int:
    """Milliseconds until the first task that the unit parked or made is due; never for those that are ready now."""
    waits = [task.delay for task in unit.tasks if task.delay > 0]
    if isinstance(unit.settlement, Park | Revive) and unit.settlement.delay is not None:
        waits.append(unit.settlement.delay)
    return min(waits, default=_NEVER)
