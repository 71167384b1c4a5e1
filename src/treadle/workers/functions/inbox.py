"""The waits of a run: for messages and timers, which its inbox delivers, and for semaphore slots to start steps with a limit key.

The version of the run up to which its messages were read guards the requeue, so that no message is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from treadle.kernel.functions.steps import EFFECT, READ, STEP, Recorded, make_step
from treadle.kernel.store.units import LimitTask
from treadle.kernel.store.value_store import ValueStore
from treadle.model.errors import MisusedContext, StoreError, TreadleError
from treadle.model.names import is_run_key
from treadle.model.records import Message
from treadle.model.runs import Run
from treadle.model.states import RunState, StepState, TaskState
from treadle.model.values import decode
from treadle.workers.functions.execution import FunctionBranch, FunctionExecution, PendingUnit
from treadle.workers.functions.journal import Journal, error_of

NEVER = 2**62
_RECORDED_LATER = (STEP, EFFECT, READ)
"""Kinds of steps that are recorded by their operation after a wait, not by the end of the wait."""
NO_MESSAGES = 1_000_000_000
"""A number of messages that never arrives: only a timer can wake the function."""


class Wait:
    """A durable wait for a message (the end of a child, or a signal), for an instant (`wake_at`), or for the first of both."""

    __slots__ = (
        "branch",
        "child_step_id",
        "done",
        "error",
        "future",
        "group",
        "index",
        "on_done",
        "recorded",
        "signal",
        "value",
        "wake_at",
    )

    def __init__(
        self,
        branch: FunctionBranch,
        recorded: Recorded,
        *,
        child_step_id: str | None = None,
        signal: str | None = None,
        wake_at: int | None = None,
    ) -> None:
        self.branch = branch
        self.recorded = recorded
        self.child_step_id = child_step_id
        self.signal = signal
        self.wake_at = wake_at
        self.group: GatherGroup | None = None
        self.index = 0
        self.future: asyncio.Future[None] | None = None
        self.on_done: Callable[[Wait], None] | None = None
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None

    @classmethod
    def over(cls, branch: FunctionBranch, recorded: Recorded) -> Wait:
        """Return a wait that has ended as its step records."""
        wait = cls(branch, recorded)
        wait.done, wait.value, wait.error = True, recorded.value, error_of(recorded)
        return wait

    @property
    def by_message(self) -> bool:
        """Whether a message can end it."""
        return self.child_step_id is not None or self.signal is not None

    def next_unit(self) -> PendingUnit:
        """Return the unit for the row of the ended wait: that of the branch that continues because of it."""
        parent = self.branch.parent
        return parent.next_unit() if self.group is not None and parent is not None else self.branch.next_unit()

    def result(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class GatherGroup:
    """A gather: the results of its branches in order, and the number of branches that have not ended."""

    __slots__ = ("coded", "future", "left", "results")
    needs_all = True
    """Whether it continues after the last branch, not after the first."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.coded = 0
        """Branches that execute code of their own: until they end, no message or timer alone can end the gather."""
        self.results: list[tuple[Any, BaseException | None]] = [(None, None)] * size
        self.future: asyncio.Future[None] | None = None

    def end(self, index: int, value: Any, error: BaseException | None, execution: FunctionExecution) -> None:
        """Store the result of a branch; after the last one the gather continues."""
        self.results[index] = (value, error)
        self.left -= 1
        if not self.left:
            execution.resume(self.future)


@dataclass(frozen=True, slots=True)
class WakeCondition:
    """The events that wake a suspended function: that many messages, or that instant, whichever comes first."""

    messages: int
    wake_at: int


def need_of(waits: Iterable[Wait]) -> WakeCondition:
    """Return the fewest messages and the first instant that could let a branch continue; never too many or too late."""
    messages, wake_at = NO_MESSAGES, NEVER
    counts: dict[int, int] = {}
    instants: dict[int, int] = {}
    for wait in waits:
        group = wait.group
        if group is not None and (not group.needs_all or (wait.by_message and wait.wake_at is not None)):
            group = None  # it counts by itself
        if group is None:
            if wait.by_message:
                messages = 1
            if wait.wake_at is not None:
                wake_at = min(wake_at, wait.wake_at)
        elif not group.coded:
            key = id(group)
            counts[key] = counts.get(key, 0) + wait.by_message
            if wait.wake_at is not None:
                instants[key] = max(instants.get(key, 0), wait.wake_at)
    for key, count in counts.items():
        if count:
            messages = min(messages, count)
        else:
            wake_at = min(wake_at, instants.get(key, NEVER))
    return WakeCondition(messages, wake_at)


