"""A scene on each store that several processes can share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.crash.scene import Scene
from tests.sizes import POSTGRES


@pytest.fixture(params=["sqlite", POSTGRES])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    """An empty store, open; all processes that were started on it are ended afterwards."""
    url = f"sqlite:///{tmp_path / 'treadle.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made = Scene(url, tmp_path)
    try:
        async with made.engine:
            yield made
    finally:
        made.destroy()
