"""LISTEN and NOTIFY: hints that tasks became ready. Each has its own connection, and reconnects by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from treadle.model.clock import Clock
from treadle.model.errors import TreadleError
from treadle.model.text import safe_logger
from treadle.stores.postgres.connection.connect import SIGNALS, Connection, Connector, close_connection
from treadle.stores.postgres.connection.errors import translated
from treadle.stores.rules.signals import format_lanes, parse_lanes
from treadle.stores.statements import load_statements

Heard = Callable[[tuple[int, ...]], None]

_SQL = load_statements(__package__, "signals.sql")
_log = safe_logger("treadle.stores.postgres")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_PING_EVERY = 30.0
_POLL_EVERY = 1.0


class Listener:
    """Listens on the schema's channel for its subscribers; without LISTEN, makes them poll every second."""

    def __init__(self, connector: Connector, clock: Clock) -> None:
        self._connector, self._clock = connector, clock
        self._subscribers: list[Heard] = []
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def subscribe(self, heard: Heard) -> Callable[[], None]:
        """Call `heard` for each signal; returns once listening has started, or has failed for now."""
        self._subscribers.append(heard)
        if self._task is None:
            self._task = asyncio.create_task(self._listen())
        await self._ready.wait()

        def stop() -> None:
            if heard in self._subscribers:
                self._subscribers.remove(heard)

        return stop

    async def close(self) -> None:
        """Stop listening; idempotent."""
        task, self._task = self._task, None
        self._subscribers.clear()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _listen(self) -> None:
        if self._connector.address.pgbouncer and self._connector.address.direct_dsn == self._connector.address.dsn:
            _log.warning(
                "PgBouncer does not support LISTEN: polling for work every second instead. Set direct_url to the server's own URL."
            )
            self._ready.set()
            while True:
                self._call(())
                await self._clock.sleep(_POLL_EVERY)
        pause = _FIRST_PAUSE
        while True:
            try:
                with translated(self._connector.address.shown):
                    connection = await self._connector.connect(SIGNALS, direct=True)
                    pause = _FIRST_PAUSE
                    try:
                        await self._receive(connection)
                    finally:
                        await close_connection(connection)
            except TreadleError as error:
                if pause == _FIRST_PAUSE:
                    _log.warning("No signals for now: polling for work every second until they are back. %s", error)
            self._ready.set()
            await self._clock.sleep(pause)
            self._call(())
            pause = min(2 * pause, _POLL_EVERY)

    async def _receive(self, connection: Connection) -> None:
        """Pass signals on until the connection ends."""
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        await connection.add_listener(self._connector.address.channel, lambda *signal: self._call(parse_lanes(str(signal[-1]))))
        self._ready.set()
        self._call(())
        while not connection.is_closed():
            try:
                await asyncio.wait_for(ended.wait(), _PING_EVERY)
            except TimeoutError:
                await connection.execute(_SQL["ping"])

    def _call(self, lane_ids: tuple[int, ...]) -> None:
        for heard in tuple(self._subscribers):
            heard(lane_ids)


class Notifier:
    """Notifies the schema's channel that lanes have work; a signal that cannot be sent is lost."""

    def __init__(self, connector: Connector, clock: Clock) -> None:
        self._connector, self._clock = connector, clock
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._pause = 0.0
        self._silent_until = 0.0
        self._closed = False

    async def notify(self, lane_ids: Sequence[int]) -> None:
        """Notify all subscribers of the schema; never raises if the database is unreachable."""
        async with self._turn:
            if self._clock.monotonic() < self._silent_until:
                return
            try:
                with translated(self._connector.address.shown):
                    await self._send(format_lanes(lane_ids))
                self._pause = 0.0
            except TreadleError as error:
                if not self._pause:
                    _log.warning("Signals are not sent for now; other processes find new work at their next poll. %s", error)
                self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
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
