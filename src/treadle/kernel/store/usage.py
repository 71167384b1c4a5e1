"""The port for budgets and model usage of runs, written once above all stores."""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.kernel.store.database import Port, Statements, writes
from treadle.model.usage import Budget, Reservation, Usage


class UsageStore(Port):
    """Budgets and usage of runs. All rows are pruned with their run."""

    async def set_budget(self, run_id: str, limit_micros: int | None) -> None:
        """Set the run's total budget (None: unlimited); may be called before the run exists."""
        await self._database.execute("set_budget", run_id=run_id, limit_micros=limit_micros)

    async def forget_budget(self, run_id: str) -> None:
        """Remove the budget of a run that was never created; a no-op if an amount was reserved under it."""
        await self._database.execute("forget_budget", run_id=run_id)

    async def find_budget(self, run_id: str) -> Budget | None:
        """Return the run's budget, or None if none was set and nothing was reserved."""
        rows = await self._database.fetch("find_budget", run_id=run_id)
        return Budget(*rows[0]) if rows else None

    async def list_requests(self, run_id: str) -> list[Usage]:
        """Return all requests of the run, oldest first."""
        return await self._database.fetch_as(Usage, "list_usage", run_id=run_id)

    @writes
    async def reserve(self, session: Any, usage: Usage, default_limit: int | None) -> Reservation:
        """Reserve `usage.reserved_micros` for a request if the committed total stays within the run's budget.

        Atomic: concurrent calls never reserve more than the budget. Idempotent on (task, attempt, request number): a
        second call returns the existing row. The call takes over a reservation that an earlier attempt of the task left
        unsettled, so a crash charges nothing twice. A run without a budget gets `default_limit`.
        """

        await session.execute("ensure_budget", run_id=usage.run_id, limit_micros=default_limit)
        await session.coordinate("lock_budget", run_id=usage.run_id)
        granted = await _reserve(session, usage)
        ((limit_micros, committed_micros),) = await session.fetch("find_budget", run_id=usage.run_id)
        return Reservation(granted, Budget(limit_micros, committed_micros))

    @writes
    async def settle(self, session: Any, usage: Usage) -> bool:
        """Replace the reservation (by `usage.id`) by tokens and actual cost; return False if it was settled before."""
        await session.coordinate("lock_budget", run_id=usage.run_id)
        settled = await session.fetch("settle_usage", **msgspec.structs.asdict(usage))
        for run_id, reserved in settled:
            await session.execute("correct_budget", run_id=run_id, more=usage.cost_micros - reserved)
        return bool(settled)


async def _reserve(session: Statements, usage: Usage) -> Usage | None:
    values: dict[str, Any] = msgspec.structs.asdict(usage)
    if existing := await session.fetch_as(Usage, "find_request", **values):
        return existing[0]
    unused = await session.fetch_as(Usage, "find_left", **values)
    more = usage.reserved_micros - (unused[0].reserved_micros if unused else 0)
    if not await session.execute("spend_budget", run_id=usage.run_id, more=more):
        return None
    if unused:
        await session.execute("take_over_request", **values | {"id": unused[0].id})
    else:
        await session.execute("insert_usage", **values)
    return (await session.fetch_as(Usage, "find_request", **values))[0]
