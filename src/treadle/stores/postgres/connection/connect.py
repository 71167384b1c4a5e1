"""Connections to one database: their settings, a pool that discards broken ones, and encodings of columns."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from ssl import SSLCertVerificationError
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import UUID

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from treadle.model.errors import InvalidStoreUrl
from treadle.stores.postgres.connection.address import DatabaseAddress, DatabaseServer
from treadle.stores.postgres.connection.failover import ServerSearch, SplitBrain, Standing
from treadle.stores.statements import load_statements

if TYPE_CHECKING:
    _Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection

T = TypeVar("T")

STATEMENT_TIMEOUT_FOR = 15_000
"""The longest time in milliseconds for a statement, or a pause inside a transaction (D9)."""

_CONNECT_TIMEOUT = 10.0
_COMMAND_TIMEOUT = 20.0
_CLOSE_TIMEOUT = 2.0
_LOOK_TIMEOUT = 3.0

_COMMON = {
    "jit": "off",
    "max_parallel_workers_per_gather": "0",  # to start workers takes longer than most statements, and others need the cores
    "default_transaction_isolation": "read committed",
    "statement_timeout": str(STATEMENT_TIMEOUT_FOR),
    "idle_in_transaction_session_timeout": str(STATEMENT_TIMEOUT_FOR),
}

HOT = _COMMON | {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
}
"""For statements that touch few rows of large tables: planned once, always with their index, independent of statistics."""

READS = _COMMON | {"plan_cache_mode": "force_custom_plan", "enable_seqscan": "on"}
"""For lists and counts, which need another plan in each call."""

LISTS = READS | {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
"""For lists of partitioned tables: to plan them for each call takes longer than to read a page, the longer the more partitions."""

SIGNALS = _COMMON | {"synchronous_commit": "off"}
"""For NOTIFY, which may be lost and need not wait for a disk."""

SESSION = SIGNALS | {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "11000",
}
"""For the session that ends with its process: the database finds within about ten seconds that a machine has vanished."""

_CLOCK = "treadle.clock_offset_ms"
_SQL = load_statements(__package__, "connect.sql")


class PostgresConnection(_Connection):
    """A connection that knows its settings, its clock offset and its event loop.

    If a commit may be under way, a statement that takes too long or is canceled ends the connection, before the driver requests its
    cancellation: PostgreSQL answers the cancellation of a commit that waits for a standby by completing it without the standby, so
    that others see, and may acknowledge, a commit that a failover loses. Abandoned, it stays invisible until the standby has it.
    """

    clock_offset_for = 0
    settings: dict[str, str]
    """The settings in force, without those of a transaction."""
    standing: Standing
    event_loop: asyncio.AbstractEventLoop
    for_commits = True
    """Whether a commit may be under way."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        return await self._end_if_abandoned(super().execute(query, *args, timeout=timeout))

    async def fetch(self, query: str, *args: Any, **options: Any) -> list[asyncpg.Record]:  # type: ignore[override]
        return await self._end_if_abandoned(super().fetch(query, *args, **options))

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> asyncpg.Record | None:  # type: ignore[override]
        return await self._end_if_abandoned(super().fetchrow(query, *args, **options))

    async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._end_if_abandoned(super().fetchval(query, *args, **options))

    async def executemany(self, command: str, args: Iterable[Sequence[Any]], **options: Any) -> None:
        await self._end_if_abandoned(super().executemany(command, args, **options))

    async def _end_if_abandoned(self, statement: Awaitable[T]) -> T:
        try:
            return await statement
        except (asyncio.CancelledError, TimeoutError):
            if self.for_commits:
                self.terminate()
            raise


