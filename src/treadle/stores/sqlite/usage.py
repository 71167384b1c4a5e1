"""Budgets and usage of models, and the tasks of one run: what the SQLite store promises in `kernel.store.usage`."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from treadle.model.clock import Clock
from treadle.model.usage import Budget, Reservation, Usage
from treadle.stores.sqlite.channel import Channel
from treadle.stores.sqlite.connection import writing
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "usage.sql")


class UsageMethods:
    """Part of `SqliteStore`."""

    _clock: Clock
    _writer: Channel
    _reader: Channel

    async def set_budget(self, run_id: str, limit_micros: int | None) -> None:
        """What the run may spend; see the port."""
        await self._write("set_budget", {"run_id": run_id, "limit_micros": limit_micros})

    async def forget_budget(self, run_id: str) -> None:
        """Take a budget back; see the port."""
        await self._write("forget_budget", {"run_id": run_id})

    async def _write(self, name: str, values: dict[str, Any]) -> None:
        def work(connection: apsw.Connection) -> None:
            with writing(connection):
                connection.execute(_SQL[name], values)

        await self._writer.call(work)

    async def find_budget(self, run_id: str) -> Budget | None:
        """The run's budget."""
        return await self._reader.call(lambda connection: _budget(connection, run_id))

    async def reserve_usage(self, usage: Usage, default_limit: int | None) -> Reservation:
        """Set money aside for a request; see the port."""

        def work(connection: apsw.Connection) -> Reservation:
            with writing(connection):
                connection.execute(_SQL["ensure_budget"], {"run_id": usage.run_id, "limit_micros": default_limit})
                granted = _reserve(connection, msgspec.structs.replace(usage, at=self._clock.now()))
                return Reservation(granted, _budget(connection, usage.run_id) or Budget(default_limit))

        return await self._writer.call(work)

    async def settle_usage(self, usage: Usage) -> bool:
        """The real cost instead of the reservation; see the port."""
        values = msgspec.structs.asdict(usage) | {"at": self._clock.now()}

        def work(connection: apsw.Connection) -> bool:
            with writing(connection):
                found: list[Any] = connection.execute(_SQL["settle_usage"], values).fetchall()
                for run_id, reserved in found:
                    connection.execute(_SQL["correct"], {"run_id": run_id, "more": usage.cost_micros - reserved})
                return bool(found)

        return await self._writer.call(work)

    async def list_usage(self, run_id: str) -> list[Usage]:
        """All requests of the run."""
        return await self._reader.call(lambda connection: _rows(connection, "list_usage", {"run_id": run_id}))

    async def claim_of_run(self, run_id: str, kind: str, owner_id: str, lease_for: int, limit: int) -> list[str]:
        """Take ready tasks of the run; see the port."""
        values = {"run_id": run_id, "kind": kind, "owner_id": owner_id, "lease_for": lease_for, "limit": limit}
        values["now"] = self._clock.now()

        def work(connection: apsw.Connection) -> list[str]:
            with writing(connection):
                return [str(row[0]) for row in connection.execute(_SQL["claim_of_run"], values).fetchall()]

        return await self._writer.call(work)


def _reserve(connection: apsw.Connection, usage: Usage) -> Usage | None:
    values = msgspec.structs.asdict(usage)
    if known := _rows(connection, "find_request", values):
        return known[0]
    left = _rows(connection, "find_left", values)
    more = usage.reserved_micros - (left[0].reserved_micros if left else 0)
    connection.execute(_SQL["spend"], {"run_id": usage.run_id, "more": more})
    if not connection.changes():
        return None
    if left:
        connection.execute(_SQL["take_over"], values | {"id": left[0].id})
    else:
        connection.execute(_SQL["insert_usage"], values)
    return _rows(connection, "find_request", values)[0]


def _budget(connection: apsw.Connection, run_id: str) -> Budget | None:
    found: list[Any] = connection.execute(_SQL["find_budget"], {"run_id": run_id}).fetchall()
    return Budget(*found[0]) if found else None


def _rows(connection: apsw.Connection, name: str, values: dict[str, Any]) -> list[Usage]:
    cursor = connection.execute(_SQL[name], values)
    return [Usage(**dict(zip((column[0] for column in cursor.description), row, strict=True))) for row in cursor]
