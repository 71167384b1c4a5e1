"""The recorder: commits the decisions of a run's branches under the claim of its task, while the task stays claimed.

The driver commits the last unit of a claim, which parks or ends the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from treadle.kernel.effects.decide import UNKNOWN, UNRESOLVED, Begin
from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.records import PutOutcome, TakeMessages
from treadle.kernel.store.units import DONE, Answer, Keep, PutSteps, Row, RunGuard, Unit, Verdict
from treadle.model.runs import Step
from treadle.model.tasks import NewTask
from treadle.workers.functions.branches import Branch, Branches, PendingUnit
from treadle.workers.functions.execution import Execution
from treadle.workers.functions.inbox import Inbox
from treadle.workers.functions.journal import Journal

T = TypeVar("T")


class Recorder:
    """Commits steps, tasks and other rows of one run."""

    def __init__(self, execution: Execution, journal: Journal, inbox: Inbox, branches: Branches) -> None:
        self._execution = execution
        self._journal = journal
        self._inbox = inbox
        self._branches = branches
        self._shared = PendingUnit()
        """Rows of branches that wait; committed at the end of a turn, or when the task parks."""
        self._flushing: asyncio.Task[None] | None = None

    def share(self, branch: Branch) -> PendingUnit:
        """Move the rows of a branch that is about to wait to the unit at the end of this turn, and return that unit."""
        if branch.pending is not None:
            pending, branch.pending = branch.pending, None
            self._shared.take(pending)
        self._execution.schedule()
        return self._shared

    # commits of a branch

    async def checkpoint(self, branch: Branch, step: Step) -> None:
        """Commit a step and all earlier decisions of its branch; when this returns, they are durable."""
        self._enter(branch)
        try:
            await self._checkpoint(branch, step)
        finally:
            self._leave(branch)

    async def _checkpoint(self, branch: Branch, step: Step) -> None:
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        if branch.pending is not None or self._shared:
            unit = self._take(branch)
            unit.steps[step.id] = step
            return await self._commit(unit)
        execution = self._execution
        plain = Unit(execution.token, None, (), (), None, (PutSteps(execution.run_id, (step,), 0),))  # most steps end like this
        reach("function.before_commit")
        try:
            answer = await execution.runtime.committer.submit(plain)  # as in `_own`, without its coroutine
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise execution.crashed(error) from None
        reach("function.after_commit")
        if answer is not DONE:
            execution.held = execution.held or answer.held
            if answer.verdict is not Verdict.DONE:
                await self._check_claim()
                return await self._checkpoint(branch, step)
        return None

    async def commit_decided(self, branch: Branch) -> None:
        """Commit the decisions of the branch, if there are any."""
        self._enter(branch)
        try:
            if self._flushing is not None:
                await asyncio.wait([self._flushing])
            if branch.pending is not None:
                await self._commit(self._take(branch))
        finally:
            self._leave(branch)

    def _enter(self, branch: Branch) -> None:
        if branch.dropped:
            raise asyncio.CancelledError
        branch.committing = True

    def _leave(self, branch: Branch) -> None:
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
        for row in await self._own(self._execution.runtime.store.find_outcomes([begin.keys.idempotency_key])):
            if row.status == UNRESOLVED and row.unknown_at is None:
                await self.log_unknown(*begin.unknown)

    def _take(self, branch: Branch) -> PendingUnit:
        """Return the shared rows, then those of the branch: a wait that ended immediately may have left earlier rows there."""
        unit, self._shared = self._shared, PendingUnit()
        if branch.pending is not None:
            unit.take(branch.pending)
            branch.pending = None
        return unit

    async def _commit(self, unit: PendingUnit) -> None:
        execution, inbox = self._execution, self._inbox
        while unit:
            if execution.held and unit.starts:  # a paused run starts no children; all other rows are committed
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

        A unit that logged a move in the same commit makes another one look lost.
        """
        execution = self._execution
        task = await self._own(execution.runtime.store.find_task(execution.task.id))
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
            while self._shared and not self._execution.held:
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
            step, blobs = self._journal.published_step()
            steps.append(step)
            rows += blobs
        if steps:
            rows.append(PutSteps(run_id, tuple(steps), 0))
        if unit.consumed:
            rows.append(TakeMessages(run_id, tuple(unit.consumed)))
        return tuple(tasks), rows

    async def submit(self, unit: Unit) -> Answer:
        """Commit a unit of the run."""
        reach("function.before_commit")
        answer = await self._execution.runtime.committer.submit(unit)
        reach("function.after_commit")
        if answer.held:
            self._execution.held = True
        return answer

    def close(self) -> None:
        """Stop a flush in progress."""
        if self._flushing is not None and not self._flushing.done():
            self._flushing.cancel()
