"""What a server alone has beside the contract: health, status, metrics, and its own description."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response

from treadle.api.contract import PREFIX, Shape
from treadle.api.wire import to_json
from treadle.http.front import Front
from treadle.http.problems import problem_responses
from treadle.http.schemas import content_of
from treadle.model.errors import StoreUnavailable, TreadleError

_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Health(Shape):
    """The server is there, and its store answers."""

    status: str
    """`ok`; when it is not, the answer is a problem."""
    version: str


def make_router(front: Front) -> APIRouter:
    """`/health` and the OpenAPI document."""
    from treadle.wiring.host import host_version

    router = APIRouter(tags=["server"])
    healthy = to_json(Health("ok", host_version()))

    @router.get(
        "/health",
        response_model=None,
        responses={200: {"description": "All is well", **content_of(Health)}, **problem_responses(503)},
        operation_id="server_health",
        openapi_extra={"security": []},
    )
    async def health() -> Response:
        """Whether the server can work: 200 only while its store answers and it is not about to stop. Needs no token."""
        if front.closing.is_set():
            raise StoreUnavailable("The server is about to stop.")
        try:
            await front.engine.store.now()
        except TreadleError:
            raise StoreUnavailable("The store does not answer.") from None  # strangers need not know which, and where
        return Response(healthy, media_type=_JSON)

    @router.get(f"{PREFIX}/openapi.json", include_in_schema=False, response_model=None)
    async def openapi(request: Request) -> Response:
        """The same for every server, so it needs no token."""
        return Response(to_json(request.app.openapi()), media_type=_JSON)

    return router
