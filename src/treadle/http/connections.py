"""Connections on which nothing gets on are closed: requests whose head never comes, or is larger than any that makes sense.

The server below us closes connections that are quiet after an answer, but waits forever for the first request, and for the rest
of a head that has begun; and one of the parsers that it may be installed with takes heads of any length. How long a body may
take is the envelope's business, as there is somebody then who can be answered.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_WITHIN = 20.0
"""Seconds from the connection, or from the first byte after an answer, to the end of the head."""

HEAD_LIMIT = 64 * 1024
"""Bytes of a head."""


def connections(head_within: float = HEAD_WITHIN) -> type[asyncio.Protocol]:
    """The server's kind of connection, but closed when no head comes in time."""

    class Connection(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
        _cut: asyncio.TimerHandle | None = None
        _head = 0

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._expect()

        def data_received(self, data: bytes) -> None:
            if self._idle() and self._cut is None:
                self._expect()
            super().data_received(data)
            if not self._idle():
                self._disarm()
            elif self._between():
                self._head += len(data)
                if self._head > HEAD_LIMIT:
                    self._close()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def _idle(self) -> bool:
            """Nobody is being answered here."""
            cycle: Any = self.cycle
            return cycle is None or cycle.response_complete

        def _between(self) -> bool:
            """What comes is a head, and not the rest of a body whose request was answered already."""
            cycle: Any = self.cycle
            return cycle is None or not cycle.more_body

        def _expect(self) -> None:
            self._head = 0
            self._cut = asyncio.get_running_loop().call_later(head_within, self._close)

        def _disarm(self) -> None:
            if self._cut is not None:
                self._cut.cancel()
                self._cut = None

        def _close(self) -> None:
            self._disarm()
            if not self.transport.is_closing():
                self.transport.close()

    return Connection
