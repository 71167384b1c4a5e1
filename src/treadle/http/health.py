"""Routes outside the contract about the server itself: health, status and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from treadle.api.contract import ApiRecord
from treadle.api.system import Status
from treadle.http.app_state import state_of
from treadle.http.openapi import PUBLIC, Operation, Returns, guarded
from treadle.http.routes import Route, json_response
from treadle.model.access import Scope
from treadle.model.errors import RestrictedToken, StoreUnavailable, TreadleError
from treadle.version import package_version


@dataclass(frozen=True, slots=True)
class Health(ApiRecord):
    """The server is running and its store answers."""

    status: str
    """`ok`; otherwise the answer is a problem."""
    version: str


async def health(request: Request) -> Response:
    """Report whether the server can work."""
    state = state_of(request)
    if state.closing.is_set():
        raise StoreUnavailable("The server is about to stop.")
    try:
        await state.engine.store.now()
    except TreadleError:
        raise StoreUnavailable("The store does not answer.") from None  # the cause may name the store: not for anonymous callers
    return json_response(Health("ok", package_version()))


async def status(request: Request) -> Response:
    """Report the state of the system."""
    return json_response(await (await state_of(request).service(request)).system.status())


async def metrics(request: Request) -> Response:
    """Render the metrics."""
    state = state_of(request)
    access = await state.access(request)
    access.check(Scope.READ)
    if access.task_lists:
        raise RestrictedToken()
    text, media_type = await state.engine.metrics.render(request.headers.get("Accept"))
    return Response(text, headers={"Content-Type": media_type})


ROUTES = (
    Route(
        "GET",
        "/health",
        health,
        Operation(
            "server_health",
            "server",
            "Health",
            "Whether the server can work: 200 only while its store answers and it is not about to stop. Needs no token.",
            {200: Returns("The server can work", (Health,))},
            problems=(503,),
            extra=PUBLIC,
        ),
    ),
    Route(
        "GET",
        "/status",
        status,
        Operation(
            "server_status",
            "server",
            "Status",
            "The state of the system; the same as `/v1/status`.",
            {200: Returns("The state of the system", (Status,))},
            extra=guarded(Scope.READ),
        ),
    ),
    Route(
        "GET",
        "/metrics",
        metrics,
        Operation(
            "server_metrics",
            "server",
            "Metrics",
            "Metrics of this server and of its store, in the format of Prometheus or OpenMetrics.",
            {200: Returns("Metrics", media=("text/plain", "application/openmetrics-text"))},
            extra=guarded(Scope.READ),
        ),
    ),
)
