"""Engines under test: the URLs of empty databases of each kind, and settings that do not read the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.settings import Settings

SHARED = ("sqlite", "postgres")
"""Databases that several engines can use at once."""

ALL = ("memory", *SHARED)
BOUND = 20.0
"""Seconds after which whatever a test waits for has failed."""


def url_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that nobody has used."""
    match kind:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path / 'treadle.db'}"
        case _:
            return str(request.getfixturevalue("postgres_url"))


def make_engine(url: str, **settings: Any) -> Engine:
    return Engine(url, settings=Settings(**settings))
