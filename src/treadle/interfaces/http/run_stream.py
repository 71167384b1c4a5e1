"""`GET /v1/runs/{member_id}/streams/{name}/follow`: a stream of a run or a task over SSE, resumable with `Last-Event-ID`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as WireScope

from treadle.api.contract import PREFIX, Doc, Parameter
from treadle.api.streams import StreamPage
from treadle.api.wire import to_json
from treadle.engine.operations import Operations
from treadle.interfaces.http.app_state import AppState, state_of
from treadle.interfaces.http.broadcast import HEARTBEAT_EVERY
from treadle.interfaces.http.long_poll import first_of, gone
from treadle.interfaces.http.openapi import Returns, guarded, header
from treadle.interfaces.http.parameters import Query
from treadle.interfaces.http.routes import Routes
from treadle.interfaces.http.stream import MEDIA_TYPE, read_id
from treadle.model.access import Scope
from treadle.model.errors import StreamNotFound

_OFFSET = Parameter("offset", int, 0, False, Doc("The first offset to send", 0))
_QUERY = Query((_OFFSET,))
_PATH = (
    Parameter("member_id", str, None, True, Doc("The run, or a task")),
    Parameter("name", str, None, True, Doc("The stream", "tokens")),
)
ROUTES = Routes("streams")


@ROUTES.add(
    "GET",
    f"{PREFIX}/runs/{{member_id}}/streams/{{name}}/follow",
    "streams_follow",
    "Follow a stream",
    {200: Returns("The entries of the stream, until the work has ended", media=(MEDIA_TYPE,))},
    parameters=(
        *(("path", each) for each in _PATH),
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
    offset = _QUERY.read(request)["offset"]
    if (last := request.headers.get("Last-Event-ID")) is not None:
        offset = read_id(last) + 1
    service, given = await state.service(request), request.path_params
    first = await service.streams.read(given["member_id"], given["name"], offset=offset)
    return RunStream(state, service, given["member_id"], given["name"], first)


class RunStream(Response):
    """An answer that lasts until the work has ended, the caller disconnects or loses its access, or the server stops."""

    media_type = MEDIA_TYPE

    def __init__(self, state: AppState, service: Operations, member_id: str, name: str, first: StreamPage) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["Content-Length"]
        self._state = state
        self._service = service
        self._work = (member_id, name)
        self._first = first

    async def __call__(self, scope: WireScope, receive: Receive, send: Send) -> None:
        with self._state.waiters.join(self._service.access) as waiter:
            await first_of(self._pump(send), gone(receive), self._state.closing.wait(), waiter.dismissed.wait())

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._messages()) as messages:
            async for text in messages:
                await send({"type": "http.response.body", "body": text, "more_body": True})
        await send({"type": "http.response.body", "body": b"event: end\ndata: {}\n\n", "more_body": False})

    async def _messages(self) -> AsyncGenerator[bytes, Any]:
        page = self._first
        while True:
            yield b"".join(b"id: %d\ndata: %b\n\n" % (each.offset, to_json(each)) for each in page.entries) or b": waiting\n\n"
            if page.ended:
                return
            try:
                page = await self._service.streams.read(*self._work, offset=page.next_offset, wait_for=HEARTBEAT_EVERY)
            except StreamNotFound:  # the work has ended without writing to it
                return
