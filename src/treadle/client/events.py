"""Events over HTTP, followed by SSE across lost connections, each event once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import httpx
import msgspec

from treadle.api.contract import Call, calls_of
from treadle.api.events import Event, EventsApi
from treadle.api.wire import from_json
from treadle.client.client import ServerUnreachable, UnexpectedAnswer, error_of

PATH = "events/stream"
SILENCE = 45.0
"""Seconds of silence after which the connection counts as lost."""

_WAITS = (0.1, 0.5, 1.0, 2.0, 5.0)
_SEEN = 1000


class RemoteEvents(EventsApi):
    """The group `events` of a server."""

    def __init__(self, http: httpx.AsyncClient, url: str, send: Callable[[Call, dict[str, Any]], Awaitable[Any]]) -> None:
        self._http = http
        self._url = url
        self._send = send
        self._calls = {call.name: call for call in calls_of("events", EventsApi)}

    async def list(self, **options: Any) -> Any:
        return await self._send(self._calls["list"], options)

    async def audit(self, **options: Any) -> Any:
        return await self._send(self._calls["audit"], options)

    async def follow(self, *, after_seq: int | None = None, **which: str | None) -> AsyncGenerator[Event, None]:
        """Yield new events, each once, reconnecting after a lost connection. Raises the error that the server returns."""
        place, seen, failures, connected = after_seq, set[int](), 0, False
        params = {name: value for name, value in which.items() if value is not None}
        while True:
            try:
                async with aclosing(self._connection(params, place)) as messages:
                    async for resume_after, event in messages:
                        connected, failures = True, 0
                        place = resume_after
                        if event is None or event.seq in seen:
                            continue
                        seen.add(event.seq)
                        if len(seen) > _SEEN:
                            seen = {seq for seq in seen if seq > place}
                        yield event
            except httpx.HTTPError as error:
                if not connected:
                    raise ServerUnreachable(f"{self._url} does not respond: {error or type(error).__name__}.") from None
            except _Busy as error:
                if not connected:
                    raise error.cause from None
            await asyncio.sleep(_WAITS[min(failures, len(_WAITS) - 1)])
            failures += 1

    async def _connection(self, params: dict[str, str], place: int | None) -> AsyncGenerator[tuple[int, Event | None], None]:
        """The messages of one connection: the position to resume after, and the event, if any."""
        headers = {"Accept": "text/event-stream"} | ({} if place is None else {"Last-Event-ID": str(place)})
        timeout = httpx.Timeout(10.0, read=SILENCE)
        async with self._http.stream("GET", PATH, params=params, headers=headers, timeout=timeout) as answer:
            if not answer.is_success:
                error = error_of(answer.status_code, await answer.aread())
                raise _Busy(error) if answer.status_code >= 500 else error
            if not answer.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise UnexpectedAnswer(f"{self._url} returned a response that is not an event stream. Is it a Treadle server?")
            fields: dict[str, str] = {}
            async for line in answer.aiter_lines():
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                    continue
                if fields.get("event") == "lagging":
                    return
                if "id" in fields:
                    yield int(fields["id"]), self._event(fields["data"]) if "data" in fields else None
                fields = {}

    def _event(self, data: str) -> Event:
        try:
            event: Event = from_json(data.encode(), Event)
        except msgspec.DecodeError as error:
            raise UnexpectedAnswer(f"{self._url} sent an event that this client cannot read: {error}.") from None
        return event


class _Busy(Exception):
    """The server, or a proxy in front of it, cannot respond now."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
