"""The PostgreSQL store on a connection that belongs to the caller: everything it writes is part of the caller's transaction."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, NamedTuple, TypeVar

import asyncpg

from treadle.kernel.store.ports import TransactionStore
from treadle.kernel.store.units import Unit, UnitAnswer
from treadle.model.clock import Clock
from treadle.model.errors import InvalidInput, NotOpen, StoreBusy, StoreError, StoreUnavailable, Unsupported
from treadle.stores.commit import commit
from treadle.stores.postgres.connection.address import parse_address
from treadle.stores.postgres.connection.connect import PostgresConnection
from treadle.stores.postgres.connection.errors import REPEATABLE, translated
from treadle.stores.postgres.database import PostgresDatabase, PostgresSession
from treadle.stores.postgres.store import PostgresStore
from treadle.stores.rules.encoding import format_queues
from treadle.stores.statements import load_statements

_PARAMETER = re.compile(r"\$(\d+)")
_names = count(1)


class Result(NamedTuple):
    """The rows of a statement, the names of their columns, and the command tag."""

    names: Sequence[str]
    rows: Sequence[tuple[Any, ...]]
    tag: str


Run = Callable[[str, list[str | None]], Awaitable[Result]]


class NamedRow(tuple[Any, ...]):
    """A row with access by position and by name, as rows of asyncpg have."""

    names: Sequence[str]

    def __getitem__(self, place: Any) -> Any:
        return super().__getitem__(self.names.index(place) if isinstance(place, str) else place)

    def keys(self) -> Sequence[str]:
        """Return the names of the columns."""
        return self.names

    def items(self) -> Iterator[tuple[str, Any]]:
        """Return names and values."""
        return zip(self.names, self, strict=True)


class DriverConnection:
    """A connection of a driver that is not asyncpg; `in_transaction` returns whether a transaction is open."""

    def __init__(self, run: Run, in_transaction: Callable[[], bool]) -> None:
        self._run, self.is_in_transaction = run, in_transaction

    async def fetch(self, statement: str, *values: object) -> list[NamedRow]:
        """Execute the statement and return its rows."""
        result = await self._execute(statement, values)
        rows = [NamedRow(row) for row in result.rows]
        for row in rows:
            row.names = result.names
        return rows

    async def fetchrow(self, statement: str, *values: object) -> NamedRow | None:
        """Execute the statement and return its first row."""
        rows = await self.fetch(statement, *values)
        return rows[0] if rows else None

    async def fetchval(self, statement: str, *values: object) -> Any:
        """Execute the statement and return the first value of its first row."""
        row = await self.fetchrow(statement, *values)
        return None if row is None else row[0]

    async def execute(self, statement: str, *values: object) -> str:
        """Execute the statement and return its command tag."""
        return (await self._execute(statement, values)).tag

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Run the block in a savepoint, or in a transaction if none is open."""
        name = f"treadle_{next(_names)}"
        nested = self.is_in_transaction()
        await self._command(f"savepoint {name}" if nested else "begin")
        try:
            yield
        except BaseException:
            await self._command(f"rollback to savepoint {name}; release savepoint {name}" if nested else "rollback")
            raise
        await self._command(f"release savepoint {name}" if nested else "commit")

    async def _command(self, commands: str) -> None:
        for command in commands.split("; "):
            await self._execute(command, ())

    async def _execute(self, statement: str, values: Sequence[object]) -> Result:
        try:
            return await self._run(statement, [as_text(value) for value in values])
        except Exception as error:
            raise _as_asyncpg(error) from error


def as_text(value: object) -> str | None:
    """Return a parameter as the text that PostgreSQL reads for its type."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case bytes():
            return f"\\x{value.hex()}"
        case list() | tuple():
            return "{" + ",".join(map(_element, value)) + "}"
        case _:
            return str(value)


def _element(value: object) -> str:
    text = as_text(value)
    if text is None or isinstance(value, list | tuple):
        return text or "null"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _as_asyncpg(error: Exception) -> Exception:
    """Return asyncpg's error for an SQLSTATE; a connection that is lost or closed has none, and other errors stay."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    message = str(error).strip().partition("\n")[0]
    if state is not None:
        translation: Exception = asyncpg.PostgresError.new({"C": str(state), "M": message})
        return translation
    if type(error).__name__ in ("OperationalError", "InterfaceError"):
        return asyncpg.InterfaceError(message)
    return error


# adapters


def adapt_psycopg(connection: Any) -> DriverConnection:
    """Adapt a blocking or an async connection of psycopg 3."""
    import psycopg
    from psycopg.pq import TransactionStatus
    from psycopg.rows import tuple_row

    is_async = isinstance(connection, psycopg.AsyncConnection)
    make = psycopg.AsyncRawCursor if is_async else psycopg.RawCursor

    async def run(statement: str, values: list[str | None]) -> Result:
        cursor: Any = make(connection, row_factory=tuple_row)
        try:
            executed = cursor.execute(statement, values or None)
            if is_async:
                await executed
            if not cursor.description:
                return Result((), (), cursor.statusmessage or "")
            rows: Any = cursor.fetchall()
            return Result([column.name for column in cursor.description], await rows if is_async else rows, cursor.statusmessage)
        finally:
            closed = cursor.close()
            if is_async:
                await closed

    return DriverConnection(run, lambda: connection.info.transaction_status != TransactionStatus.IDLE)


def adapt_psycopg2(connection: Any) -> DriverConnection:
    """Adapt a connection of psycopg2, which replaces parameters by quoted text on its side."""

    async def run(statement: str, values: list[str | None]) -> Result:
        with connection.cursor() as cursor:
            if values:
                named = {f"p{number}": value for number, value in enumerate(values, 1)}
                cursor.execute(_PARAMETER.sub(r"%(p\1)s", statement.replace("%", "%%")), named)
            else:
                cursor.execute(statement)
            names = [column[0] for column in cursor.description or ()]
            return Result(names, cursor.fetchall() if names else [], cursor.statusmessage or "")

    return DriverConnection(run, lambda: connection.info.transaction_status != 0)