class Connector:
    """Opens connections to the server of the address that may be used, and keeps them on the same clock.

    Host names are resolved for each connection. Connections of several threads and event loops come from one connector.
    """

    def __init__(self, address: DatabaseAddress) -> None:
        self.address = address
        self.clock_offset_for = 0
        self._primary: dict[bool, DatabaseServer] = {}
        """The server that was used last, of those to use with (True) and without `direct`."""
        self._opened: weakref.WeakSet[PostgresConnection] = weakref.WeakSet()
        self._lock = threading.Lock()

    async def connect(
        self, settings: dict[str, str], *, direct: bool = False, timeout: float = _COMMAND_TIMEOUT
    ) -> PostgresConnection:
        """Open a connection with these settings and `timeout` seconds for each statement.

        `direct` bypasses PgBouncer if the URL has a `direct_url`. Raises `StoreUnavailable` if no server may be used: each is
        a standby, was overtaken by a failover, or cannot be reached.
        """
        self._primary[direct], connection = await self._search(settings, direct=direct, timeout=timeout).find(
            self._primary.get(direct)
        )

        def ask_all_next(_: object) -> None:  # the connection may have ended because of a failover
            self._primary.pop(direct, None)

        connection.add_termination_listener(ask_all_next)
        with self._lock:
            self._opened.add(connection)
        return connection

    async def look_around(self) -> None:
        """Ask all servers of the URL for their timelines; end all connections to one that a failover has overtaken.

        Raises `StoreUnavailable` if no server may be used. If that is because several servers take writes and no failover
        orders them (`SplitBrain`), all connections end.
        """
        split = False
        try:
            search = self._search(SIGNALS, direct=False, timeout=_LOOK_TIMEOUT)
            self._primary[False], connection = await search.find(None)
            await close_connection(connection)
        except SplitBrain:
            split = True
            self._primary.clear()
            raise
        finally:
            self._retire(everything=split)

    def _retire(self, *, everything: bool) -> None:
        """End the connections that may not be used any more, each in its own event loop."""
        with self._lock:
            opened = list(self._opened)
        for connection in opened:
            if not connection.is_closed() and (everything or connection.standing.overtaken):
                with suppress(RuntimeError):  # its loop is closed
                    connection.event_loop.call_soon_threadsafe(connection.terminate)

    def _search(self, settings: dict[str, str], *, direct: bool, timeout: float) -> ServerSearch:
        servers = self.address.direct_servers if direct else self.address.servers
        pooled = self.address.pgbouncer and not direct
        return ServerSearch(
            self.address.shown, servers, self.address.target, lambda server: self._open(server, settings, pooled, timeout)
        )

    async def _open(self, server: DatabaseServer, settings: dict[str, str], pooled: bool, timeout: float) -> PostgresConnection:
        limit = min(timeout, _CONNECT_TIMEOUT)
        try:
            async with asyncio.timeout(limit):
                return await self._log_in(server, settings, pooled, timeout)
        except TimeoutError as error:
            raise ConnectionError(error.strerror or f"no answer within {limit:g} s") from None

    async def _log_in(self, server: DatabaseServer, settings: dict[str, str], pooled: bool, timeout: float) -> PostgresConnection:
        try:
            connection: PostgresConnection = await asyncpg.connect(
                server.dsn,
                command_timeout=timeout,
                statement_cache_size=0 if pooled else 100,
                max_cached_statement_lifetime=0,
                connection_class=PostgresConnection,
                server_settings=None if pooled else settings | {"search_path": self.address.schema},
                target_session_attrs=SessionAttribute.any,
            )
        except SSLCertVerificationError:  # a ValueError too
            raise
        except ValueError:
            raise InvalidStoreUrl(
                "The store URL cannot be used; it looks like postgresql://user:password@host:5432/database."
            ) from None
        connection.settings, connection.event_loop = settings, asyncio.get_running_loop()
        connection.for_commits = settings is not READS and settings is not LISTS
        try:
            connection.standing = await _identify(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def suits(self, connection: PostgresConnection, settings: dict[str, str]) -> bool:
        """Whether all settings are applied, so that the connection can be used without `session`."""
        return (
            connection.settings is settings and connection.clock_offset_for == self.clock_offset_for and not self.address.pgbouncer
        )

    @asynccontextmanager
    async def session(self, connection: PostgresConnection, settings: dict[str, str]) -> AsyncIterator[None]:
        """Use the connection with these settings, which override those before; behind PgBouncer that takes a transaction."""
        wanted = settings | {_CLOCK: str(self.clock_offset_for)}
        if self.address.pgbouncer:
            local = wanted | {"search_path": self.address.schema}
            async with connection.transaction():
                await connection.execute(_SQL["set_local"], list(local), list(local.values()))
                yield
            return
        if not self.suits(connection, settings):
            offset = self.clock_offset_for
            await connection.execute(_SQL["set_session"], list(wanted), list(wanted.values()))
            connection.settings, connection.clock_offset_for = settings, offset
        yield


async def _identify(connection: PostgresConnection) -> Standing:
    """Return the standing of the server, in a transaction: a pooler may use another server for each."""
    with suppress(asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError, asyncpg.FeatureNotSupportedError):
        async with connection.transaction():
            return Standing(**dict(await connection.fetchrow(_SQL["identify"]) or {}))
    async with connection.transaction():
        return Standing(**dict(await connection.fetchrow(_SQL["identify_roughly"]) or {}))


async def close_connection(connection: PostgresConnection) -> None:
    """Close the connection, or terminate it if that takes too long."""
    try:
        await connection.close(timeout=_CLOSE_TIMEOUT)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


def sparse(values: list[T]) -> list[T]:
    """Return a column for `unnest`, empty if all values are None: `unnest` pads with nulls, which is cheaper."""
    return [] if values.count(None) == len(values) else values  # type: ignore[arg-type]


def texts(row: asyncpg.Record) -> dict[str, Any]:
    """Return the row with its ids as text, the form that code above the store uses."""
    return {name: str(value) if isinstance(value, UUID) else value for name, value in row.items()}


def plain(values: Iterable[object]) -> str:
    """Return a column of ids or numbers as the text of an array (`$1::text::uuid[]`), which the driver sends faster than a list."""
    return "{" + ",".join(map(str, values)) + "}"


def words(values: Sequence[object]) -> str:
    """Return a column of short texts or numbers, some of them null, as the text of an array; empty if all are None."""
    if values.count(None) == len(values):
        return "{}"
    column = "{" + ",".join(["null" if value is None else f'"{value}"' for value in values]) + "}"
    if "\\" in column or column.count('"') != 2 * (len(values) - values.count(None)):
        escaped = [None if value is None else str(value).replace("\\", "\\\\").replace('"', '\\"') for value in values]
        column = "{" + ",".join(["null" if value is None else f'"{value}"' for value in escaped]) + "}"
    return column


def row_count(status: str) -> int:
    """Return the number of rows that a command changed, from its tag: 250 for `INSERT 0 250`."""
    return int(status.rpartition(" ")[2])


class Pool:
    """Up to `size` connections, opened when needed; the most recently used one is reused first."""

    def __init__(self, connector: Connector, settings: dict[str, str], size: int) -> None:
        self._connector, self._settings = connector, settings
        self._idle: list[PostgresConnection] = []
        self._used: set[PostgresConnection] = set()
        self._room = asyncio.Semaphore(size)
        self._closed = False

    @asynccontextmanager
    async def connection(self, settings: dict[str, str] | None = None) -> AsyncIterator[PostgresConnection]:
        """Lend a connection with these settings, or those of the pool; discard it if an error left its state unknown."""
        settings = settings or self._settings
        async with self._room:
            connection = await self._take(settings)
            self._used.add(connection)
            sound = False
            try:
                if self._connector.suits(connection, settings):
                    yield connection
                else:
                    async with self._connector.session(connection, settings):
                        yield connection
                sound = True
            except asyncpg.ReadOnlySQLTransactionError:  # perhaps a primary that has become a standby: look for the new one
                raise
            except asyncpg.PostgresError:
                sound = not connection.is_closed() and not connection.is_in_transaction()
                raise
            finally:
                self._used.discard(connection)
                if sound and not self._closed and not connection.is_closed():
                    self._idle.append(connection)
                else:
                    connection.terminate()

    async def _take(self, settings: dict[str, str]) -> PostgresConnection:
        while self._idle:
            last = range(len(self._idle) - 1, -1, -1)
            connection = self._idle.pop(next((at for at in last if self._idle[at].settings is settings), -1))
            if connection.standing.overtaken:
                connection.terminate()
            elif not connection.is_closed():
                return connection
        return await self._connector.connect(settings)

    async def close(self) -> None:
        """Close idle connections and terminate those in use, including those still being opened; idempotent."""
        self._closed = True
        for connection in self._used:
            connection.terminate()
        while self._idle:
            await close_connection(self._idle.pop())
