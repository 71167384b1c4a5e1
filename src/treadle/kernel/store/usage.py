"""The port for what runs spend on models, and for taking the tasks of one run: what stores promise beside the queue."""

from __future__ import annotations

from typing import Protocol

from treadle.model.usage import Budget, Reservation, Usage


class UsageStore(Protocol):
    """Budgets and usage of runs. All rows go with their run."""

    async def set_budget(self, run_id: str, limit_micros: int | None) -> None:
        """From now on the run may spend that much in all (None: without limit); may come before the run itself."""

    async def forget_budget(self, run_id: str) -> None:
        """Take back the budget of a run that was never made; a no-op if something was reserved under it."""

    async def find_budget(self, run_id: str) -> Budget | None:
        """The run's budget, or None where nothing was said and nothing reserved."""

    async def reserve_usage(self, usage: Usage, default_limit: int | None) -> Reservation:
        """Set `usage.reserved_micros` aside for a request, if what is committed stays within the run's budget.

        Atomic: of many at once, no two together get more than there is. Idempotent on (task, attempt, request number):
        a second call answers with the row as it is. A reservation that an earlier attempt of the task left unsettled
        is taken over, so that a crash charges nothing twice. A run without a budget is given `default_limit`.
        """

    async def settle_usage(self, usage: Usage) -> bool:
        """Replace the reservation (by `usage.id`) by tokens and real cost; False, and nothing done, if it is settled."""

    async def list_usage(self, run_id: str) -> list[Usage]:
        """All requests of the run, oldest first."""

    async def claim_of_run(self, run_id: str, kind: str, owner_id: str, lease_for: int, limit: int) -> list[str]:
        """Take up to `limit` ready tasks of that run and kind, as `Store.claim` takes those of a lane; their ids.

        Paused lanes are left alone; rates of lanes are not counted.
        """
