"""A server in this process, called directly or over a real connection; its engine's clock stands still until it is moved."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
from starlette.applications import Starlette

from treadle.engine import Engine
from treadle.http.access import POLL_EVERY
from treadle.http.app import make_app
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
        """The secret of a new token; the server has noticed that there is one."""
        made = await self.engine.kernel.tokens.create(name, scopes or (Scope.ADMIN,), **options)  # type: ignore[arg-type]
        self.clock.advance(POLL_EVERY)
        return made.secret

    def shown(self, secret: str, **options: str) -> httpx.AsyncClient:
        """A client that shows the token."""
        return self.client(Authorization=f"Bearer {secret}", **options)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """A server without tokens, on loopback."""
    clock = ManualClock()
    async with Engine("memory://", clock=clock) as engine:
        yield Stage(engine, clock, make_app(engine))
