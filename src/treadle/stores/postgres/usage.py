"""Budgets and model usage of runs."""

from __future__ import annotations

from treadle.model.usage import Budget, Reservation, Usage
from treadle.stores.postgres.connection.connect import Connection, fetch_as
from treadle.stores.postgres.database import Part, works
from treadle.stores.shared import Budgets
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "usage.sql")


class UsageLedger(Part, Budgets):
    """The `UsageStore` of PostgreSQL."""

    @works
    async def reserve(self, connection: Connection, usage: Usage, default_limit: int | None) -> Reservation:
        async with connection.transaction():
            await connection.execute(_SQL["ensure_budget"], usage.run_id, default_limit)
            await _budget(connection, "lock_budget", usage.run_id)
            granted = await _reserve(connection, usage)
            return Reservation(granted, await _budget(connection, "find_budget", usage.run_id) or Budget(default_limit))

    @works
    async def settle(self, connection: Connection, usage: Usage) -> bool:
        tokens = (usage.input_tokens, usage.output_tokens, usage.cache_write_tokens, usage.cache_read_tokens)
        async with connection.transaction():
            await _budget(connection, "lock_budget", usage.run_id)
            reserved = await connection.fetchval(_SQL["settle_usage"], usage.id, usage.cost_micros, *tokens)
            if reserved is None:
                return False
            await connection.execute(_SQL["correct"], usage.run_id, usage.cost_micros - reserved)
            return True


async def _reserve(connection: Connection, usage: Usage) -> Usage | None:
    key = (usage.task_id, usage.attempt, usage.request_no)
    if known := await fetch_as(connection, Usage, _SQL["find_request"], *key):
        return known[0]
    left = await fetch_as(connection, Usage, _SQL["find_left"], usage.task_id, usage.attempt)
    more = usage.reserved_micros - (left[0].reserved_micros if left else 0)
    if not await connection.fetch(_SQL["spend"], usage.run_id, more):
        return None
    if left:
        values = (left[0].id, usage.attempt, usage.request_no, usage.model, usage.reserved_micros)
        await connection.execute(_SQL["take_over"], *values)
    else:
        await connection.execute(
            _SQL["insert_usage"], usage.id, usage.run_id, usage.step_id, *key, usage.model, usage.reserved_micros
        )
    return (await fetch_as(connection, Usage, _SQL["find_request"], *key))[0]


async def _budget(connection: Connection, name: str, run_id: str) -> Budget | None:
    row = await connection.fetchrow(_SQL[name], run_id)
    return None if row is None else Budget(row[0], row[1])
