"""Every pair of features keeps the general promises under a fault, on both stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.contract.databases import Postgres
from tests.pairs.features import PAIRS, Pair
from tests.pairs.story import play
from tests.simulation.recording import Recording
from tests.simulation.replay import replay
from tests.sizes import sampled


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
