"""The contract twice: on an engine, and over HTTP to a server that stands on one. What holds for one holds for the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from treadle.api.facade import Api
from treadle.client import Client
from treadle.engine import Engine
from treadle.engine.operations import Operations
from treadle.interfaces.http.app import make_app
from treadle.model.access import OPEN


@dataclass
class Scene:
    """An engine with a worker that greets, and the calls on it."""

    engine: Engine
    api: Api


def make_engine() -> Engine:
    """An engine in memory, with handlers that succeed and fail."""
    engine = Engine("memory://")

    @engine.handler("greet")
    async def greet(payload: dict[str, str]) -> dict[str, str]:
        return {"hello": payload["name"]}

    @engine.handler("fail")
    async def fail(payload: dict[str, Any]) -> None:
        raise RuntimeError("no luck")

    return engine


@pytest.fixture(params=["service", "client"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """The calls on an engine without a worker."""
    async with make_engine() as engine:
        if request.param == "service":
            yield Scene(engine, Operations(engine, OPEN))
            return
        async with Client("http://127.0.0.1", transport=httpx.ASGITransport(make_app(engine, open_access=True))) as client:
            yield Scene(engine, client)
