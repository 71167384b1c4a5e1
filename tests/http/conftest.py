"""A server in this process, called directly or over a real connection; its engine's clock stands still until it is moved."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
from starlette.applications import Starlette

from treadle.engine import Engine
from treadle.interfaces.http.app import make_app
from treadle.model.access import Scope
from treadle.testing import ManualClock


@dataclass
class Stage:
    """An application on an engine in memory."""

    engine: Engine
    clock: ManualClock
    app: Starlette

    def client(self, *, address: str = "127.0.0.1", base: str = "http://127.0.0.1", **headers: str) -> httpx.AsyncClient:
        """A client that calls from that address, with those headers (`_` for `-`)."""
        transport = httpx.ASGITransport(self.app, client=(address, 50000))
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.AsyncClient(transport=transport, base_url=base, headers=named)

    async def token(self, *scopes: Scope, name: str = "ada", **options: object) -> str:
        """The secret of a new token."""
        return (await self.engine.kernel.tokens.create(name, scopes or (Scope.ADMIN,), **options)).secret  # type: ignore[arg-type]

    def shown(self, secret: str, **options: str) -> httpx.AsyncClient:
        """A client that shows the token."""
        return self.client(Authorization=f"Bearer {secret}", **options)


@pytest.fixture
async def closed(stage: Stage) -> Stage:
    """A server that needs tokens."""
    return Stage(stage.engine, stage.clock, make_app(stage.engine))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """An open server, on loopback."""
    clock = ManualClock()
    async with Engine("memory://", clock=clock) as engine:
        yield Stage(engine, clock, make_app(engine, open_access=True))
