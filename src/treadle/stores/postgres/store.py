"""The PostgreSQL store: its parts, opening and closing, and signals."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

import asyncpg

from treadle.kernel.store.database import DeadLetterStore, LogStore, RecordStore, RunStore, StreamStore, TraceStore
from treadle.kernel.store.metrics import MetricsStore
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import check_process
from treadle.kernel.store.units import Row, Unit, UnitAnswer
from treadle.kernel.store.usage import UsageStore
from treadle.model.clock import Clock
from treadle.model.errors import NotOpen
from treadle.stores.commit import commit
from treadle.stores.postgres.connection import schema
from treadle.stores.postgres.connection.address import parse_address
from treadle.stores.postgres.connection.connect import HOT, READS, STATEMENT_TIMEOUT_FOR, Pool
from treadle.stores.postgres.connection.errors import REPEATABLE, translated
from treadle.stores.postgres.connection.failover import watch_timelines
from treadle.stores.postgres.connection.signals import ChannelNotifier, Listener
from treadle.stores.postgres.database import PostgresDatabase, PostgresSession
from treadle.stores.postgres.health import PostgresHealth
from treadle.stores.postgres.namespaces import PostgresNamespaces
from treadle.stores.postgres.partitions import PostgresRetention
from treadle.stores.postgres.search import PostgresSearch
from treadle.stores.postgres.servers import LivenessLocks, PostgresServers
from treadle.stores.postgres.tasks import PostgresTasks, read_clock
from treadle.stores.shared import OperatorPort

COMMIT_TIMEOUT = STATEMENT_TIMEOUT_FOR / 1000
"""Seconds after which the store gives up a commit, to be sent again: followers of events wait no longer for a seq (D9)."""

_REPEATS = 3


class PostgresStore(Store):
    """A `Store` on a schema of a PostgreSQL database (13 or newer).

    Uses up to `pool_size` connections for work, two for lists, one each to listen (and hold liveness locks) and to notify, and one
    for each lease connection. With several hosts in the URL, it also connects to each of them for a moment every few seconds, to
    notice a failover. `url` has no password.
    """

    parallel_commits = 2

    def __init__(self, url: str, *, clock: Clock, pool_size: int = 4, database: PostgresDatabase | None = None) -> None:
        database = database or PostgresDatabase(parse_address(url), clock)
        self._database = database
        self.url = database.url
        self._pool_size = pool_size
        self._listener: Listener | None = None
        self._notifier: ChannelNotifier | None = None
        self._watching: asyncio.Task[None] | None = None
        self.tasks = PostgresTasks(database)
        self.dead_letters = DeadLetterStore(database)
        self.runs = RunStore(database)
        self.search = PostgresSearch(database)
        self.records = RecordStore(database)
        self.log = LogStore(database)
        self.servers = PostgresServers(database)
        self.operators = Operators(database)
        self.usage = UsageStore(database)
        self.metrics = MetricsStore(database)
        self.traces = TraceStore(database)
        self.streams = StreamStore(database)
        self.retention = PostgresRetention(database)
        self.namespaces = PostgresNamespaces(database)
        self.health = PostgresHealth(database)

    async def open(self, *, migrate: bool = True) -> None:
        database = self._database
        database.pid = os.getpid()
        database.reads = Pool(database.connector, READS, 2)
        try:
            async with database.borrow(None) as connection:
                version = await schema.read_version(connection)
            with translated(self.url):
                await schema.check_schema(database.connector, READS, version, migrate=migrate)
        except BaseException:
            await self.close()
            raise
        database.hot = Pool(database.connector, HOT, self._pool_size)
        self._listener = Listener(database.connector, database.clock)
        database.liveness_locks = LivenessLocks(self._listener, database.address.schema)
        self._notifier = ChannelNotifier(database.connector, database.clock)
        if len(database.address.servers) > 1:
            self._watching = asyncio.create_task(watch_timelines(database.connector, database.clock))
        await database.list_queues()

    async def close(self) -> None:
        database = self._database
        if database.pid != os.getpid():
            return  # the parent process uses the connections
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for resource in (self._listener, self._notifier, database.hot, database.reads):
            if resource is not None:
                await resource.close()
        self._watching = self._listener = self._notifier = None
        database.liveness_locks = database.hot = database.reads = None

    async def migrate_to(self, version: int) -> None:
        """Bring the schema to exactly that version, up or down; the store need not be open."""
        with translated(self.url):
            await schema.migrate_to(self._database.connector, READS, version)

    async def set_clock_offset(self, ms: int) -> None:
        """For tests: set the database's clock ahead, as this store and its lease connections see it."""
        self._database.connector.clock_offset_for = ms

    async def now(self) -> int:
        async with self._database.borrow() as connection:
            return await read_clock(connection)

    async def commit(self, units: Sequence[Unit]) -> list[UnitAnswer]:
        if not units:
            return []
        if queues := {task.queue for unit in units for task in unit.tasks} - self._database.queue_ids.keys():
            await self._database.find_queue_ids(list(queues))
        with translated(self.url):
            for _ in range(_REPEATS):
                try:
                    async with self._database.pool(self._database.hot).connection() as connection, asyncio.timeout(COMMIT_TIMEOUT):
                        return await commit(PostgresSession(connection), self._database.queue_ids, units)
                except (*REPEATABLE, asyncpg.CheckViolationError) as error:
                    if isinstance(error, asyncpg.CheckViolationError) and error.constraint_name != "bounds":
                        raise
                    async with self._database.pool(self._database.hot).connection() as connection:
                        await make_way(PostgresSession(connection), units, error)
            async with self._database.pool(self._database.hot).connection() as connection, asyncio.timeout(COMMIT_TIMEOUT):
                return await commit(PostgresSession(connection), self._database.queue_ids, units)

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        check_process(self._database.pid)
        if self._listener is None:
            raise NotOpen
        return await self._listener.subscribe(heard)

    async def notify(self, queue_ids: Sequence[int]) -> None:
        check_process(self._database.pid)
        if self._notifier is None:
            raise NotOpen
        await self._notifier.notify(queue_ids)


class Operators(OperatorPort):
    """The `OperatorStore` of PostgreSQL."""

    _database: PostgresDatabase

    async def set_rate(self, queue_id: int, rate: float | None, burst: int | None, entry: tuple[Row, ...] = ()) -> None:
        await super().set_rate(queue_id, rate, burst, entry)
        await self._database.list_queues()


async def make_way(session: PostgresSession, units: Sequence[Unit], error: asyncpg.PostgresError) -> None:
    """Remove what made a commit of the units fail although it should not exist: rows, or the bounds of an unfinished split."""
    if isinstance(error, asyncpg.CheckViolationError):
        await session.execute("open_rest")
    if isinstance(error, asyncpg.UniqueViolationError) and (error.table_name or "").startswith("finished_"):
        await session.execute("delete_ended", ids=sorted(unit.guard.task_id for unit in units if unit.guard is not None))
