"""The inbox of a run: its messages and timers, and the waits that they end.

The version of the run up to which its messages were read guards parking, so that no message is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from treadle.kernel.functions.steps import EFFECT, STEP, Recorded, make_step
from treadle.kernel.store.value_store import ValueStore
from treadle.model.errors import MisusedContext, StoreError, TreadleError
from treadle.model.records import Message
from treadle.model.runs import Run
from treadle.model.states import RunState, StepState, TaskState
from treadle.model.values import decode
from treadle.workers.functions.branches import Branch
from treadle.workers.functions.errors import error_of
from treadle.workers.functions.execution import Execution
from treadle.workers.functions.journal import Journal
from treadle.workers.functions.waits import NEVER, Need, Wait, need_of

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
        body: dict[str, Any] = decode(value_store.plain(message.body))
        if message.step_id is None:
            value = (await value_store.unpack(body["payload"])).get("payload")
            return Arrival(message.id, None, message.name, value, at=message.at, keyed=bool(body.get("keyed")))
        if body["state"] == TaskState.COMPLETED:
            value = await value_store.unpack(body.get("result"))
            result = value.get("result") if "run_id" in body else value
            return Arrival(message.id, message.step_id, None, result, at=message.at)
    except TreadleError as error:
        problem = {"code": error.code, "message": str(error), "state": "failed"}
        return Arrival(message.id, message.step_id, message.name, error=problem, at=message.at)
    problem = dict(body.get("error") or {})
    problem.pop("traceback", None)
    return Arrival(message.id, message.step_id, None, error={**problem, "state": body["state"]}, at=message.at)


class Inbox:
    """Delivers messages and timers to the waits of one run."""

    def __init__(self, execution: Execution, journal: Journal) -> None:
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
        run = await execution.runtime.store.find_run(execution.run_id)
        if run is None or run.finished:
            execution.lose()
            raise asyncio.CancelledError
        self.run = run
        execution.held = run.state == RunState.PAUSED
        return run

    async def refresh(self) -> None:
        """Read the run and its messages, and end the waits that they fulfil."""
        await self.receive(await self.read_run())

    async def receive(self, run: Run) -> None:
        """Read the messages of a run that was just read, and end the waits that they fulfil.

        Only then do messages count as read up to its version: after an interrupted read, the run must not park past them.
        """
        store, value_store = self._execution.runtime.store, self._execution.runtime.value_store
        arrivals: list[Arrival] = []
        after = 0
        while page := await store.list_messages(run.id, _PAGE, after):
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
        found: list[Message] = []
        while page := await execution.runtime.store.list_messages(execution.run_id, _PAGE, found[-1].seq if found else 0):
            found += page
        return [message for message in found if message.step_id is None]

    def consumed(self, message_ids: list[str]) -> None:
        """Note that a commit deleted these messages."""
        self._consumed.update(message_ids)

    def forget_consumed(self) -> None:
        """Forget deleted messages; only after parking, as a read that began earlier may still return them."""
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

    def find_wait(self, branch: Branch) -> Wait | None:
        """Return the wait of a branch."""
        return next((wait for wait in self._waits if wait.branch is branch), None)

    def waiting(self) -> Iterator[Recorded]:
        """The steps that wait."""
        return (wait.recorded for wait in self._waits)

    def need(self) -> Need:
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
        for wait in sorted(due, key=lambda each: each.wake_at or 0):
            if wait.done:
                continue  # it lost against an earlier one
            if wait.recorded.kind not in (STEP, EFFECT):
                wait.recorded.state = StepState.COMPLETED
                wait.recorded.timed_out = wait.by_message
                wait.recorded.ended_at = wait.wake_at
            self._end(wait)
        return bool(due)

    def _end(self, wait: Wait) -> None:
        wait.done = True
        recorded = wait.recorded
        self._remove(wait)
        if recorded.kind not in (STEP, EFFECT):
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
        """Deliver messages and timers while some branches wait and others execute; a parked run is woken instead."""
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
