"""Connections that are closed when the head of a request does not arrive in time, or is too large.

uvicorn closes connections that are idle after an answer, but waits forever for the first request and for the rest of a head, and
one of its parsers accepts heads of any length. The middleware limits bodies, as the caller can receive an answer by then.

This uses private attributes of uvicorn's protocol (`cycle`, its `response_complete` and `more_body`, and `transport`), so
pyproject.toml has an upper bound for uvicorn and tests/http/test_uvicorn.py reports the attribute that is gone.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_WITHIN = 20.0
"""Seconds from the connection, or from the first byte after an answer, to the end of the head."""

HEAD_LIMIT = 64 * 1024
"""Maximum size of a head in bytes."""


def connections(head_within: float = HEAD_WITHIN) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with these limits."""

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
            """No request is being answered."""
            cycle: Any = self.cycle
            return cycle is None or cycle.response_complete

        def _between(self) -> bool:
            """The next bytes are a head, and not the rest of a body whose request is already answered."""
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
