"""Stores of agents on every kind of database, and the workflow that their tests run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines import ALL, url_of

from treadle.agents import Evaluator, MemoryStore, Persistence
from treadle.settings import Settings


@pytest.fixture(params=ALL)
def persistence(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Persistence]:
    """An agent's store on each kind of database."""
    settings = Settings(handler_roots=(str(tmp_path),))
    with Persistence(url_of(request.param, request, tmp_path), settings=settings) as made:
        yield made


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[MemoryStore]:
    """A store in memory; handler modules are those of the test's own folder."""
    with MemoryStore(settings=Settings(handler_roots=(str(tmp_path),))) as made:
        yield made


@pytest.fixture
def evaluator(memory: MemoryStore) -> Evaluator:
    return Evaluator(memory)
