"""Budgets and model usage of runs."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from treadle.model.usage import Budget, Reservation, Usage
from treadle.stores.shared import Budgets
from treadle.stores.sqlite.connection.connect import fetch_as
from treadle.stores.sqlite.database import Part, writes
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "usage.sql")


class UsageLedger(Part, Budgets):
    """The `UsageStore` of SQLite."""

    @writes
    def reserve(self, connection: apsw.Connection, usage: Usage, default_limit: int | None) -> Reservation:
        connection.execute(_SQL["ensure_budget"], {"run_id": usage.run_id, "limit_micros": default_limit})
        granted = _reserve(connection, msgspec.structs.replace(usage, at=self._database.now()))
        return Reservation(granted, _budget(connection, usage.run_id) or Budget(default_limit))

    @writes
    def settle(self, connection: apsw.Connection, usage: Usage) -> bool:
        values = msgspec.structs.asdict(usage) | {"at": self._database.now()}
        found: list[Any] = connection.execute(_SQL["settle_usage"], values).fetchall()
        for run_id, reserved in found:
            connection.execute(_SQL["correct"], {"run_id": run_id, "more": usage.cost_micros - reserved})
        return bool(found)


def _reserve(connection: apsw.Connection, usage: Usage) -> Usage | None:
    values = msgspec.structs.asdict(usage)
    if known := fetch_as(connection, Usage, _SQL["find_request"], values):
        return known[0]
    left = fetch_as(connection, Usage, _SQL["find_left"], values)
    more = usage.reserved_micros - (left[0].reserved_micros if left else 0)
    connection.execute(_SQL["spend"], {"run_id": usage.run_id, "more": more})
    if not connection.changes():
        return None
    if left:
        connection.execute(_SQL["take_over"], values | {"id": left[0].id})
    else:
        connection.execute(_SQL["insert_usage"], values)
    return fetch_as(connection, Usage, _SQL["find_request"], values)[0]


def _budget(connection: apsw.Connection, run_id: str) -> Budget | None:
    found: list[Any] = connection.execute(_SQL["find_budget"], {"run_id": run_id}).fetchall()
    return Budget(*found[0]) if found else None
