"""The SQLite store: its parts, opening and closing, and signals.

For a file, one thread writes and one reads, each with its own connection; the writing thread also renews leases, in turn,
so that no event loop can block that. In memory or inline there are no threads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

import apsw
import msgspec

from treadle.kernel.store.database import DeadLetterStore, LogStore, RunStore, StreamStore, TraceStore
from treadle.kernel.store.metrics import MetricsStore
from treadle.kernel.store.ports import CHANGED, Store
from treadle.kernel.store.process import check_process
from treadle.kernel.store.units import Unit, UnitAnswer
from treadle.kernel.store.usage import UsageStore
from treadle.model.clock import Clock
from treadle.stores.commit import commit
from treadle.stores.shared import OperatorPort, list_queues
from treadle.stores.sqlite.connection.clocks import check_clocks
from treadle.stores.sqlite.connection.commits import CommitCounter, check_gone, check_header
from treadle.stores.sqlite.connection.connect import (
    Checkpointer,
    SqliteConnection,
    add_shapes,
    check_place,
    connect,
    make_durable,
    make_shrinkable,
    refuse_writes,
    writing,
)
from treadle.stores.sqlite.connection.schema import NEWEST, check_version, create_in_memory, migrate_to, read_version
from treadle.stores.sqlite.connection.sockets import SignalSocket
from treadle.stores.sqlite.database import InlineChannel, SqliteDatabase, SqliteSession, ThreadChannel
from treadle.stores.sqlite.health import SqliteHealth
from treadle.stores.sqlite.namespaces import SqliteNamespaces
from treadle.stores.sqlite.records import SqliteRecords
from treadle.stores.sqlite.retention import SqliteRetention
from treadle.stores.sqlite.search import SqliteSearch
from treadle.stores.sqlite.servers import SqliteServers
from treadle.stores.sqlite.tasks import SqliteTasks, make_queues

Heard = Callable[[tuple[int, ...]], None]


class Subscribers:
    """A set of callbacks; calling them never blocks and never raises."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries: dict[object, tuple[Heard, asyncio.AbstractEventLoop]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, heard: Heard) -> object:
        """Add a callback on the running loop; returns its key."""
        key = object()
        with self._lock:
            self._entries[key] = (heard, asyncio.get_running_loop())
        return key

    def remove(self, key: object) -> None:
        """Remove a callback; idempotent."""
        with self._lock:
            self._entries.pop(key, None)

    def clear(self) -> None:
        """Remove all callbacks."""
        with self._lock:
            self._entries.clear()

    def call(self, queue_ids: tuple[int, ...]) -> None:
        """Schedule all callbacks, from any thread."""
        with self._lock:
            entries = list(self._entries.items())
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        for key, (_, loop) in entries:
            try:
                # the thread-safe call also wakes the loop, which takes a write and a read of its own
                (loop.call_soon if loop is running else loop.call_soon_threadsafe)(self._call, key, queue_ids)
            except RuntimeError:
                self.remove(key)  # its loop is closed

    def _call(self, key: object, queue_ids: tuple[int, ...]) -> None:
        if entry := self._entries.get(key):
            entry[0](queue_ids)


