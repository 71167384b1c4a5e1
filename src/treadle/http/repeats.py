"""`Idempotency-Key` for calls that have no key of their own in the kernel: what was answered is answered again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request
from fastapi.responses import Response

from treadle.kernel.access.requests import Answer, Requests

REPLAYED = "Idempotency-Replayed"


async def once(
    requests: Requests, actor: str, route: str, key: str, request: Request, handle: Callable[[Request], Awaitable[Response]]
) -> Response:
    """The answer of the first request with that key; only answers that made something are kept."""
    said = b"\n".join([request.method.encode(), request.url.path.encode(), request.url.query.encode(), await request.body()])
    begun = await requests.begin(actor, route, key, said)
    if isinstance(begun, Answer):
        return Response(begun.body, begun.status, {REPLAYED: "true"}, "application/json")
    made = False
    try:
        answer = await handle(request)
        made = answer.status_code < 300
    finally:
        if not made:
            await requests.forget(begun)
    await requests.finish(begun, Answer(answer.status_code, bytes(answer.body)))
    return answer
