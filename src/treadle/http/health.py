"""What a server alone has beside the contract: health, status, metrics, and its own description."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Self

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from treadle.api.contract import PREFIX, ApiRecord
from treadle.api.system import Status
from treadle.api.wire import to_json
from treadle.http.app_state import AppState
from treadle.http.docs_page import POLICY, page
from treadle.http.problems import problem_responses
from treadle.http.schemas import content_of
from treadle.model.access import Scope
from treadle.model.errors import RestrictedToken, StoreUnavailable, TreadleError
from treadle.version import package_version

_JSON = "application/json"
_GUARDED: dict[str, Any] = {"x-scope": str(Scope.READ), "x-task-lists": False}
_PUBLIC: dict[str, Any] = {"security": []}


@dataclass(frozen=True, slots=True)
class Health(ApiRecord):
    """The server is there, and its store answers."""

    status: str
    """`ok`; when it is not, the answer is a problem."""
    version: str


def make_router(front: AppState) -> APIRouter:
    """`/health`, `/status`, `/metrics`, and the OpenAPI document for programs and for people."""
    router = APIRouter(tags=["server"])
    healthy = to_json(Health("ok", package_version()))

    @router.get(
        "/health",
        response_model=None,
        responses={200: {"description": "All is well", **content_of(Health)}, **problem_responses(503)},
        operation_id="server_health",
        openapi_extra=_PUBLIC,
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

    @router.get(
        "/status",
        response_model=None,
        responses={200: {"description": "How the system is", **content_of(Status)}, **problem_responses()},
        operation_id="server_status",
        openapi_extra=_GUARDED,
    )
    async def status(request: Request) -> Response:
        """How the system is; the same as `/v1/status`."""
        return Response(to_json(await (await front.service(request)).system.status()), media_type=_JSON)

    @router.get(
        "/metrics",
        response_class=Response,
        responses={
            200: {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}, _OPEN: _TEXT}},
            **problem_responses(),
        },
        operation_id="server_metrics",
        openapi_extra=_GUARDED,
    )
    async def metrics(request: Request) -> Response:
        """Metrics of this server and of its store, in the format of Prometheus or OpenMetrics."""
        access = await front.access(request)
        access.check(Scope.READ)
        if access.task_lists:
            raise RestrictedToken()
        text, media_type = await front.engine.metrics.render(request.headers.get("Accept"))
        return Response(text, headers={"Content-Type": media_type})

    description = Description()

    @router.get(f"{PREFIX}/openapi.json", include_in_schema=False, response_model=None)
    async def openapi(request: Request) -> Response:
        """The same for every server, so it needs no token."""
        return Response((await description.made(request.app)).document, media_type=_JSON)

    @router.get(f"{PREFIX}/docs", include_in_schema=False, response_model=None)
    async def docs(request: Request) -> Response:
        """The same for people."""
        return HTMLResponse((await description.made(request.app)).page, headers={"Content-Security-Policy": POLICY})

    return router


class Description:
    """The OpenAPI document and the page for people: made once, as strangers may ask for them, and in a thread, as it takes long."""

    document: bytes
    page: bytes

    def __init__(self) -> None:
        self._making = asyncio.Lock()
        self._made = False

    async def made(self, app: FastAPI) -> Self:
        """Itself, once it is there."""
        async with self._making:
            if not self._made:
                self.document, self.page = await asyncio.to_thread(_described, app)
                self._made = True
        return self


def _described(app: FastAPI) -> tuple[bytes, bytes]:
    document = app.openapi()
    return to_json(document), page(document).encode()


_OPEN = "application/openmetrics-text"
_TEXT = {"schema": {"type": "string"}}
