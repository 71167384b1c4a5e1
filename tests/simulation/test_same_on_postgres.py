"""The store calls of a history on SQLite, replayed on PostgreSQL at the same times."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.contract.databases import Postgres
from tests.simulation.recording import record
from tests.simulation.replay import TABLES, replay


@pytest.mark.parametrize("seed", range(4))
async def test_a_history_goes_the_same_way_on_postgresql(request, tmp_path, seed):
    with ThreadPoolExecutor(1) as apart:  # a history has an event loop of its own
        recording, report = apart.submit(record, seed, TABLES).result()
    assert report.problems == []
    await replay(recording, Postgres(request, tmp_path))
