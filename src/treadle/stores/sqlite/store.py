"""The SQLite store: its parts, opening and closing, and signals.

For a file, one thread writes and one reads, each with its own connection; the writing thread also renews leases, in turn,
so that no event loop can block that. In memory or inline there are no threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import apsw
import msgspec

from treadle.kernel.store.ports import CHANGED
from treadle.kernel.store.units import Answer
from treadle.model.clock import Clock
from treadle.stores.sqlite.connection.channel import InlineChannel, ThreadChannel
from treadle.stores.sqlite.connection.clocks import check_clocks
from treadle.stores.sqlite.connection.commits import CommitCounter, check_gone, check_header
from treadle.stores.sqlite.connection.connect import (
    Connection,
    add_shapes,
    connect,
    make_durable,
    make_shrinkable,
    refuse_writes,
)
from treadle.stores.sqlite.connection.place import check_place
from treadle.stores.sqlite.connection.schema import IN_MEMORY, NEWEST, check_version, create_in_memory, migrate_to, read_version
from treadle.stores.sqlite.connection.signals import Subscribers
from treadle.stores.sqlite.connection.sockets import Signals
from treadle.stores.sqlite.connection.wal import Checkpointer
from treadle.stores.sqlite.dead_letters import DeadLetters
from treadle.stores.sqlite.health import HealthReport
from treadle.stores.sqlite.lanes import list_lanes
from treadle.stores.sqlite.log import Log
from treadle.stores.sqlite.namespaces import Namespaces
from treadle.stores.sqlite.operators import Operators
from treadle.stores.sqlite.parts import uses_writer
from treadle.stores.sqlite.records import Records
from treadle.stores.sqlite.retention import Retention
from treadle.stores.sqlite.runs import Runs
from treadle.stores.sqlite.search import Search
from treadle.stores.sqlite.servers import Servers
from treadle.stores.sqlite.streams import Streams
from treadle.stores.sqlite.tasks import Tasks
from treadle.stores.sqlite.traces import Traces
from treadle.stores.sqlite.usage import UsageLedger


class SqliteStore(
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
    """One SQLite database: a file that several processes of one machine may share, or memory that only this store sees."""

    def __init__(self, path: str | None, *, clock: Clock, inline: bool = False) -> None:
        super().__init__(clock)
        self.url = "memory://" if path is None else f"sqlite:///{path}"
        self._path = path
        self._shown = path or IN_MEMORY
        self._inline = inline or path is None
        self._shared = None if self._inline else path
        self._create = True
        self._subscribers = Subscribers()
        self._signals = None if path is None else Signals(path)
        self._counter: CommitCounter | None = None

    async def open(self, *, migrate: bool = True) -> None:
        if self._path is not None:
            check_gone(self._path)
            check_place(Path(self._path), create=migrate)
        self._create = migrate
        if self._inline:
            self._writer = self._reader = InlineChannel(self._connect_writer, self._shown)
        else:
            self._writer = ThreadChannel(self._connect_writer, self._shown, "treadle-sqlite-writer")
            self._reader = ThreadChannel(self._connect_reader, self._shown, "treadle-sqlite-reader")
        try:
            await self._prepare(migrate)
            if self._shared is not None:
                await check_clocks(self._shared, self._clock.now, self.list_servers)
        except BaseException as error:
            await self.close()
            if self._path is not None and isinstance(error.__cause__, apsw.NotADBError):
                check_header(self._path)
            raise

    def beside(self, clock: Clock) -> SqliteStore:
        """Return a store on the same open database with another clock, as another process sees it.

        Only for stores without threads. The store that was opened closes the database for both.
        """
        other = SqliteStore(self._path, clock=clock, inline=True)
        other._writer = other._reader = self._writer
        other._lanes = dict(self._lanes)
        return other

    def _connect_writer(self) -> apsw.Connection:
        return connect(self._path, create=self._create)

    def _connect_reader(self) -> apsw.Connection:
        connection = connect(self._path, create=False)
        add_shapes(connection)
        refuse_writes(connection)
        return connection

    @uses_writer
    def _prepare(self, connection: apsw.Connection, migrate: bool) -> None:
        version = read_version(connection)
        if self._path is not None:
            assert isinstance(connection, Connection)
            self._counter = connection.counter = CommitCounter(connection, self._path, self._clock)
            if migrate or version != NEWEST:  # the tables may be among what is missing
                self._counter.check()
        check_version(version, self._shown, migrate=migrate)
        if self._path is not None:
            make_shrinkable(connection)
            make_durable(connection)
            self._writer.after = Checkpointer(connection).tidy
        if self._path is None:
            create_in_memory(connection)
        elif version < NEWEST:
            migrate_to(connection, NEWEST, self._shown)
        if self._inline:
            add_shapes(connection)
        self._lanes = {lane: lane_id for lane_id, lane in list_lanes(connection).items()}

    async def close(self) -> None:
        self._subscribers.clear()
        if self._signals is not None:
            self._signals.stop_listening()
        await self._reader.close()
        await self._writer.close()
        if self._signals is not None:
            self._signals.close()
        if self._counter is not None:
            self._counter.close()

    @uses_writer
    def migrate_to(self, connection: apsw.Connection, version: int) -> None:
        migrate_to(connection, version, self._shown)
        self._lanes = {}

    def _announce(self, answers: list[Answer]) -> list[Answer]:
        """Call the subscribers and signal the other processes from the writing thread, because the event loop may be busy."""
        if self._signals is None:
            return answers
        lane_ids = tuple({lane_id for answer in answers for lane_id in answer.lane_ids})
        self._signals.send(lane_ids or (CHANGED,))
        if not lane_ids:
            return answers
        self._subscribers.call(lane_ids)
        return [msgspec.structs.replace(answer, is_signaled=True) if answer.lane_ids else answer for answer in answers]

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        """Call `heard` on this loop when tasks became ready, in this process or in another one that uses the file."""
        key = self._subscribers.add(heard)
        if self._signals is not None:
            self._signals.listen(self._subscribers.call)

        def stop() -> None:
            self._subscribers.remove(key)
            if self._signals is not None and not self._subscribers:
                self._signals.stop_listening()

        return stop

    async def notify(self, lane_ids: Sequence[int]) -> None:
        """Call the subscribers of this process, and signal the other processes."""
        self._subscribers.call(tuple(lane_ids))
        if self._signals is not None:
            self._signals.send(lane_ids)
