"""Statements of the caller in a held transaction: only those that leave Treadle's tables and the transaction alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import apsw

from treadle.model.errors import InvalidInput, Refused
from treadle.stores.sqlite.connection.connect import writing
from treadle.stores.sqlite.connection.schema import own_names
from treadle.stores.statements import load_statements

Values = Sequence[Any] | Mapping[str, Any]

_SQL = load_statements(__package__, "held.sql")

_WRITES = {
    apsw.SQLITE_INSERT: 0,
    apsw.SQLITE_UPDATE: 0,
    apsw.SQLITE_DELETE: 0,
    apsw.SQLITE_DROP_TABLE: 0,
    apsw.SQLITE_DROP_VIEW: 0,
    apsw.SQLITE_ALTER_TABLE: 1,
    apsw.SQLITE_CREATE_INDEX: 1,
    apsw.SQLITE_DROP_INDEX: 1,
    apsw.SQLITE_CREATE_TRIGGER: 1,
    apsw.SQLITE_DROP_TRIGGER: 1,
}
"""Operations that change a table, and which of the two names is the table's."""

_REFUSED = {
    apsw.SQLITE_TRANSACTION: "The block is one transaction, which Treadle begins and ends: raise an exception to roll it back",
    apsw.SQLITE_SAVEPOINT: "The block is one transaction without savepoints of your own",
    apsw.SQLITE_ATTACH: "Other databases cannot be attached to the store",
    apsw.SQLITE_DETACH: "Databases cannot be detached from the store",
    apsw.SQLITE_PRAGMA: "A pragma could change how the store keeps its data",
    apsw.SQLITE_CREATE_TEMP_TABLE: "A temporary table could hide one of Treadle's",
    apsw.SQLITE_CREATE_TEMP_VIEW: "A temporary view could hide one of Treadle's tables",
    apsw.SQLITE_CREATE_TEMP_TRIGGER: "Temporary triggers could change Treadle's tables",
    apsw.SQLITE_CREATE_TEMP_INDEX: "Temporary indexes are not supported here",
    apsw.SQLITE_DROP_TEMP_VIEW: "Temporary views are Treadle's own",
}

_SCHEMA = ("sqlite_master", "sqlite_schema", "sqlite_temp_master")


@cache
def _protected() -> frozenset[str]:
    return own_names() | {"sqlite_sequence"}


def run_statement(connection: apsw.Connection, statement: str, values: Values) -> list[tuple[Any, ...]]:
    """Execute statements of the caller, completely or not at all, and return the rows; raises `Refused` or `InvalidInput`."""
    created: list[str] = []

    def check(operation: int, first: str | None, second: str | None, database: str | None, inside: str | None) -> int:
        reason = _REFUSED.get(operation)
        if reason is None and operation in _WRITES:
            table = ((first, second)[_WRITES[operation]] or "").lower()
            if table in _protected() and not (operation == apsw.SQLITE_INSERT and table in _SCHEMA):
                reason = f"{table} is a table of Treadle's, which only Treadle may change"
        if reason is not None:
            raise Refused(f"{reason}.")
        if operation in (apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_ALTER_TABLE):
            created.append((second if operation == apsw.SQLITE_ALTER_TABLE else first) or "")
        return apsw.SQLITE_OK

    try:
        with writing(connection):
            connection.authorizer = check
            try:
                rows = connection.cursor().execute(statement, values, can_cache=False).fetchall()
            finally:
                connection.authorizer = None
            for table in created:
                for (target,) in connection.execute(_SQL["list_references"], {"table": table}):
                    if str(target).lower() in _protected():
                        raise Refused(
                            f"{table} refers to {target}, a table of Treadle's, whose rows it would keep from being pruned."
                        )
    except (apsw.SQLError, apsw.BindingsError, apsw.MismatchError, apsw.ConstraintError, TypeError) as error:
        raise InvalidInput(f"The statement cannot be executed: {error}.") from error
    return rows
