"""Retention: rows are removed one by one, and free pages returned to the file system."""

from __future__ import annotations

from treadle.kernel.store.database import uses
from treadle.kernel.store.queries import Pruned, Rules
from treadle.model.errors import Unsupported
from treadle.stores.retention import RetentionPort
from treadle.stores.sqlite.connection.connect import read_row
from treadle.stores.sqlite.database import SqliteSession
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "retention.sql")

SLACK = 1000
"""The minimum number of free pages that a file keeps, because it will need them again."""


class SqliteRetention(RetentionPort):
    """The `RetentionStore` of SQLite."""

    async def prepare(self, rules: Rules) -> None:
        """Do nothing: all rows are in one table."""

    async def drop_expired(self, rules: Rules, limit: int) -> Pruned:
        """Do nothing: rows are removed one by one."""
        return Pruned()

    @uses
    async def compact(self, session: SqliteSession, *, whole: bool = False, tight: bool = False) -> int:
        connection = session.connection
        pages, free, mode = read_row(connection, _SQL["count_free"])
        if whole:  # a file that was created without incremental vacuum gets it when it is rewritten
            connection.pragma("auto_vacuum", "incremental")
            connection.execute(_SQL["vacuum"])
        elif tight and not mode:
            raise Unsupported(
                "The file was created by an early version and cannot be compacted in steps: "
                "stop the workers and run `treadle store prune --compact` once, which rewrites it."
            )
        elif mode and free > (0 if tight else max(SLACK, pages // 10)):
            connection.execute(_SQL["vacuum_some"]).fetchall()
        else:
            return 0
        return int((pages - read_row(connection, _SQL["count_free"])[0]) * connection.pragma("page_size"))
