"""The application: the contract's routes, and around them access, limits and problems."""

from __future__ import annotations

from fastapi import FastAPI, Request

from treadle.api.contract import PREFIX
from treadle.http.openapi import document
from treadle.http.problems import handle_problems
from treadle.http.routes import make_router
from treadle.model.access import OPEN
from treadle.service import Service
from treadle.wiring.engine import Engine
from treadle.wiring.host import host_version


def make_app(engine: Engine) -> FastAPI:
    """The HTTP interface of an open engine."""

    async def service_for(request: Request) -> Service:
        return Service(engine, OPEN)

    app = FastAPI(title="Treadle", openapi_url=f"{PREFIX}/openapi.json", docs_url=None, redoc_url=None)
    handle_problems(app)
    app.include_router(make_router(service_for), prefix=PREFIX)
    app.openapi = lambda: document(app, host_version())  # type: ignore[method-assign]
    return app
