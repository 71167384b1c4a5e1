"""Every pair of features keeps the general promises under a fault, on both stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.contract.databases import Postgres
from tests.crash.test_lost_answers import Proxy
from tests.pairs.features import PAIRS, Pair
from tests.pairs.story import play
from tests.schemas import schema_url
from tests.simulation.recording import Recording
from tests.simulation.replay import replay
from tests.sizes import sampled

from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Unit
from treadle.model.errors import StoreUnavailable


@pytest.mark.parametrize("pair", sampled(PAIRS, len(PAIRS) // 7), ids=str)
def test_a_pair_of_features_keeps_every_promise(pair: Pair) -> None:
    simulation = play(pair.case())
    assert not simulation.problems, "\n".join([*simulation.problems, *simulation.trace.lines(200)])


@pytest.mark.parametrize("pair", sampled(PAIRS, len(PAIRS) // 35), ids=str)
async def test_a_pair_of_features_goes_the_same_way_on_postgresql(
    pair: Pair, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """PostgreSQL, which cannot run on a virtual clock, gives the same answers to the calls of the same history."""
    recording = Recording()
    with ThreadPoolExecutor(1) as apart:  # a history has an event loop of its own
        assert apart.submit(play, pair.case(), recording).result().problems == []
    await replay(recording, Postgres(request, tmp_path))


class CutPostgres(Postgres):
    """PostgreSQL behind a proxy that breaks connections during commits, also between a commit and its answer."""

    loses_answers = True

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path, proxy: Proxy, url: str) -> None:
        super().__init__(request, tmp_path)
        self.proxy, self.url = proxy, schema_url(url, self.name)

    async def open_store(self, *, migrate: bool = True) -> Store:
        store = await super().open_store(migrate=migrate)
        commit = store.commit

        async def commit_until_answered(units: list[Unit]) -> Any:
            self.proxy.breaks = "answered"
            try:
                while True:
                    try:
                        return await commit(units)
                    except StoreUnavailable:
                        continue
            finally:
                self.proxy.breaks = None

        store.commit = commit_until_answered  # type: ignore[method-assign, assignment]
        return store


@pytest.mark.parametrize("pair", sampled(PAIRS[::40], 2), ids=str)
async def test_a_commit_with_a_lost_answer_has_the_same_end_on_postgresql(
    pair: Pair, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    recording, proxy = Recording(), Proxy(request.getfixturevalue("postgres_server"))
    with ThreadPoolExecutor(1) as apart:
        assert apart.submit(play, pair.case(), recording).result().problems == []
    try:
        await replay(recording, CutPostgres(request, tmp_path, proxy, await proxy.start()))
    finally:
        await proxy.stop()
    assert proxy.cuts
