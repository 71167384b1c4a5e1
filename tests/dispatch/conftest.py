"""A coordinator on each kind of database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.dispatch.scenes import Scene
from tests.engines import ALL, SHARED

from treadle import Engine
from treadle.dispatch import AgentCoordinator


@pytest.fixture(params=ALL)
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(request.param, request, tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def engine(scene: Scene) -> Engine:
    return await scene.open_engine()


@pytest.fixture
async def coordinator(engine: Engine) -> AsyncIterator[AgentCoordinator]:
    async with AgentCoordinator(engine) as made:
        yield made


@pytest.fixture(params=SHARED)
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    """A database that outlives an engine, and that several can use."""
    made = Scene(request.param, request, tmp_path)
    yield made
    await made.close()
