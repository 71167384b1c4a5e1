"""The part of one server in takeovers: it shows evidence of its life, and looks for servers that have died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import Roll
from treadle.kernel.takeover.decide import HasEnded
from treadle.kernel.takeover.service import Lookout, Presence
from treadle.kernel.telemetry.events import Emit
from treadle.model.clock import Clock
from treadle.model.ids import Ids


class Watch:
    """The presence and the lookout of a registered server."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        emit: Emit,
        server_id: str,
        process: Callable[[], str | None],
        has_ended: HasEnded,
        on_freed: Callable[[], None],
        *,
        enabled: bool,
    ) -> None:
        """Unless `enabled`, the server shows no evidence, and looks at nobody."""
        self._presence = Presence(store, clock, emit, server_id, process, enabled=enabled)
        self._lookout = Lookout(store, clock, ids, emit, server_id, has_ended, on_freed)
        self._enabled = enabled
        self._loop: asyncio.AbstractEventLoop | None = None
        self._attending: set[asyncio.Future[None]] = set()

    @property
    def process(self) -> str | None:
        """The identity of this process for the server's row. Any thread may read it."""
        return self._presence.process

    async def join(self) -> None:
        """Tie the registered server to its session, from now on until `leave`."""
        self._loop = asyncio.get_running_loop()
        await self._presence.attend()

    async def leave(self) -> None:
        """Untie the server; never raises if the store is unreachable."""
        self._loop = None
        await asyncio.gather(*self._attending)
        await self._presence.leave()

    async def run(self) -> None:
        """Look for dead servers until canceled."""
        if self._enabled:
            await self._lookout.run()

    def stir(self) -> None:
        """Look soon, because the servers may have changed."""
        self._lookout.stir()

    def note(self, roll: Roll) -> None:
        """Take note of the answer to a heartbeat, in any thread."""
        self._presence.note(roll)
        if (loop := self._loop) is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._after_beat, roll)

    def _after_beat(self, roll: Roll) -> None:
        self._lookout.note(roll)
        if self._loop is not None and self._presence.has_changed:
            self._attending.add(task := asyncio.ensure_future(self._presence.attend()))
            task.add_done_callback(self._attending.discard)
