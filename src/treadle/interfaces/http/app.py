"""The application: the routes of the contract and of the server, with middleware and error handling around them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from starlette.applications import Starlette

from treadle.engine import Engine
from treadle.interfaces.http import docs_page, health, ingest, login, stream
from treadle.interfaces.http.app_state import AppState
from treadle.interfaces.http.middleware import BODY_OVERHEAD, RequestMiddleware
from treadle.interfaces.http.openapi import document
from treadle.interfaces.http.problems import EXCEPTION_HANDLERS
from treadle.interfaces.http.routes import RouteTable, contract_routes
from treadle.version import VERSION


def make_app(
    engine: Engine,
    *,
    open_access: bool = False,
    log_level: int = logging.DEBUG,
    more: Sequence[Callable[[Starlette], None]] = (),
) -> Starlette:
    """The HTTP interface of an open engine; each function in `more` adds routes, such as the dashboard's.

    `open_access`: callers need no token; only for servers that listen on loopback.
    """
    app = Starlette(routes=[api_routes()], exception_handlers=EXCEPTION_HANDLERS)
    app.state.treadle = AppState(engine, open_access=open_access)
    for add in more:
        add(app)
    app.add_middleware(
        RequestMiddleware,
        routes=api_routes(),
        clock=engine.kernel.clock,
        ids=engine.kernel.ids,
        body_limit=engine.kernel.settings.payload_limit + BODY_OVERHEAD,
        log_level=log_level,
    )
    return app


@cache
def api_routes() -> RouteTable:
    """The routes of every server, shared by all applications of the process."""
    own = (*stream.ROUTES, *ingest.ROUTES, *login.ROUTES, *health.ROUTES)
    return RouteTable([*contract_routes(), *own, *docs_page.routes(api_document), *docs_page.ROUTES])


@cache
def api_document() -> dict[str, Any]:
    """The OpenAPI document of every server."""
    routes = api_routes().routes
    return document({(route.method, route.path): route.operation for route in routes if route.operation is not None}, VERSION)
