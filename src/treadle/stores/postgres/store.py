"""The PostgreSQL store: its parts, opening and closing, and signals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.model.clock import Clock
from treadle.model.errors import NotOpen
from treadle.stores.postgres.attendance import Attendance
from treadle.stores.postgres.connection import schema
from treadle.stores.postgres.connection.address import parse_address
from treadle.stores.postgres.connection.connect import HOT, READS, Pool
from treadle.stores.postgres.connection.errors import translated
from treadle.stores.postgres.connection.signals import Listener, Notifier
from treadle.stores.postgres.connection.timeline_watch import TimelineWatch
from treadle.stores.postgres.dead_letters import DeadLetters
from treadle.stores.postgres.health import HealthReport
from treadle.stores.postgres.log import Log
from treadle.stores.postgres.namespaces import Namespaces
from treadle.stores.postgres.operators import Operators
from treadle.stores.postgres.records import Records
from treadle.stores.postgres.retention import Retention
from treadle.stores.postgres.runs import Runs
from treadle.stores.postgres.search import Search
from treadle.stores.postgres.servers import Servers
from treadle.stores.postgres.streams import Streams
from treadle.stores.postgres.tasks import Tasks
from treadle.stores.postgres.traces import Traces
from treadle.stores.postgres.usage import UsageLedger


class PostgresStore(
    Tasks,
    DeadLetters,
    Runs,
    Search,
    Records,
    Log,
    Servers,
    Operators,
    UsageLedger,
    Traces,
    Streams,
    Retention,
    Namespaces,
    HealthReport,
):
    """A `Store` on a schema of a PostgreSQL database (13 or newer).

    Uses up to `pool_size` connections for work, two for lists, one each to listen (and to attend) and to notify, and one for each
    lease connection. With several hosts in the URL, it also connects to each of them for a moment every few seconds, to notice a
    failover. `url` has no password.
    """

    def __init__(self, url: str, *, clock: Clock, pool_size: int = 4) -> None:
        super().__init__(parse_address(url), clock)
        self._pool_size = pool_size
        self._listener: Listener | None = None
        self._notifier: Notifier | None = None
        self._timeline_watch: TimelineWatch | None = None

    async def open(self, *, migrate: bool = True) -> None:
        self._reads = Pool(self._connector, READS, 2)
        try:
            async with self._reading() as connection:
                version = await schema.read_version(connection)
            with translated(self.url):
                await schema.check_schema(self._connector, READS, version, migrate=migrate)
        except BaseException:
            await self.close()
            raise
        self._hot = Pool(self._connector, HOT, self._pool_size)
        self._listener = Listener(self._connector, self._clock)
        self._attendance = Attendance(self._listener, self._address.schema)
        self._notifier = Notifier(self._connector, self._clock)
        if len(self._address.servers) > 1:
            self._timeline_watch = TimelineWatch(self._connector, self._clock)
        await self.list_lanes()

    async def close(self) -> None:
        for part in (self._timeline_watch, self._listener, self._notifier, self._hot, self._reads):
            if part is not None:
                await part.close()
        self._timeline_watch = self._listener = self._attendance = self._notifier = self._hot = self._reads = None

    async def migrate_to(self, version: int) -> None:
        """Bring the schema to exactly that version, up or down; the store need not be open."""
        with translated(self.url):
            await schema.migrate_to(self._connector, READS, version)

    async def set_clock_offset(self, ms: int) -> None:
        """For tests: set the database's clock ahead, as this store and its lease connections see it."""
        self._connector.clock_offset_for = ms

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        if self._listener is None:
            raise NotOpen
        return await self._listener.subscribe(heard)

    async def notify(self, lane_ids: Sequence[int]) -> None:
        if self._notifier is None:
            raise NotOpen
        await self._notifier.notify(lane_ids)
