"""Budgets and usage of models, and the tasks of one run: what the PostgreSQL store promises in `kernel.store.usage`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

from treadle.model.usage import Budget, Reservation, Usage
from treadle.stores.postgres.connect import PACKAGE, Connection
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "usage.sql")


class UsageMethods:
    """Part of `PostgresStore`."""

    def _working(self) -> AbstractAsyncContextManager[Connection]:
        raise NotImplementedError

    def _reading(self) -> AbstractAsyncContextManager[Connection]:
        raise NotImplementedError

    async def set_budget(self, run_id: str, limit_micros: int | None) -> None:
        """What the run may spend; see the port."""
        async with self._working() as connection:
            await connection.execute(_SQL["set_budget"], run_id, limit_micros)

    async def forget_budget(self, run_id: str) -> None:
        """Take a budget back; see the port."""
        async with self._working() as connection:
            await connection.execute(_SQL["forget_budget"], run_id)

    async def find_budget(self, run_id: str) -> Budget | None:
        """The run's budget."""
        async with self._reading() as connection:
            return await _budget(connection, "find_budget", run_id)

    async def reserve_usage(self, usage: Usage, default_limit: int | None) -> Reservation:
        """Set money aside for a request; see the port."""
        async with self._working() as connection, connection.transaction():
            await connection.execute(_SQL["ensure_budget"], usage.run_id, default_limit)
            await _budget(connection, "lock_budget", usage.run_id)
            granted = await _reserve(connection, usage)
            return Reservation(granted, await _budget(connection, "find_budget", usage.run_id) or Budget(default_limit))

    async def settle_usage(self, usage: Usage) -> bool:
        """The real cost instead of the reservation; see the port."""
        tokens = (usage.input_tokens, usage.output_tokens, usage.cache_write_tokens, usage.cache_read_tokens)
        async with self._working() as connection, connection.transaction():
            await _budget(connection, "lock_budget", usage.run_id)
            reserved = await connection.fetchval(_SQL["settle_usage"], usage.id, usage.cost_micros, *tokens)
            if reserved is None:
                return False
            await connection.execute(_SQL["correct"], usage.run_id, usage.cost_micros - reserved)
            return True

    async def list_usage(self, run_id: str) -> list[Usage]:
        """All requests of the run."""
        async with self._reading() as connection:
            return _rows(await connection.fetch(_SQL["list_usage"], run_id))

    async def claim_of_run(self, run_id: str, kind: str, owner_id: str, lease_for: int, limit: int) -> list[str]:
        """Take ready tasks of the run; see the port."""
        async with self._working() as connection:
            rows = await connection.fetch(_SQL["claim_of_run"], run_id, owner_id, lease_for, limit, kind)
            return [str(row[0]) for row in rows]


async def _reserve(connection: Connection, usage: Usage) -> Usage | None:
    key = (usage.task_id, usage.attempt, usage.request_no)
    if known := _rows(await connection.fetch(_SQL["find_request"], *key)):
        return known[0]
    left = _rows(await connection.fetch(_SQL["find_left"], usage.task_id, usage.attempt))
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
    return _rows(await connection.fetch(_SQL["find_request"], *key))[0]


async def _budget(connection: Connection, name: str, run_id: str) -> Budget | None:
    row = await connection.fetchrow(_SQL[name], run_id)
    return None if row is None else Budget(row[0], row[1])


def _rows(rows: Iterable[Any]) -> list[Usage]:
    found: list[dict[str, Any]] = [
        {name: str(each) if isinstance(each, UUID) else each for name, each in row.items()} for row in rows
    ]
    return [Usage(**values) for values in found]
