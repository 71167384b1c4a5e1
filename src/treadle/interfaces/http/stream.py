"""Live events (`/v1/events/stream`) and streams of runs (`.../follow`) over SSE, resumable with `Last-Event-ID`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as WireScope

from treadle.api.contract import PREFIX, Doc, Parameter, parameters_of
from treadle.api.events import EventsApi
from treadle.api.streams import StreamPage
from treadle.api.wire import to_json
from treadle.engine.operations import Operations
from treadle.interfaces.http.app_state import AppState, first_of, gone, state_of
from treadle.interfaces.http.broadcast import HEARTBEAT_EVERY, EncodedEvent, Subscriber
from treadle.interfaces.http.openapi import Returns, guarded, header
from treadle.interfaces.http.parameters import Query
from treadle.interfaces.http.routes import Routes
from treadle.kernel.reads.event_log import LAST_SEQ
from treadle.kernel.reads.events import canonical
from treadle.model.access import Access, Scope
from treadle.model.errors import InvalidInput, NotFound

MEDIA_TYPE = "text/event-stream"
LAG_GRACE = 10.0
"""Seconds that a dismissed subscriber has to take the last message."""


_PARAMETERS = parameters_of(EventsApi.follow)
_QUERY = Query(_PARAMETERS)
_EVENTS = Routes("events")


@_EVENTS.add(
    "GET",
    f"{PREFIX}/events/stream",
    "events_stream",
    "Live events",
    {200: Returns("An endless stream of events", media=(MEDIA_TYPE,))},
    parameters=(*(("query", parameter) for parameter in _PARAMETERS), header("Last-Event-ID", "The `id` of the last message")),
    extra=guarded(Scope.READ),
)
async def stream(request: Request) -> Response:
    """Each event is one message whose data is an `Event` as JSON. To resume, send its `id` as `Last-Event-ID` (browsers do this
    automatically) or as `after_seq`. Some events may then repeat; compare their `seq`. A comment every 15 seconds is a heartbeat. A
    message `lagging` is the last one for a reader that is too slow; it may reconnect and resume.

    Needs the scope `read`.
    """
    state = state_of(request)
    access = await state.access(request)
    access.check(Scope.READ, lists=False)
    filters = await _QUERY.read(request)
    after = filters.pop("after_seq")
    if (last := request.headers.get("Last-Event-ID")) is not None:
        after = read_id(last)
    if after is not None and not 0 <= after <= LAST_SEQ:
        raise InvalidInput(f"after_seq must be the seq of an event, zero or more, not {after}.")
    subscriber, clock = state.events.subscriber(canonical(filters)), state.engine.kernel.clock

    async def stuck() -> None:
        """Return when a lagging subscriber does not take the last message either."""
        await subscriber.lagging.wait()
        await clock.sleep(LAG_GRACE)

    async def end(dismissed: asyncio.Event) -> None:
        """End the stream of a subscriber without access; return when it does not take the end either."""
        await dismissed.wait()
        subscriber.dismiss()
        await clock.sleep(LAG_GRACE)

    return EventStream(state, access, _events(subscriber, after), lambda dismissed: (stuck(), end(dismissed)))


class EventStream(Response):
    """An answer that lasts until its messages end, the caller disconnects, or one of `ends` (given the event of its dismissal)."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        state: AppState,
        access: Access,
        messages: AsyncGenerator[bytes, Any],
        ends: Callable[[asyncio.Event], Sequence[Coroutine[Any, Any, Any]]],
    ) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["Content-Length"]
        self._state, self._access, self._messages, self._ends = state, access, messages, ends

    async def __call__(self, scope: WireScope, receive: Receive, send: Send) -> None:
        with self._state.waiters.join(self._access) as dismissed:
            await first_of(self._pump(send), gone(receive), *self._ends(dismissed))

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._messages) as messages:
            async for text in messages:
                await send({"type": "http.response.body", "body": text, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _events(subscriber: Subscriber, after_seq: int | None) -> AsyncGenerator[bytes, Any]:
    async with aclosing(subscriber.receive(after_seq)) as batches:
        async for messages in batches:
            yield b"".join(map(_frame, messages)) or b": %d\nid: %d\n\n" % ((subscriber.resume_after,) * 2)
    if subscriber.lagging.is_set():
        yield b"event: lagging\ndata: {}\n\n"


def _frame(message: EncodedEvent) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (message.resume_after, message.text)


def read_id(text: str) -> int:
    """The `Last-Event-ID` of a request."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidInput(f"Last-Event-ID must be the id of a message of this stream, not {text!r}.")
    return int(text)


_OFFSET = Parameter("offset", int, 0, False, Doc("The first offset to send", 0))
_FOLLOW_QUERY = Query((_OFFSET,))
_PATH = (
    Parameter("member_id", str, None, True, Doc("The run, or a task")),
    Parameter("name", str, None, True, Doc("The stream", "tokens")),
)
_STREAMS = Routes("streams")


@_STREAMS.add(
    "GET",
    f"{PREFIX}/runs/{{member_id}}/streams/{{name}}/follow",
    "streams_follow",
    "Follow a stream",
    {200: Returns("The entries of the stream, until the work has ended", media=(MEDIA_TYPE,))},
    parameters=(
        *(("path", parameter) for parameter in _PATH),
        ("query", _OFFSET),
        header("Last-Event-ID", "The `id` of the last message: its offset"),
    ),
    extra=guarded(Scope.READ, lists=True),
)
async def follow(request: Request) -> Response:
    """Each entry and each notice is one message whose data is a `StreamEntry` as JSON and whose `id` is its offset. To resume, send
    the last `id` as `Last-Event-ID` (browsers do this automatically), or the next offset as `offset`: no entry repeats or is
    missing. The message `end` is the last one of a stream whose work has ended. A comment every 15 seconds is a heartbeat.

    Needs the scope `read`.
    """
    state = state_of(request)
    access = await state.access(request)
    access.check(Scope.READ)
    offset = (await _FOLLOW_QUERY.read(request))["offset"]
    if (last := request.headers.get("Last-Event-ID")) is not None:
        offset = read_id(last) + 1
    service, path = await state.service(request), request.path_params
    first = await service.streams.read(path["member_id"], path["name"], offset=offset)
    messages = _entries(service, path["member_id"], path["name"], first)
    return EventStream(state, access, messages, lambda dismissed: (state.closing.wait(), dismissed.wait()))


async def _entries(service: Operations, member_id: str, name: str, page: StreamPage) -> AsyncGenerator[bytes, Any]:
    while True:
        yield b"".join(b"id: %d\ndata: %b\n\n" % (entry.offset, to_json(entry)) for entry in page.entries) or b": waiting\n\n"
        if page.ended:
            break
        try:
            page = await service.streams.read(member_id, name, offset=page.next_offset, wait_for=HEARTBEAT_EVERY)
        except NotFound:  # the work has ended without writing to it
            break
    yield b"event: end\ndata: {}\n\n"


ROUTES = (*_EVENTS, *_STREAMS)
