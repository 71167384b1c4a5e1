"""Whether histories would find a bug: each of these is planted in the engine, and must be found before long."""

from __future__ import annotations

import pytest
from tests.simulation.bugs import PLANTS, Plant
from tests.simulation.history import play

WITHIN = 40
"""Histories after which a bug that was planted must have been found."""

HISTORY_TIMEOUT = 120.0
"""Seconds that a history gets to come to its end: with a bug it often does not, and histories without one take less."""

FOUND_BY = {
    "settling_needs_no_claim": 7,
    "checkpoints_need_no_claim": 15,
    "leases_never_run_out": 3,
    "results_are_left_and_nobody_looks": 2,
    "messages_wake_nobody": 9,
    "effects_are_not_recorded": 2,
    "runs_advance_at_any_version": 5,
    "starting_takes_what_others_hold": 1,
    "a_unit_of_a_batch_is_dropped": 12,
    "limits_admit_one_more": 1,
    "a_late_tick_is_left_out": 5,
    "late_words_count": 13,
    "claim_waiters_hear_nothing": 16,
    "what_is_seen_is_stored_before_it_is_told": 13,
    "functions_park_whatever_has_come": 12,
    "callbacks_are_acknowledged_and_dropped": 1,
    "trees_are_pruned_while_they_live": 12,
    "pruning_leaves_blobs": 1,
    "forks_keep_nothing": 5,
    "agents_forget_what_they_lost": 33,
}
"""Seeds that found a bug fastest when they were chosen: they are tried first, then all."""


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    often, kinds, acts = PLANTS[plant]
    plant(monkeypatch)
    seeds = (FOUND_BY.get(plant.__name__, 0), *range(WITHIN))
    assert any(play(seed, HISTORY_TIMEOUT, often, kinds, acts).problems for seed in seeds), (
        f"nothing was seen in {WITHIN} histories"
    )
