"""LISTEN and NOTIFY: hints that tasks became ready. Each has its own connection, and reconnects by itself.

The listening connection bypasses poolers, lasts as long as the process and ends with it: it is also the session that shows other
servers that this process is alive (`stores.postgres.servers`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import asyncpg

from treadle.model.clock import Clock
from treadle.model.errors import TreadleError
from treadle.model.retry import Backoff
from treadle.model.text import safe_logger
from treadle.stores.postgres.connection.connect import SESSION, SIGNALS, Connector, PostgresConnection, close_connection
from treadle.stores.postgres.connection.errors import hides_cancellation, translated
from treadle.stores.rules.encoding import format_queues, parse_queues
from treadle.stores.statements import load_statements

T = TypeVar("T")
Heard = Callable[[tuple[int, ...]], None]

_SQL = load_statements(__package__, "signals.sql")
_log = safe_logger("treadle.stores.postgres")

_RECONNECTS = Backoff(0.1, 10.0)
_PING_EVERY = 30.0
_POLL_EVERY = 1.0
_USE_WITHIN = 5.0
"""Seconds for the work of others on the listening connection: less than the database needs to find a broken connection."""

_BROKEN = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server's farewell has arrived, and the end of the connection has not
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
)


class Listener:
    """Listens on the schema's channel for its subscribers; without LISTEN, makes them poll every second."""

    def __init__(self, connector: Connector, clock: Clock) -> None:
        self._connector, self._clock = connector, clock
        self._subscribers: list[Heard] = []
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._connection: PostgresConnection | None = None
        self._connected_at = 0.0
        self._turn = asyncio.Lock()
        self.on_open: Callable[[PostgresConnection], Awaitable[None]] | None = None
        """Called with each new connection, before it is used otherwise."""

    async def subscribe(self, heard: Heard) -> Callable[[], None]:
        """Call `heard` for each signal; returns once listening has started, or has failed for now."""
        self._subscribers.append(heard)
        await self.start()

        def stop() -> None:
            if heard in self._subscribers:
                self._subscribers.remove(heard)

        return stop

    async def start(self) -> None:
        """Connect; returns once listening has started, or has failed for now. Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._listen())
        await self._ready.wait()

    async def use(self, work: Callable[[PostgresConnection, float], Awaitable[T]]) -> T | None:
        """Call the work with the connection and its age in seconds; None if there is no connection, or it breaks meanwhile."""
        async with self._turn:
            connection = self._connection
            if connection is None or connection.is_closed():
                return None
            handled = sys.exc_info()[1]
            try:
                async with asyncio.timeout(_USE_WITHIN), self._connector.session(connection, SESSION):
                    return await work(connection, self._clock.monotonic() - self._connected_at)
            except _BROKEN as error:  # a timeout is an OSError
                connection.terminate()
                if hides_cancellation(error, handled):
                    raise asyncio.CancelledError from error
                return None

    async def close(self) -> None:
        """Stop listening; idempotent."""
        task, self._task = self._task, None
        self._subscribers.clear()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _listen(self) -> None:
        if not self._connector.address.has_sessions:
            _log.warning(
                "PgBouncer does not support LISTEN: polling for work every second instead, and work of a process that dies on "
                "another machine waits for its lease. Set direct_url to the server's own URL."
            )
            self._ready.set()
            while True:
                self._call(())
                await self._clock.sleep(_POLL_EVERY)
        pause = _RECONNECTS.first
        while True:
            try:
                with translated(self._connector.address.shown):
                    connection = await self._connector.connect(SESSION, direct=True)
                    pause = _RECONNECTS.first
                    try:
                        await self._receive(connection)
                    finally:
                        await close_connection(connection)
            except TreadleError as error:
                if pause == _RECONNECTS.first:
                    _log.warning("No signals for now: polling for work every second until they are back. %s", error)
            self._ready.set()
            await self._clock.sleep(pause)
            self._call(())
            pause = min(_RECONNECTS.after(pause), _POLL_EVERY)

    async def _receive(self, connection: PostgresConnection) -> None:
        """Pass signals on until the connection ends."""
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        await connection.add_listener(self._connector.address.channel, lambda *signal: self._call(parse_queues(str(signal[-1]))))
        async with self._turn:
            if self.on_open is not None:
                await self.on_open(connection)
            self._connection, self._connected_at = connection, self._clock.monotonic()
        self._ready.set()
        self._call(())
        while not connection.is_closed():
            try:
                async with asyncio.timeout(_PING_EVERY):
                    await ended.wait()
            except TimeoutError:
                async with self._turn:
                    await connection.execute(_SQL["ping"])

    def _call(self, queue_ids: tuple[int, ...]) -> None:
        for heard in tuple(self._subscribers):
            heard(queue_ids)


class ChannelNotifier:
    """Notifies the schema's channel that queues have work; a signal that cannot be sent is lost."""

    def __init__(self, connector: Connector, clock: Clock) -> None:
        self._connector, self._clock = connector, clock
        self._connection: PostgresConnection | None = None
        self._turn = asyncio.Lock()
        self._pause = 0.0
        self._silent_until = 0.0
        self._closed = False

    async def notify(self, queue_ids: Sequence[int]) -> None:
        """Notify all subscribers of the schema; never raises if the database is unreachable."""
        async with self._turn:
            if self._clock.monotonic() < self._silent_until:
                return
            try:
                with translated(self._connector.address.shown):
                    await self._send(format_queues(queue_ids))
                self._pause = 0.0
            except TreadleError as error:
                if not self._pause:
                    _log.warning("Signals are not sent for now; other processes find new work at their next poll. %s", error)
                self._pause = _RECONNECTS.after(self._pause) or _RECONNECTS.first
                self._silent_until = self._clock.monotonic() + self._pause

    async def _send(self, payload: str) -> None:
        if self._connection is None or self._connection.is_closed():
            connection = await self._connector.connect(SIGNALS)
            if self._closed:  # meanwhile, so nothing else would close this connection
                connection.terminate()
                return
            self._connection = connection
        try:
            await self._connection.execute(_SQL["notify"], self._connector.address.channel, payload)
        except BaseException:
            self._connection.terminate()
            raise

    async def close(self) -> None:
        """Close the connection, including one that is still being opened; idempotent."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_connection(connection)