class SqliteStore(Store):
    """One SQLite database: a file that several processes of one machine may share, or memory that only this store sees."""

    parallel_commits = 1

    def __init__(self, path: str | None, *, clock: Clock, inline: bool = False) -> None:
        self.url = "memory://" if path is None else f"sqlite:///{path}"
        database = SqliteDatabase(path, clock, inline=inline)
        self._database = database
        self._create = True
        self._subscribers = Subscribers()
        self._signals = None if path is None else SignalSocket(path)
        self._counter: CommitCounter | None = None
        self.tasks = SqliteTasks(database)
        self.dead_letters = DeadLetterStore(database)
        self.runs = RunStore(database)
        self.search = SqliteSearch(database)
        self.records = SqliteRecords(database)
        self.log = LogStore(database)
        self.servers = SqliteServers(database)
        self.operators = OperatorPort(database)
        self.usage = UsageStore(database)
        self.metrics = MetricsStore(database)
        self.traces = TraceStore(database)
        self.streams = StreamStore(database)
        self.retention = SqliteRetention(database)
        self.namespaces = SqliteNamespaces(database)
        self.health = SqliteHealth(database)

    async def open(self, *, migrate: bool = True) -> None:
        self._database.pid = os.getpid()
        if self._database.path is not None:
            check_gone(self._database.path)
            check_place(Path(self._database.path), create=migrate)
        self._create = migrate
        if self._database.inline:
            self._database.writer = self._database.reader = InlineChannel(self._connect_writer, self._database.shown)
        else:
            self._database.writer = ThreadChannel(self._connect_writer, self._database.shown, "treadle-sqlite-writer")
            self._database.reader = ThreadChannel(self._connect_reader, self._database.shown, "treadle-sqlite-reader")
        try:
            await self._database.use(lambda session: self._prepare(session, migrate))
            if self._database.shared is not None:
                await check_clocks(self._database.shared, self._database.now, self.servers.list_all)
        except BaseException as error:
            await self.close()
            if self._database.path is not None and isinstance(error.__cause__, apsw.NotADBError):
                check_header(self._database.path)
            raise

    def beside(self, clock: Clock) -> SqliteStore:
        """Return a store on the same open database with another clock, as another process sees it.

        Only for stores without threads. The store that was opened closes the database for both.
        """
        other = SqliteStore(self._database.path, clock=clock, inline=True)
        other._database.writer = other._database.reader = self._database.writer
        other._database.queues = dict(self._database.queues)
        return other

    def _connect_writer(self) -> apsw.Connection:
        return connect(self._database.path, create=self._create)

    def _connect_reader(self) -> apsw.Connection:
        connection = connect(self._database.path, create=False)
        add_shapes(connection)
        refuse_writes(connection)
        return connection

    async def _prepare(self, session: SqliteSession, migrate: bool) -> None:
        connection = session.connection
        version = read_version(connection)
        if self._database.path is not None:
            assert isinstance(connection, SqliteConnection)
            self._counter = connection.counter = CommitCounter(connection, self._database.path, self._database.clock)
            if migrate or version != NEWEST:  # the tables may be among what is missing
                self._counter.check()
        check_version(version, self._database.shown, migrate=migrate)
        if self._database.path is not None:
            make_shrinkable(connection)
            make_durable(connection)
            self._database.writer.after = Checkpointer(connection).tidy
        if self._database.path is None:
            create_in_memory(connection)
        elif version < NEWEST:
            migrate_to(connection, NEWEST, self._database.shown)
        if self._database.inline:
            add_shapes(connection)
        self._database.queues = await list_queues(session)

    async def close(self) -> None:
        if self._database.pid != os.getpid():
            return  # the parent process uses it
        self._subscribers.clear()
        if self._signals is not None:
            self._signals.stop_listening()
        await self._database.reader.close()
        await self._database.writer.close()
        if self._signals is not None:
            self._signals.close()
        if self._counter is not None:
            self._counter.close()

    async def migrate_to(self, version: int) -> None:
        await self._database.writer.call(lambda connection: migrate_to(connection, version, self._database.shown))
        self._database.queues = {}

    async def now(self) -> int:
        return self._database.now()

    async def commit(self, units: Sequence[Unit]) -> list[UnitAnswer]:
        return await self._database.use(lambda session: self._commit(session, units)) if units else []

    async def _commit(self, session: SqliteSession, units: Sequence[Unit]) -> list[UnitAnswer]:
        queues = self._database.queues
        with writing(session.connection):
            if missing := {task.queue for unit in units for task in unit.tasks} - queues.keys():
                queues = await make_queues(session, missing)
            answers = await commit(session, queues, units)
        self._database.queues = queues
        return self._announce(answers)

    def _announce(self, answers: list[UnitAnswer]) -> list[UnitAnswer]:
        """Call the subscribers and signal the other processes from the writing thread, because the event loop may be busy."""
        if self._signals is None:
            return answers
        queue_ids = tuple({queue_id for answer in answers for queue_id in answer.queue_ids})
        self._signals.send(queue_ids or (CHANGED,))
        if not queue_ids:
            return answers
        self._subscribers.call(queue_ids)
        return [msgspec.structs.replace(answer, is_signaled=True) if answer.queue_ids else answer for answer in answers]

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        """Call `heard` on this loop when tasks became ready, in this process or in another one that uses the file."""
        check_process(self._database.pid)
        key = self._subscribers.add(heard)
        if self._signals is not None:
            self._signals.listen(self._subscribers.call)

        def stop() -> None:
            self._subscribers.remove(key)
            if self._signals is not None and not self._subscribers:
                self._signals.stop_listening()

        return stop

    async def notify(self, queue_ids: Sequence[int]) -> None:
        """Call the subscribers of this process, and signal the other processes."""
        check_process(self._database.pid)
        self._subscribers.call(tuple(queue_ids))
        if self._signals is not None:
            self._signals.send(queue_ids)
