"""Watch for a failover among the servers of a URL, so that no process keeps using a primary that was replaced."""

from __future__ import annotations

import asyncio

from treadle.model.clock import Clock
from treadle.model.errors import TreadleError
from treadle.model.text import safe_logger
from treadle.stores.postgres.connection.connect import Connector
from treadle.stores.postgres.connection.errors import translated

_log = safe_logger("treadle.stores.postgres")

LOOK_EVERY = 3.0
"""Seconds between two looks at all servers: a primary that was cut off is abandoned that long after its successor is up."""


class TimelineWatch:
    """Asks all servers for their timelines until it is closed."""

    def __init__(self, connector: Connector, clock: Clock) -> None:
        self._connector, self._clock = connector, clock
        self._said = ""
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop; idempotent."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(LOOK_EVERY)
            try:
                with translated(self._connector.address.shown):
                    await self._connector.look_around()
                self._said = ""
            except TreadleError as error:
                if str(error) != self._said:
                    self._said = str(error)
                    _log.warning("%s", error)
