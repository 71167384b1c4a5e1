"""The branches of a function, and the recorder, which commits their decisions while the run's task stays claimed.

The driver commits the last unit of a claim, which requeues or ends the task.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Awaitable, Coroutine
from contextvars import copy_context
from itertools import count
from typing import Any, TypeVar

from treadle.kernel.effects.decide import UNKNOWN, UNRESOLVED, Begin
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.records import PutOutcome, TakeMessages
from treadle.kernel.store.units import DONE, Keep, PutSteps, Row, RunGuard, Unit, UnitAnswer, Verdict
from treadle.model.errors import ClaimLost, MisusedContext
from treadle.model.runs import Step
from treadle.model.tasks import NewTask
from treadle.workers.call import stops_caller, task_name
from treadle.workers.functions.execution import FunctionBranch, FunctionExecution, PendingUnit, executing
from treadle.workers.functions.inbox import GatherGroup, Inbox
from treadle.workers.functions.journal import Journal
from treadle.workers.streams import Outlet, Streams

_ENTER_TIMEOUT = asyncio.Timeout.__aenter__.__code__


class _BranchTask(asyncio.Task[Any]):
    """The asyncio task of a branch, which knows the `asyncio.timeout` blocks that its code is in: they ask for `cancelling`."""

    timeouts: tuple[asyncio.Timeout, ...] = ()

    def cancelling(self) -> int:
        caller = sys._getframe(1)
        if caller.f_code is _ENTER_TIMEOUT:
            self.timeouts = (*filter(_is_active, self.timeouts), caller.f_locals["self"])
        return super().cancelling()


def _is_active(timeout: asyncio.Timeout) -> bool:
    """Return whether the block has not ended, and is limited."""
    try:
        timeout.reschedule(timeout.when())
    except RuntimeError:
        return False
    return timeout.when() is not None


class Branches:
    """The branches of one run that have not ended."""

    def __init__(self, execution: FunctionExecution, journal: Journal) -> None:
        self._execution = execution
        self._journal = journal
        self._branches: dict[asyncio.Task[Any], FunctionBranch] = {}

    def enter(self) -> FunctionBranch:
        """Return the branch of the caller; raises `MisusedContext` where `ctx` cannot be used."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # a thread without an event loop
            task = None
        branch = self._branches.get(task) if task is not None else None
        if self._execution.closed:
            raise asyncio.CancelledError
        if branch is None:
            raise self.misuse("in another asyncio task or thread")
        if self._execution.misuse is not None:
            raise self._execution.misuse
        if branch.busy is not None:
            raise MisusedContext(f"ctx cannot be used inside the step {branch.busy}; a step is one unit of work.")
        if task is not None and any(map(_is_active, getattr(task, "timeouts", ()))):
            raise self.misuse("inside `asyncio.timeout` or `asyncio.wait_for`")
        branch.hosting = None
        return branch

    def misuse(self, place: str) -> MisusedContext:
        """Return the error of an operation that is awaited at a wrong place; the run fails, even if the code suppresses it."""
        execution = self._execution
        execution.misuse = execution.misuse or MisusedContext(
            f"An operation of ctx was awaited {place}, where a replay cannot follow it, by the function "
            f"{execution.function.queue_name}. Use `ctx.gather(...)` to do things concurrently, with `return_exceptions=True` to "
            "receive failures, `ctx.first(...)` to wait for the first of them, and the operation's `timeout` or "
            "`ctx.first(..., ctx.sleep(...))` to limit its time."
        )
        return execution.misuse

    def enter_as(self, task: asyncio.Task[Any], branch: FunctionBranch) -> FunctionBranch | None:
        """Let the task continue as that branch; return the branch that it was."""
        before = self._branches.get(task)
        if before is not None and before.busy is not None:
            raise MisusedContext(f"ctx cannot be used inside the step {before.busy}; a step is one unit of work.")
        self._branches[task] = branch
        return before

    def leave(self, task: asyncio.Task[Any], before: FunctionBranch | None) -> None:
        """Let the task be the branch again that it was."""
        if before is not None and not self._execution.closed:
            self._branches[task] = before
        else:
            self._branches.pop(task, None)

    def is_abandoned(self) -> bool:
        """Return whether a framework cancels the calling task, which awaits an operation of a host."""
        task = asyncio.current_task()
        branch = None if task is None else self._branches.get(task)
        return task is not None and branch is not None and branch.host is not None and task.cancelling() > 0

    def start(self, branch: FunctionBranch, code: Coroutine[Any, Any, None]) -> None:
        """Execute the code as that branch; the code calls `ended` at its end."""
        self._execution.active += 1
        function = self._execution.function
        context = copy_context()
        context.run(executing.set, (function.name, function.code, branch))
        loop, name = asyncio.get_running_loop(), task_name(function.queue_name)
        if loop.get_task_factory() is None:
            task: asyncio.Task[Any] = _BranchTask(code, loop=loop, name=name, context=context)
        else:  # such as that of a simulation, whose processes know their tasks
            task = loop.create_task(code, name=name, context=context)
        self._branches[task] = branch

    def stops(self, error: BaseException) -> bool:
        """Return whether the exception stops the calling branch, and was not raised by its code.

        The collector may dispose of a branch after its event loop was closed, in the middle of another loop's task.
        """
        if isinstance(error, asyncio.CancelledError):
            return self._execution.closed
        return stops_caller(error) or (isinstance(error, GeneratorExit) and asyncio.current_task() not in self._branches)

    def ended(self) -> None:
        """Count the calling branch as ended."""
        self._execution.active -= 1
        self._execution.schedule()

    def fork(self, group: GatherGroup, index: int, branch: FunctionBranch, awaitable: Any) -> None:
        """Execute an argument of a gather as its own branch."""
        group.coded += 1
        self.start(branch, self._run(group, index, branch, awaitable))

    async def _run(self, group: GatherGroup, index: int, branch: FunctionBranch, awaitable: Any) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = await awaitable
        except BaseException as raised:
            if branch.dropped:
                self._forget(asyncio.current_task())
                return
            if self.stops(raised):
                raise
            error = raised
        self._journal.check_end(branch)
        task = asyncio.current_task()
        if task is not None:
            self._branches.pop(task, None)
        if branch.pending is not None and branch.parent is not None:
            branch.parent.next_unit().take(branch.pending)
        group.coded -= 1
        group.end(index, value, error, self._execution)
        self.ended()

    def drop(self, branch: FunctionBranch) -> None:
        """Stop a branch for whose result nothing waits; a commit in progress ends first."""
        branch.dropped = True
        task = next((task for task, owner in self._branches.items() if owner is branch), None)
        if task is None or task.done():
            return
        if inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_CREATED:  # type: ignore[arg-type]
            self._forget(task)
        if not branch.committing:
            task.cancel()

    def _forget(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None:
            self._branches.pop(task, None)
        self.ended()

    async def join(self, group: GatherGroup) -> None:
        """Wait until a gather can continue."""
        if group.left:
            group.future = self._execution.suspend()
            await self._execution.suspended(group.future)

    def collect(self, unit: PendingUnit) -> PendingUnit:
        """Move the rows of all branches to the unit."""
        for branch in self._branches.values():
            if branch.pending is not None:
                unit.take(branch.pending)
                branch.pending = None
        return unit

    def close(self) -> None:
        """Cancel all branches."""
        for task in self._branches:
            if not task.done():
                task.cancel()
        self._branches.clear()


T = TypeVar("T")


class Recorder:
    """Commits steps, tasks and other rows of one run."""

    def __init__(self, execution: FunctionExecution, journal: Journal, inbox: Inbox, branches: Branches) -> None:
        self._execution = execution
        self._journal = journal
        self._inbox = inbox
        self._branches = branches
        self._shared = PendingUnit()
        """Rows of branches that wait; committed at the end of a turn, or when the task is requeued."""
        self._flushing: asyncio.Task[None] | None = None

    def share(self, branch: FunctionBranch) -> PendingUnit:
        """Move the rows of a branch that is about to wait to the unit at the end of this turn, and return that unit."""
        if branch.pending is not None:
            pending, branch.pending = branch.pending, None
            self._shared.take(pending)
        self._execution.schedule()
        return self._shared

    # commits of a branch

    async def checkpoint(self, branch: FunctionBranch, step: Step) -> None:
        """Commit a step and all earlier decisions of its branch; when this returns, they are durable."""
        self._enter(branch)
        try:
            await self._checkpoint(branch, step)
        finally:
            self._leave(branch)

    async def _checkpoint(self, branch: FunctionBranch, step: Step) -> None:
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        if branch.pending is not None or self._shared:
            unit = self._take(branch)
            unit.steps[step.id] = step
            return await self._commit(unit)
        execution = self._execution
        # most steps end like this; without this path a step takes a fifth more CPU time
        plain = Unit(execution.token, None, (), (), None, (PutSteps(execution.run_id, (step,), 0),))
        failpoint("function.before_commit")
        try:
            answer = await execution.runtime.committer.submit(plain)  # as in `_own`, without its coroutine
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise execution.crashed(error) from None
        failpoint("function.after_commit")
        if answer is not DONE:
            execution.run_paused = execution.run_paused or answer.run_paused
            if answer.verdict is not Verdict.DONE:
                await self._check_claim()
                return await self._checkpoint(branch, step)
        return None

    async def commit_decided(self, branch: FunctionBranch) -> None:
        """Commit the decisions of the branch, if there are any."""
        self._enter(branch)
        try:
            if self._flushing is not None:
                await asyncio.wait([self._flushing])
            if branch.pending is not None:
                await self._commit(self._take(branch))
        finally:
            self._leave(branch)

    def _enter(self, branch: FunctionBranch) -> None:
        if branch.dropped:
            raise asyncio.CancelledError
        branch.committing = True

    def _leave(self, branch: FunctionBranch) -> None:
        branch.committing = False
        if branch.dropped:
            raise asyncio.CancelledError

    async def log_unknown(self, data: str, row: PutOutcome) -> None:
        """Log that the outcome of an effect is unknown; when this returns, that is durable."""
        execution = self._execution
        unit = Unit(execution.token, Keep(execution.task.checkpoint, UNKNOWN, data), rows=(row,))
        while (await self._own(self.submit(unit))).verdict is not Verdict.DONE:
            await self._check_claim()

    async def log_if_unlogged(self, begin: Begin) -> None:
        """Log that the outcome of the attempt is unknown, unless a worker or the store has logged it."""
        for row in await self._own(self._execution.runtime.store.records.find_outcomes([begin.keys.attempt_key])):
            if row.status == UNRESOLVED and row.unknown_at is None:
                await self.log_unknown(*begin.unknown)

    def _take(self, branch: FunctionBranch) -> PendingUnit:
        """Return the shared rows, then those of the branch: a wait that ended immediately may have left earlier rows there."""
        unit, self._shared = self._shared, PendingUnit()
        if branch.pending is not None:
            unit.take(branch.pending)
            branch.pending = None
        return unit

    async def _commit(self, unit: PendingUnit) -> None:
        execution, inbox = self._execution, self._inbox
        while unit:
            if execution.run_paused and unit.starts:  # a paused run starts no children; all other rows are committed
                self._shared.starts += unit.starts
                unit.starts = []
                continue
            guard = None
            if unit.starts or unit.guarded:
                guard = RunGuard(execution.run_id, inbox.version if unit.starts else None)
            tasks, rows = self.rows_of(unit)
            answer = await self._own(self.submit(Unit(execution.token, None, tasks, (), guard, tuple(rows))))
            if answer.verdict is Verdict.DONE:
                if guard is not None and guard.version == inbox.version:  # else a refresh has read it, or will
                    inbox.version += 1
                return inbox.consumed(unit.consumed)
            if answer.verdict is Verdict.CLAIM_LOST:
                await self._check_claim()
            else:
                await self._own(inbox.refresh())
        return None

    async def _check_claim(self) -> None:
        """Return if the claim holds after all, else raise `CancelledError`.

        A unit that logged a transition in the same commit makes another one look lost.
        """
        execution = self._execution
        task = await self._own(execution.runtime.store.tasks.find(execution.task.id))
        if task is None or task.finished or task.claim != execution.token:
            execution.lose()
            raise asyncio.CancelledError

    async def _own(self, call: Awaitable[T]) -> T:
        """Await a call to the store in a branch; its errors stop the driver and never reach user code."""
        try:
            return await call
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise self._execution.crashed(error) from None

    # commits between branches

    def flush(self) -> None:
        """Commit the rows of waiting branches while others execute."""
        if self._shared and self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self._shared and not self._execution.run_paused:
                unit, self._shared = self._shared, PendingUnit()
                await self._commit(unit)
        except asyncio.CancelledError:
            if self._execution.crash is None and not self._execution.lost:
                raise
        finally:
            self._flushing = None

    async def flushed(self) -> None:
        """Wait for a flush in progress."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing])

    # the last unit of a claim

    def collect(self, *, starts: bool = True) -> PendingUnit:
        """Return all rows that are not committed; with `starts=False`, keep child runs for later."""
        unit, self._shared = self._shared, PendingUnit()
        self._branches.collect(unit)
        if not starts:
            self._shared.starts, unit.starts = unit.starts, []
        return unit

    def restore(self, unit: PendingUnit) -> None:
        """Keep the rows of a collected unit that was not committed."""
        unit.take(self._shared)
        self._shared = unit

    def rows_of(self, unit: PendingUnit) -> tuple[tuple[NewTask, ...], list[Row]]:
        """Return the unit's tasks and rows."""
        run_id = self._execution.run_id
        tasks, rows = list(unit.tasks), list(unit.rows)
        steps = list(unit.steps.values())
        for task, more, step in unit.starts:
            tasks.append(task)
            rows += more
            steps.append(step)
        if unit.publishes:
            published = PendingUnit()
            self._journal.add(self._journal.published_row(run_id), published)
            steps += published.steps.values()
            rows += published.rows
        if steps:
            rows.append(PutSteps(run_id, tuple(steps), 0))
        if unit.consumed:
            rows.append(TakeMessages(run_id, tuple(unit.consumed)))
        return tuple(tasks), rows

    async def submit(self, unit: Unit) -> UnitAnswer:
        """Commit a unit of the run."""
        failpoint("function.before_commit")
        answer = await self._execution.runtime.committer.submit(unit)
        failpoint("function.after_commit")
        if answer.run_paused:
            self._execution.run_paused = True
        return answer

    def close(self) -> None:
        """Stop a flush in progress."""
        if self._flushing is not None and not self._flushing.done():
            self._flushing.cancel()


class FunctionStreams:
    """The streams that one run writes in this process."""

    def __init__(self, execution: FunctionExecution, journal: Journal) -> None:
        self._execution = execution
        self._journal = journal
        self._outlet: Outlet | None = None
        self._of_code: dict[str, Streams] = {}
        """By the scope of the branch."""
        self._numbers = count(1)
        self._lock = threading.Lock()

    def add(self, name: str, text: str | None) -> None:
        """Append an entry (as JSON) for the step or the code that calls this; None only opens the stream."""
        self._current().add(name, text)

    async def flush(self) -> None:
        """Wait until all entries are stored; raises `ClaimLost`."""
        if self._outlet is not None:
            await self._outlet.flush()

    def _current(self) -> Streams:
        """Return the streams of the calling step, or of the calling branch of the function's code."""
        execution = self._execution
        current = executing.get(None)
        if current is None or execution.context is None:
            raise MisusedContext(f"A stream of {execution.function.queue_name} was written to outside the function.")
        branch, version = current[2], execution.token.version
        with self._lock:
            if self._outlet is None:
                self._outlet = Outlet(execution.context.stream_kernel, execution.task, lambda: execution.token)
            if branch.busy is not None:
                if branch.streams is None:
                    branch.streams = Streams(self._outlet, self._journal.ids.at(branch.place), f"{version}.{next(self._numbers)}")
                return branch.streams
            if execution.closed:
                raise asyncio.CancelledError
            if branch.scope not in self._of_code:
                writer = f"{execution.run_id}/{branch.scope}".rstrip("/.")
                self._of_code[branch.scope] = Streams(self._outlet, writer, "", replays=version > 1)
            return self._of_code[branch.scope]

    async def end_step(self, branch: FunctionBranch) -> tuple[Row, ...]:
        """End the session of the branch's step; return the rows to commit with the step."""
        with self._lock:
            streams, branch.streams = branch.streams, None
        return () if streams is None else await streams.outlet.close(streams)

    async def settle(self) -> None:
        """Store all entries before the task requeues or ends."""
        try:
            await self.flush()
        except ClaimLost:
            self._execution.lose()

    def close(self) -> None:
        """Forget all entries that are not stored."""
        if self._outlet is not None:
            self._outlet.drop()
