"""The application: the contract's routes, and around them access, limits and problems."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from fastapi import FastAPI

from treadle.engine import Engine
from treadle.http import callbacks, ingest, login, stream
from treadle.http import health as looking
from treadle.http.app_state import AppState
from treadle.http.middleware import BODY_OVERHEAD, RequestMiddleware
from treadle.http.names import WholeNames
from treadle.http.openapi import document
from treadle.http.problems import handle_problems
from treadle.http.routes import contract_router
from treadle.http.shortcut import Shortcut
from treadle.version import package_version


def make_app(
    engine: Engine,
    *,
    may_be_open: bool = True,
    log_level: int = logging.DEBUG,
    more: Sequence[Callable[[FastAPI], None]] = (),
) -> FastAPI:
    """The HTTP interface of an open engine; `more` add routes of their own, such as pages.

    `may_be_open`: callers need no token while there is none; only for servers that nobody else reaches.
    """
    front = AppState(engine, may_be_open=may_be_open)
    app = FastAPI(title="Treadle", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.front = front
    handle_problems(app)
    contract = contract_router()
    app.router.routes.append(Shortcut(contract.routes))
    app.router.routes.extend(contract.routes)  # as they are: `include_router` makes each anew, with the first request
    for part in (stream, callbacks, ingest, login, looking):
        app.router.routes.extend(part.make_router(front).routes)
    for add in more:
        add(app)
    app.add_middleware(WholeNames)
    app.add_middleware(
        RequestMiddleware,
        clock=engine.kernel.clock,
        ids=engine.kernel.ids,
        body_limit=engine.kernel.settings.payload_limit + BODY_OVERHEAD,
        log_level=log_level,
    )
    app.openapi = lambda: document(app, package_version())  # type: ignore[method-assign]
    return app
