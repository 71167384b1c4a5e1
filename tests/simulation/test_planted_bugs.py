"""Whether histories would find a bug: each of these is planted in the engine, and must be found before long."""

from __future__ import annotations

import pytest
from tests.simulation.bugs import PLANTS, Plant
from tests.simulation.history import play

WITHIN = 40
"""Histories after which a bug that was planted must have been found."""

LONGEST = 120.0
"""Seconds that a history gets to come to its end: with a bug it often does not, and histories without one take less."""


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    often, kinds, acts = PLANTS[plant]
    plant(monkeypatch)
    assert any(play(seed, LONGEST, often, kinds, acts).problems for seed in range(WITHIN)), (
        f"nothing was seen in {WITHIN} histories"
    )
