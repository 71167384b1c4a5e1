"""The settler: every result of an attempt is settled here, in one commit with its consequences for the task's run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from treadle.kernel.approvals.service import Approvals
from treadle.kernel.core import Core, Service
from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.functions.service import Functions
from treadle.kernel.queue.decide import SettlementWith, TaskDecision, settlement_of
from treadle.kernel.store.units import Finish, Requeue, Row, Seen, Unit, UnitAnswer, Verdict
from treadle.model.names import is_function
from treadle.model.outcomes import AwaitingApproval
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, Task

if TYPE_CHECKING:
    from treadle.kernel.runs.advancer import Advancer

SettleKind = Callable[[Task, Claim, TaskDecision], Awaitable[UnitAnswer]]
"""Commits the end of an attempt under its claim, with everything that follows from it."""


class Settler(Service):
    """The only path from a worker's decision (`queue.decide`) to the store."""

    def __init__(
        self,
        core: Core,
        advancer: Callable[[], Advancer],
        functions: Functions,
        approvals: Approvals,
        external_jobs: ExternalJobs,
        by_kind: Mapping[str, SettleKind],
    ) -> None:
        """`advancer` is called when a task of a workflow is settled; `by_kind` maps the kinds that an extension settles itself."""
        super().__init__(core)
        self._advancer = advancer
        self._functions = functions
        self._approvals = approvals
        self._external_jobs = external_jobs
        self._by_kind = by_kind

    def alone(self, task: Task, token: Claim | Seen, decided: TaskDecision) -> Unit | None:
        """Return the unit of a task whose end needs no other decision: one without a run, or the child of a function, which is
        sent a message; None if the task needs `settle`.
        """
        if not isinstance(decided, Finish | Requeue):
            return None
        if task.state == TaskState.AWAITING_EXTERNAL or task.kind in self._by_kind:
            return None
        if task.run_id is not None:
            if isinstance(decided, Finish) and task.step_id is not None and is_function(task.flow_id):
                return self._functions.child_end(task, token, decided)
            return None
        if isinstance(decided, Requeue):
            return Unit(token, decided)
        if is_function(task.flow_id):
            return None
        decided, blobs = self._value_store.pack_end(decided, task.root_id)
        if task.limit_key is not None:
            decided = msgspec.structs.replace(decided, limited=True)
        return Unit(token, decided, rows=blobs)

    async def settle(self, task: Task, token: Claim | Seen, decided: TaskDecision, patience: float | None = None) -> UnitAnswer:
        """Commit the decision under the claim, in one unit with its consequences: the next steps of a run, an approval request,
        the record of an external job.

        `patience` is passed to the committer for tasks without a run; None waits until the store is reachable.
        """
        answer = await self._settle(task, token, decided, patience)
        waits = settlement_of(decided).transition in ("ask", "retry")
        if waits and task.run_id is not None and not is_function(task.flow_id) and answer.verdict is Verdict.DONE:
            await self._advancer().withdraw(task.run_id)
        return answer

    async def _settle(self, task: Task, token: Claim | Seen, decided: TaskDecision, patience: float | None) -> UnitAnswer:
        if isinstance(decided, SettlementWith) and isinstance(decided.outcome, AwaitingApproval) and isinstance(token, Claim):
            return await self._approvals.ask(task, token, settlement_of(decided), decided.outcome.request)
        if (other := self._by_kind.get(task.kind)) is not None and isinstance(token, Claim):
            return await other(task, token, decided)
        rows: tuple[Row, ...] = ()
        if task.state == TaskState.AWAITING_EXTERNAL or isinstance(decided, SettlementWith):
            settlement, rows = await self._external_jobs.prepare(task, token, decided)
        else:
            settlement = settlement_of(decided)
        if isinstance(settlement, Finish):
            if is_function(task.flow_id):
                return await self._functions.settle(task, token, settlement, rows)
            if task.run_id is not None:
                return await self._advancer().settle(task, token, settlement, rows)
            settlement, blobs = self._value_store.pack_end(settlement, task.root_id)
            rows = (*rows, *blobs)
        return await self._committer.submit(Unit(token, settlement, rows=rows), patience)
