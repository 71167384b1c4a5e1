"""The port for budgets and model usage of runs."""

from __future__ import annotations

from typing import Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.model.usage import Budget, Reservation, Usage


class UsageStore(StoreClock, Protocol):
    """Budgets and usage of runs. All rows are pruned with their run."""

    async def set_budget(self, run_id: str, limit_micros: int | None) -> None:
        """Set the run's total budget (None: unlimited); may be called before the run exists."""

    async def forget_budget(self, run_id: str) -> None:
        """Remove the budget of a run that was never created; a no-op if an amount was reserved under it."""

    async def find_budget(self, run_id: str) -> Budget | None:
        """Return the run's budget, or None if none was set and nothing was reserved."""

    async def reserve_usage(self, usage: Usage, default_limit: int | None) -> Reservation:
        """Reserve `usage.reserved_micros` for a request if the committed total stays within the run's budget.

        Atomic: concurrent calls never reserve more than the budget. Idempotent on (task, attempt, request number): a
        second call returns the existing row. The call takes over a reservation that an earlier attempt of the task left
        unsettled, so a crash charges nothing twice. A run without a budget gets `default_limit`.
        """

    async def settle_usage(self, usage: Usage) -> bool:
        """Replace the reservation (by `usage.id`) by tokens and actual cost; return False if it was settled before."""

    async def list_usage(self, run_id: str) -> list[Usage]:
        """Return all requests of the run, oldest first."""
