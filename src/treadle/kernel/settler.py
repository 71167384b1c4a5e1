"""Commits what attempts came to: alone, or with what follows for the run that the task belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from treadle.kernel.advancer import Advancer
from treadle.kernel.approvals import Approvals
from treadle.kernel.committer import Committer
from treadle.kernel.function_rows import is_function
from treadle.kernel.functions import Functions
from treadle.kernel.ports import Answer, Finish, Park, Unit
from treadle.kernel.settle import Ask
from treadle.kernel.vault import Vault
from treadle.model.tasks import Claim, Task


class Settler:
    """The one way from a worker's decision to the store."""

    def __init__(self, committer: Committer, vault: Vault, advancer: Advancer, functions: Functions, approvals: Approvals) -> None:
        self._committer = committer
        self._vault = vault
        self._advancer = advancer
        self._functions = functions
        self._approvals = approvals
        self.by_kind: dict[str, Callable[[Task, Claim, Finish | Park], Awaitable[Answer]]] = {}
        """Kinds whose tasks are settled by somebody else, with what follows from them."""

    async def settle(self, task: Task, token: Claim, decided: Finish | Park, patience: float | None = None) -> Answer:
        """Commit it under the claim, in one unit with what follows: a run goes on after its task, a question is stored.

        `patience` is that of the committer, for a task without a run: by default it waits for a store that cannot be reached.
        """
        if isinstance(decided, Ask):
            return await self._approvals.ask(task, token, decided)
        if (other := self.by_kind.get(task.kind)) is not None:
            return await other(task, token, decided)
        if isinstance(decided, Finish):
            if is_function(task.flow_id):
                return await self._functions.settle(task, token, decided)
            if task.run_id is not None:
                return await self._advancer.settle(task, token, decided)
            decided, rows = self._vault.pack_end(decided, task.root_id)
            if rows:
                return await self._committer.submit(Unit(token, decided, rows=rows), patience)
        return await self._committer.submit(Unit(token, decided), patience)
