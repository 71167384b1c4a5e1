"""A store for several deployments of a program."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sizes import POSTGRES


@pytest.fixture(params=["sqlite", POSTGRES])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind that several processes can use."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/treadle.db"
    url: str = request.getfixturevalue("postgres_url")
    return url
