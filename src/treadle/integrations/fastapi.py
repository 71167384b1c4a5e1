"""Treadle in a FastAPI application: the engine lives as long as the application, and its API and dashboard are mounted in it.

engine = Engine("postgresql://localhost/shop")
app = FastAPI(lifespan=lifespan(engine))
mount(app, engine, "/treadle", authenticate=current_admin)

@app.post("/orders")
async def create(order: Order, engine: EngineDep):
    await engine.enqueue("charge", order.model_dump())
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from treadle.integrations import missing

try:
    from fastapi import Depends, Request
except ImportError as error:
    raise missing("fastapi", error) from error

from starlette.applications import Starlette

from treadle.engine import Engine
from treadle.integrations.mount import Authenticate, Mounted
from treadle.model.errors import NotOpen

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(engine: Engine, *, worker: bool | Mapping[str, Any] = False, then: Lifespan | None = None) -> Lifespan:
    """Return the `lifespan` of an application: it opens the engine, and closes it when the application stops.

    `worker` runs the engine's handlers in this process, too: True, or the options of `Engine.worker`. `then` is a lifespan of your
    own, which runs while the engine is open; the state that it yields is passed on.
    """

    @asynccontextmanager
    async def live(app: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(engine)
            app.state.treadle_engine = engine
            if worker:
                await stack.enter_async_context(engine.worker(**({} if worker is True else dict(worker))))
            for mounted in getattr(app.state, "treadle_mounts", ()):
                stack.push_async_callback(mounted.close)
            yield None if then is None else await stack.enter_async_context(then(app))

    return live


def get_engine(request: Request) -> Engine:
    """Return the engine of the application, as a dependency."""
    engine: Engine | None = getattr(request.app.state, "treadle_engine", None)
    if engine is None:
        raise NotOpen("The engine is not open: create the application with `FastAPI(lifespan=lifespan(engine))`.")
    return engine


EngineDep = Annotated[Engine, Depends(get_engine)]
"""The type of a parameter that receives the engine."""


def mount(
    app: Starlette,
    engine: Engine,
    path: str = "/treadle",
    *,
    authenticate: Authenticate | None = None,
    scopes: Iterable[str] = ("admin",),
) -> None:
    """Serve the HTTP API (`PATH/v1`) and the dashboard below a path of the application.

    `authenticate(request)` returns the name of the application's user, (name, scopes), or None, and may be async or raise an
    `HTTPException`. Callers without a user need a token of Treadle's, as they all do without `authenticate`. `scopes` are those of
    a user for whom none were returned.
    """
    mounted = Mounted(engine, authenticate=authenticate, scopes=scopes)
    if not hasattr(app.state, "treadle_mounts"):
        app.state.treadle_mounts = []
    app.state.treadle_mounts.append(mounted)
    app.mount(path, mounted)
