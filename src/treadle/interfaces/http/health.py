"""Routes outside the contract about the server itself: health, status and metrics."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from treadle.api.contract import ApiRecord
from treadle.api.system import Status
from treadle.interfaces.http.app_state import state_of
from treadle.interfaces.http.openapi import PUBLIC, Returns, guarded
from treadle.interfaces.http.routes import Routes, json_response
from treadle.model.access import Scope
from treadle.model.errors import StoreUnavailable, TreadleError
from treadle.version import VERSION

ROUTES = Routes("server")
_MEDIA = ("text/plain", "application/openmetrics-text")


class Health(ApiRecord, frozen=True):
    """The server is running and its store answers."""

    status: str
    """`ok`; otherwise the answer is a problem."""
    version: str
    access: str
    """`token`, or `open` if callers need no token (`--open`)."""


@ROUTES.add(
    "GET", "/health", "server_health", "Health", {200: Returns("The server can work", (Health,))}, problems=(503,), extra=PUBLIC
)
async def health(request: Request) -> Response:
    """Whether the server can work: 200 only while its store answers and it is not about to stop. Needs no token."""
    state = state_of(request)
    if state.closing.is_set():
        raise StoreUnavailable("The server is about to stop.")
    try:
        await state.engine.kernel.store.now()
    except TreadleError:
        raise StoreUnavailable("The store does not answer.") from None  # the cause may name the store: not for anonymous callers
    return json_response(Health("ok", VERSION, "open" if state.callers.open_access else "token"))


class Live(ApiRecord, frozen=True):
    """The server answers."""

    status: str
    """`ok`."""


@ROUTES.add("GET", "/live", "server_live", "Liveness", {200: Returns("The process answers", (Live,))}, extra=PUBLIC)
async def live(request: Request) -> Response:
    """Whether the process answers, also while its store does not. Needs no token."""
    return json_response(Live("ok"))


@ROUTES.add(
    "GET", "/status", "server_status", "Status", {200: Returns("The state of the system", (Status,))}, extra=guarded(Scope.READ)
)
async def status(request: Request) -> Response:
    """The state of the system; the same as `/v1/status`."""
    return json_response(await (await state_of(request).service(request)).system.status())


@ROUTES.add("GET", "/metrics", "server_metrics", "Metrics", {200: Returns("Metrics", media=_MEDIA)}, extra=guarded(Scope.READ))
async def metrics(request: Request) -> Response:
    """Metrics of this server and of its store, in the format of Prometheus or OpenMetrics."""
    state = state_of(request)
    access = await state.access(request)
    access.check(Scope.READ, lists=False)
    text, media_type = await state.engine.metrics.render(request.headers.get("Accept"))
    return Response(text, headers={"Content-Type": media_type})