_POLL_EVERY = 1.0
"""Seconds between reads of messages while some branches wait and others execute."""
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message with its values: the end of a child (`step_id`), or a signal (`name`)."""

    id: str
    step_id: str | None
    name: str | None
    value: Any = None
    error: dict[str, Any] | None = None
    at: int = 0
    """When it was stored."""
    keyed: bool = False
    """Whether it is a signal with an idempotency key, which the run records."""


async def read_message(message: Message, value_store: ValueStore) -> Arrival:
    """Read the values of a message; if that is impossible, the step that waits for it fails."""
    try:
        document: dict[str, Any] = decode(value_store.plain(message.document))
        if message.step_id is None:
            value = (await value_store.unpack(document["payload"])).get("payload")
            return Arrival(message.id, None, message.name, value, at=message.at, keyed=bool(document.get("keyed")))
        if document["state"] == TaskState.COMPLETED:
            value = await value_store.unpack(document.get("result"))
            result = value.get("result") if "run_id" in document else value
            return Arrival(message.id, message.step_id, None, result, at=message.at)
    except TreadleError as error:
        problem = {"code": error.code, "message": str(error), "state": "failed"}
        return Arrival(message.id, message.step_id, message.name, error=problem, at=message.at)
    problem = dict(document.get("error") or {})
    problem.pop("traceback", None)
    return Arrival(message.id, message.step_id, None, error={**problem, "state": document["state"]}, at=message.at)


class Inbox:
    """Delivers messages and timers to the waits of one run."""

    def __init__(self, execution: FunctionExecution, journal: Journal) -> None:
        self._execution = execution
        self._journal = journal
        self.run: Run | None = None
        """The run as last read; None for a new run, which is never read."""
        self.version = 0
        """The version of the run up to which messages were read."""
        self._waits: dict[Wait, None] = {}
        self._by_child: dict[str, Wait] = {}
        self._by_signal: dict[str, list[Wait]] = {}
        self._child_ends: dict[str, Arrival] = {}
        self._signals: dict[str, list[Arrival]] = {}
        self._ignored: set[str] = set()
        """Steps with children that nothing waits for any more."""
        self._stale: list[str] = []
        """Messages with the ends of such children."""
        self._known: set[str] = set()
        self._consumed: set[str] = set()
        self._polling: asyncio.Task[None] | None = None

    # reads

    async def read_run(self) -> Run:
        """Read the run, but not its messages; a finished run counts as lost and raises `CancelledError`."""
        execution = self._execution
        run = await execution.runtime.store.runs.find(execution.run_id)
        if run is None or run.finished:
            execution.lose()
            raise asyncio.CancelledError
        self.run = run
        execution.run_paused = run.state == RunState.PAUSED
        return run

    async def refresh(self) -> None:
        """Read the run and its messages, and end the waits that they fulfil."""
        await self.receive(await self.read_run())

    async def receive(self, run: Run) -> None:
        """Read the messages of a run that was just read, and end the waits that they fulfil.

        Only then do messages count as read up to its version: after an interrupted read, the run must not be requeued past them.
        """
        store, value_store = self._execution.runtime.store, self._execution.runtime.value_store
        arrivals: list[Arrival] = []
        after = 0
        while page := await store.records.list_messages(run.id, _PAGE, after):
            arrivals += [await read_message(message, value_store) for message in page if message.id not in self._known]
            after = page[-1].seq
            if len(page) < _PAGE:
                break
        self._deliver(arrivals)
        self.version = run.version

    async def refresh_if_awaited(self) -> None:
        """Refresh if a message can end any of the waits."""
        if any(wait.by_message for wait in self._waits):
            await self.refresh()

    async def list_signals(self) -> list[Message]:
        """Return the signals that the run has not consumed."""
        execution = self._execution
        messages: list[Message] = []
        while page := await execution.runtime.store.records.list_messages(
            execution.run_id, _PAGE, messages[-1].seq if messages else 0
        ):
            messages += page
        return [message for message in messages if message.step_id is None]

    def consumed(self, message_ids: list[str]) -> None:
        """Note that a commit deleted these messages."""
        self._consumed.update(message_ids)

    def forget_consumed(self) -> None:
        """Forget deleted messages; only after the requeue, as a read that began earlier may still return them."""
        self._known -= self._consumed
        self._consumed.clear()

    # waits

    def register(self, wait: Wait) -> None:
        """End the wait when its message or instant comes; immediately if its message is already here."""
        if wait.child_step_id is not None and (arrival := self._child_ends.pop(wait.child_step_id, None)) is not None:
            return self._end_by_message(wait, arrival)
        if wait.signal is not None and (arrivals := self._signals.get(wait.signal)):
            return self._end_by_message(wait, arrivals.pop(0))
        self._waits[wait] = None
        if wait.child_step_id is not None:
            if wait.child_step_id in self._by_child:
                raise MisusedContext(f"{wait.recorded.name} is awaited twice concurrently.")
            self._by_child[wait.child_step_id] = wait
        if wait.signal is not None:
            self._by_signal.setdefault(wait.signal, []).append(wait)
        return None

    async def block(self, wait: Wait) -> None:
        """Suspend the calling branch until the wait ends."""
        if not wait.done:
            wait.future = self._execution.suspend()
            await self._execution.suspended(wait.future)

    def abandon(self, wait: Wait) -> None:
        """Drop a wait that has not ended; a signal that comes later stays in the inbox."""
        wait.done = True
        self._remove(wait)

    def ignore(self, step_id: str) -> None:
        """Drop the end of the step's child, whenever it comes."""
        self._ignored.add(step_id)
        if (arrival := self._child_ends.pop(step_id, None)) is not None:
            self._stale.append(arrival.id)

    def take_stale(self) -> list[str]:
        """Return the ids of messages that the next unit may delete, as nothing will ever wait for them."""
        stale, self._stale = self._stale, []
        return stale

    def find_wait(self, branch: FunctionBranch) -> Wait | None:
        """Return the wait of a branch."""
        return next((wait for wait in self._waits if wait.branch is branch), None)

    def waiting(self) -> Iterator[Recorded]:
        """The steps that wait."""
        return (wait.recorded for wait in self._waits)

    def need(self) -> WakeCondition:
        """Return the events that must come before a branch can continue."""
        return need_of(self._waits)

    def _deliver(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            if arrival.id in self._known:
                continue  # a concurrent read delivered it
            self._known.add(arrival.id)
            if arrival.step_id in self._ignored:
                self._stale.append(arrival.id)
                continue
            if arrival.step_id is not None:
                wait = self._by_child.get(arrival.step_id)
                if wait is None:
                    self._child_ends[arrival.step_id] = arrival
                    continue
            else:
                waiting = self._by_signal.get(arrival.name or "")
                if not waiting:
                    self._signals.setdefault(arrival.name or "", []).append(arrival)
                    continue
                wait = waiting[0]
            self._end_by_message(wait, arrival)

    def _end_by_message(self, wait: Wait, arrival: Arrival) -> None:
        recorded = wait.recorded
        recorded.state = StepState.COMPLETED if arrival.error is None else StepState.FAILED
        recorded.value, recorded.error, recorded.ended_at = arrival.value, arrival.error, arrival.at or None
        unit = wait.next_unit()
        unit.consumed.append(arrival.id)
        if arrival.keyed:
            unit.guarded = True
            marker = Recorded(id=arrival.id, kind="signal", name=arrival.name or "", state=StepState.COMPLETED)
            unit.steps[arrival.id] = make_step(self._execution.run_id, marker, self._execution.runtime.value_store)
        self._end(wait)

    async def refresh_if_due(self) -> None:
        """Refresh if a wait for a message has timed out: a message that came in time counts."""
        now = self._execution.now()
        if any(wait.by_message and wait.wake_at is not None and wait.wake_at <= now for wait in self._waits):
            await self.refresh()

    def fire_due(self) -> bool:
        """End the waits whose instant has come, the earliest first; return whether there were any."""
        now = self._execution.now()
        due = [wait for wait in self._waits if wait.wake_at is not None and wait.wake_at <= now]
        for wait in sorted(due, key=lambda wait: wait.wake_at or 0):
            if wait.done:
                continue  # it lost against an earlier one
            if wait.recorded.kind not in _RECORDED_LATER:
                wait.recorded.state = StepState.COMPLETED
                wait.recorded.timed_out = wait.by_message
                wait.recorded.ended_at = wait.wake_at
            self._end(wait)
        return bool(due)

    def _end(self, wait: Wait) -> None:
        wait.done = True
        recorded = wait.recorded
        self._remove(wait)
        if recorded.kind not in _RECORDED_LATER:
            self._journal.write(recorded, wait.next_unit(), checked=True)
            wait.error = error_of(recorded)
            wait.value = recorded.value
        if wait.on_done is not None:
            wait.on_done(wait)
        if wait.group is not None:
            wait.group.end(wait.index, wait.value, wait.error, self._execution)
        else:
            self._execution.resume(wait.future)

    def _remove(self, wait: Wait) -> None:
        self._waits.pop(wait, None)
        if wait.child_step_id is not None:
            self._by_child.pop(wait.child_step_id, None)
        if wait.signal is not None and wait in (waiting := self._by_signal.get(wait.signal, [])):
            waiting.remove(wait)

    # polling while other branches execute

    def poll(self) -> None:
        """Deliver messages and timers while some branches wait and others execute; a suspended run is woken instead."""
        if self._waits and self._polling is None:
            self._polling = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        execution = self._execution
        try:
            while execution.active and self._waits and not execution.closed:
                first = min((wait.wake_at for wait in self._waits if wait.wake_at is not None), default=NEVER)
                await execution.runtime.clock.sleep(min(_POLL_EVERY, max((first - execution.now()) / 1000, 0.001)))
                if execution.closed or not execution.active:
                    break
                try:
                    await self.refresh_if_awaited()
                except StoreError:
                    continue  # the next poll reads again
                self.fire_due()
        finally:
            self._polling = None

    async def stop_polling(self) -> None:
        """Cancel the poll and wait for its end."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])

    def close(self) -> None:
        """Drop all waits."""
        if self._polling is not None and not self._polling.done():
            self._polling.cancel()
        self._waits.clear()


class SemaphoreSlots:
    """The semaphore slots of one run in this process."""

    def __init__(self, execution: FunctionExecution) -> None:
        self._execution = execution
        self._unused: str | None = None
        self._held = False
        """Whether the task has a limit key in the store."""
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    def claimed(self) -> None:
        """Let the first branch continue that waits for the key of the new claim."""
        key = self._execution.task.limit_key
        self._unused = None if key is None or is_run_key(key) else key
        self._held = self._unused is not None
        for waiting in self._waiting:
            if waiting[0] == self._unused:
                self._waiting.remove(waiting)
                self._execution.resume(waiting[1])
                break

    async def acquire(self, key: str) -> None:
        """Suspend the calling branch until a claim holds a slot of the key."""
        if (own := self._execution.task.limit_key) is not None and is_run_key(own):
            raise MisusedContext(
                "The run counts under a limit key of its own, and would lose its place there while the step waits for another one; "
                "call a handler that has the key with `ctx.call`."
            )
        while self._unused != key:
            future = self._execution.suspend()
            waiting = (key, future)
            self._waiting.append(waiting)
            try:
                await self._execution.suspended(future)
            finally:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
        self._unused = None

    def release(self, branch: FunctionBranch) -> None:
        """Give the slot back with the next commit of the branch."""
        self._held = False
        branch.next_unit().rows.append(LimitTask(self._execution.task.id, None))

    @property
    def wanted(self) -> str | None:
        """The key that a branch waits for."""
        return self._waiting[0][0] if self._waiting else None

    def change(self) -> tuple[LimitTask, ...]:
        """Return the row for a requeue: it takes the key that a branch waits for, or gives back an unused one."""
        if self.wanted is None and not self._held:
            return ()
        return (LimitTask(self._execution.task.id, self.wanted),)
