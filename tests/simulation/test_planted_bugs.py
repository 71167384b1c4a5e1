"""Whether histories would find a bug: each of these is planted in the engine, and must be found before long."""

from __future__ import annotations

import pytest
from tests.simulation.history import play
from tests.simulation.plants import PLANTS, Plant

WITHIN = 60
"""Histories after which a bug that was planted must have been found."""

LONGEST = 120.0
"""Seconds that a history gets to come to its end: with a bug it often does not, and histories without one take less."""


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(play(seed, LONGEST).problems for seed in range(WITHIN)), (
        f"{WITHIN} histories with {plant.__name__}, and nothing was seen"
    )
