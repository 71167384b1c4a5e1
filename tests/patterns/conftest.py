"""A store for several deployments of a program."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store; on PostgreSQL in `make soak`."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/treadle.db"
    url: str = request.getfixturevalue("postgres_url")
    return url