_BEGIN = "select 1"
"""Starts the transaction of a session that begins one with its first statement."""


def beneath_django(connection: Any) -> Any:
    """Return the driver's connection of a connection of Django, which refuses to connect while an event loop runs."""
    if not (hasattr(connection, "ensure_connection") and hasattr(connection, "vendor")):
        return connection
    _refuse_other(connection.vendor)
    connection.ensure_connection()
    return connection.connection


async def adapt(connection: Any) -> Any:
    """Return the caller's connection with the methods of asyncpg's; raises `Unsupported` for a driver that is not known."""
    package = type(connection).__module__.partition(".")[0]
    if package == "sqlalchemy":
        return await adapt(await _beneath_sqlalchemy(connection))
    match package:
        case "asyncpg":
            return connection
        case "psycopg":
            return adapt_psycopg(connection)
        case "psycopg2":
            return adapt_psycopg2(connection)
        case "sqlite3" | "apsw" | "aiosqlite":
            _refuse_other("sqlite")
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise InvalidInput(
        f"A {kind} is not a connection that Treadle knows: pass one of asyncpg, psycopg, SQLAlchemy (also a session) or Django."
    )


async def _beneath_sqlalchemy(connection: Any) -> Any:
    """Return the driver's connection of a SQLAlchemy connection or session, in its transaction."""
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(connection, AsyncSession | AsyncConnection):
        inner = await connection.connection() if isinstance(connection, AsyncSession) else connection
        _refuse_other(inner.dialect.name)
        await inner.execute(text(_BEGIN))
        return (await inner.get_raw_connection()).driver_connection
    beneath = connection.connection() if isinstance(connection, Session | scoped_session) else connection
    if not hasattr(beneath, "dialect") or not hasattr(beneath, "connection"):
        raise InvalidInput(f"Pass a SQLAlchemy connection or session, not its {type(connection).__name__}.")
    _refuse_other(beneath.dialect.name)
    beneath.execute(text(_BEGIN))
    return beneath.connection.driver_connection


def _refuse_other(dialect: str) -> None:
    if dialect != "postgresql":
        raise Unsupported(
            f"The caller's transaction needs PostgreSQL, not {dialect}: a SQLite file has one writer, which another connection "
            "cannot join. On a SQLite store, write in Treadle's transaction: `async with engine.transaction() as tx`."
        )


T = TypeVar("T")

_SQL = load_statements(__package__, "caller_transaction.sql")
_TRIES = 3


class CallerTransactionDatabase(PostgresDatabase):
    """A database whose only connection belongs to the caller, while the caller's transaction runs."""

    connection: PostgresConnection | None = None

    @asynccontextmanager
    async def borrow(self, mode: str | None = "hot") -> AsyncIterator[PostgresConnection]:
        if self.connection is None:
            raise NotOpen
        try:
            with translated(self.url):
                yield self.connection
        except StoreUnavailable as error:  # nobody can repeat it on this connection
            raise StoreError(str(error)) from error


class PostgresCallerTransaction(PostgresStore, TransactionStore):
    """A store for the calls inside `transact`; it has no connections of its own and is never opened.

    With `notify`, the caller's commit wakes waiting workers.
    """

    parallel_commits = 1

    def __init__(self, url: str, connection: Any, *, clock: Clock, notify: bool = False) -> None:
        self._caller = CallerTransactionDatabase(parse_address(url), clock)
        super().__init__(url, clock=clock, database=self._caller)
        self._connection = beneath_django(connection)
        self._notify = notify
        self._ready: set[int] = set()

    async def transact(self, operate: Callable[[], Awaitable[T]]) -> T:
        """Run the operation on the connection: completely, or not at all if it raises, and the transaction stays usable.

        Outside a transaction, the operation is one by itself. Repeats an operation that met a concurrent change.
        """
        connection: Any = await adapt(self._connection)
        for tried in range(1, _TRIES + 1):
            try:
                async with self._session(connection):
                    return await operate()
            except StoreBusy:
                if tried == _TRIES:
                    raise
        raise AssertionError

    @asynccontextmanager
    async def _session(self, connection: Any) -> AsyncIterator[None]:
        with translated(self.url):
            path = await connection.fetchval(_SQL["search_path"])
            self._ready.clear()
            async with connection.transaction():
                await connection.fetchval(_SQL["set_path"], self._database.address.schema)
                if self._database.connector.clock_offset_for:
                    await connection.fetchval(_SQL["set_clock"], str(self._database.connector.clock_offset_for))
                self._caller.connection = connection
                try:
                    yield
                finally:
                    self._caller.connection = None
                if self._notify and self._ready:
                    await connection.fetchval(_SQL["notify"], self._database.address.channel, format_queues(sorted(self._ready)))
                await connection.fetchval(_SQL["set_path"], path)

    async def commit(self, units: Sequence[Unit]) -> list[UnitAnswer]:
        if not units:
            return []
        queues = {task.queue for unit in units for task in unit.tasks}
        if queues:
            await self._database.find_queue_ids(list(queues))
        async with self._database.borrow() as connection:
            try:
                return await commit(PostgresSession(connection), self._database.queue_ids, units)
            except REPEATABLE as error:
                raise StoreBusy("Another transaction changed the same rows: roll back and repeat yours.") from error

    async def notify(self, queue_ids: Sequence[int]) -> None:
        """Note the queues for the signal that is sent with the transaction."""
        self._ready.update(queue_ids)
