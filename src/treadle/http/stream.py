"""`GET /v1/events/stream`: events as they happen, by SSE (text/event-stream), resumable with `Last-Event-ID`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as WireScope

from treadle.api.contract import PREFIX
from treadle.http.app_state import AppState
from treadle.http.live import Follower, Told
from treadle.http.long_poll import Waiter
from treadle.http.problems import problem_responses
from treadle.kernel.reads.event_pages import LAST_SEQ
from treadle.model.access import Access, Scope
from treadle.model.errors import InvalidInput, RestrictedToken
from treadle.service.events import filter_of

MEDIA_TYPE = "text/event-stream"
LAG_GRACE = 10.0
"""Seconds in which a follower who was let go may still take the word that says so."""

_DESCRIPTION = """\
Each event is one message whose data is an `Event` as JSON. Its `id` is where to resume: send it as `Last-Event-ID` (browsers do
so by themselves) or as `after_seq`. Some events may come again then; tell by their `seq`. A comment every 15 seconds is a sign of
life. A message `lagging` is the last one for a reader that is too slow; it may come again and resume.

Needs the scope `read`.
"""


def make_router(front: AppState) -> APIRouter:
    """The live events."""
    router = APIRouter(prefix=PREFIX, tags=["events"])
    content = {MEDIA_TYPE: {"schema": {"type": "string"}}}

    @router.get(
        "/events/stream",
        response_class=Response,
        responses={200: {"description": "Events without an end", "content": content}, **problem_responses()},
        operation_id="events_stream",
        summary="Events as they happen",
        description=_DESCRIPTION,
        openapi_extra={"x-scope": "read", "x-task-lists": False},
    )
    async def stream(
        request: Request,
        after_seq: Annotated[int | None, Query(description="After the event of this number; without it, from now on")] = None,
        entity: Annotated[str | None, Query(description="Only of this entity", examples=["task"])] = None,
        entity_id: Annotated[str | None, Query(description="Only of the thing of this id")] = None,
        run_id: Annotated[str | None, Query(description="Only what belongs to this run")] = None,
        root_id: Annotated[str | None, Query(description="Only what belongs to this tree")] = None,
        move: Annotated[str | None, Query(description="Only this move", examples=["succeed"])] = None,
        last_event_id: Annotated[str | None, Header(description="The `id` of the last message that arrived")] = None,
    ) -> Response:
        access = await front.access(request)
        access.check(Scope.READ)
        if access.task_lists:
            raise RestrictedToken()
        which = filter_of(entity, entity_id, run_id, root_id, move)
        after = after_seq if last_event_id is None else _seq(last_event_id)
        if after is not None and not 0 <= after <= LAST_SEQ:
            raise InvalidInput(f"after_seq is the seq of an event, zero or more, not {after}.")
        return EventStream(front, access, front.live.follower(which), after)

    return router


class EventStream(Response):
    """An answer that goes on until the caller goes, the server stops, or the caller may look no more."""

    media_type = MEDIA_TYPE

    def __init__(self, front: AppState, access: Access, follower: Follower, after_seq: int | None) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["Content-Length"]
        self._front = front
        self._access = access
        self._follower = follower
        self._after_seq = after_seq

    async def __call__(self, scope: WireScope, receive: Receive, send: Send) -> None:
        with self._front.waiting.join(self._access) as waiter:
            pumping = self._pump(send)
            working = [asyncio.create_task(each) for each in (pumping, _gone(receive), self._stuck(), self._dismissed(waiter))]
            try:
                await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in working:
                    each.cancel()
                await asyncio.wait(working)
        if working[0].done() and not working[0].cancelled():
            working[0].result()

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._follower.follow(self._after_seq)) as portions:
            async for told in portions:
                text = b"".join(map(_message, told)) or b": %d\nid: %d\n\n" % ((self._follower.resume_after,) * 2)
                await send({"type": "http.response.body", "body": text, "more_body": True})
        last = b"event: lagging\ndata: {}\n\n" if self._follower.lagging.is_set() else b""
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _stuck(self) -> None:
        """Return when a follower was let go and does not even take that."""
        await self._follower.lagging.wait()
        await self._front.engine.kernel.clock.sleep(LAG_GRACE)

    async def _dismissed(self, waiter: Waiter) -> None:
        """Tell a follower no more who may look no more; return when it does not even take the end."""
        await waiter.dismissed.wait()
        self._follower.dismiss()
        await self._front.engine.kernel.clock.sleep(LAG_GRACE)


def _message(told: Told) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (told.resume_after, told.text)


def _seq(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidInput(f"Last-Event-ID is the id of a message of this stream, not {text!r}.")
    return int(text)


async def _gone(receive: Receive) -> Any:
    while (await receive())["type"] != "http.disconnect":
        pass
