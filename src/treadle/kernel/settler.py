"""Commits what attempts came to: alone, or with what follows for the run that the task belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from treadle.kernel.advancer import Advancer
from treadle.kernel.approvals import Approvals
from treadle.kernel.committer import Committer
from treadle.kernel.externals import Externals
from treadle.kernel.function_rows import is_function
from treadle.kernel.functions import Functions
from treadle.kernel.settle import Ask, HandOff, ProducedEnd
from treadle.kernel.units import Answer, Finish, Park, Row, Seen, Unit
from treadle.kernel.vault import Vault
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, Task


class Settler:
    """The one way from a worker's decision to the store."""

    def __init__(
        self,
        committer: Committer,
        vault: Vault,
        advancer: Advancer,
        functions: Functions,
        approvals: Approvals,
        externals: Externals,
    ) -> None:
        self._committer = committer
        self._vault = vault
        self._advancer = advancer
        self._functions = functions
        self._approvals = approvals
        self.by_kind: dict[str, Callable[[Task, Claim, Finish | Park], Awaitable[Answer]]] = {}
        """Kinds whose tasks are settled by somebody else, with what follows from them."""
        self._externals = externals

    def alone(self, task: Task, token: Claim | Seen, decided: Finish | Park) -> Unit | None:
        """All that there is to commit for a task from which nothing follows; None where `settle` has to see to it."""
        kind = type(decided)
        if kind is not Finish and kind is not Park:
            return None
        if task.run_id is not None or task.state == TaskState.AWAITING_EXTERNAL or task.kind in self.by_kind:
            return None
        if kind is Park:
            return Unit(token, decided)
        if is_function(task.flow_id):
            return None
        decided, blobs = self._vault.pack_end(decided, task.root_id)  # type: ignore[arg-type]
        return Unit(token, decided, rows=blobs)

    async def settle(self, task: Task, token: Claim | Seen, decided: Finish | Park, patience: float | None = None) -> Answer:
        """Commit it under the claim, in one unit with what follows: a run goes on after its task, a question is stored, an
        outside job is told of.

        `patience` is that of the committer, for a task without a run: by default it waits for a store that cannot be reached.
        """
        if isinstance(decided, Ask) and isinstance(token, Claim):
            return await self._approvals.ask(task, token, decided)
        if (other := self.by_kind.get(task.kind)) is not None and isinstance(token, Claim):
            return await other(task, token, decided)
        rows: tuple[Row, ...] = ()
        if task.state == TaskState.AWAITING_EXTERNAL or isinstance(decided, HandOff | ProducedEnd):
            decided, rows = await self._externals.prepare(task, decided)
        if isinstance(decided, Finish):
            if is_function(task.flow_id):
                return await self._functions.settle(task, token, decided, rows)
            if task.run_id is not None:
                return await self._advancer.settle(task, token, decided, rows)
            decided, blobs = self._vault.pack_end(decided, task.root_id)
            rows = (*rows, *blobs)
        return await self._committer.submit(Unit(token, decided, rows=rows), patience)
