"""Samples become medians, spreads and verdicts."""

from __future__ import annotations

import pytest
from bench.figures import Aim, Row, by_store, judged, median, ratios, spread


def test_the_median_of_all_repetitions_counts_with_the_least_and_the_greatest():
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert spread([30_000.0, 10_000.0, 20_000.0], "/s") == "20,000/s (10,000 to 30,000)"


def test_a_single_figure_is_its_own_median():
    assert (spread(12.34, " ms"), spread([12.34])) == ("12.3 ms", "12.3")


def test_ratios_are_those_of_the_same_round():
    assert ratios([2.0, 30.0], [1.0, 10.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [1.0, 2.0])


def test_stores_are_columns_and_rows_without_figures_are_omitted():
    found = {"sqlite": {"rate": [1.0, 3.0]}, "postgresql": {"rate": 5.0, "more": 7}}
    lines = by_store(found, [Row("rate", "rate", "/s"), Row("more", "more"), Row("neither", "neither")]).splitlines()
    assert lines == [
        "|  | SQLite | PostgreSQL |",
        "|---|---|---|",
        "| rate | 2.00/s (1.00 to 3.00) | 5.00/s |",
        "| more |  | 7.00 |",
    ]


@pytest.mark.parametrize(
    ("aim", "value", "said"),
    [
        (Aim("", "x", "/s", at_least=200), 200.0, "200/s: met"),
        (Aim("", "x", "/s", at_least=200), 150.0, "150/s: **missed by 25 %**"),
        (Aim("", "x", at_most=1.3), 1.3, "1.30: met"),
        (Aim("", "x", at_most=1.0), 1.5, "1.50: **missed by 50 %**"),
        (Aim("", "x", at_most=1.3), 1.3001, "1.30: **missed by 0.1 %**"),
    ],
)
def test_a_target_is_met_or_missed_by_a_percentage(aim: Aim, value: float, said: str):
    assert aim.verdict({"x": value}) == said


def test_a_target_of_one_store_does_not_apply_to_the_other():
    aims = [Aim("lag", "lag", " ms", at_most=4, stores=("postgresql",)), Aim("other", "lag", at_most=4, stores=())]
    lines = judged({"sqlite": {"lag": 20.0}, "postgresql": {"lag": [3.0, 1.0, 9.0]}}, aims).splitlines()
    assert lines[2:] == ["| lag: at most 4 ms |  | 3.00 ms: met |"]


def test_a_target_without_a_bound_is_rejected():
    with pytest.raises(ValueError, match="no bound"):
        Aim("x", "x").verdict({"x": 1.0})
