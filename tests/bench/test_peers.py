"""The comparison with peers: its figures, ratios and tables; nothing is installed or measured here."""

from __future__ import annotations

import pytest
from bench.peers.catalog import SUBJECTS, chosen
from bench.peers.figures import DRAIN_1, ENQUEUE_1, ENQUEUE_32, FUNCTIONS, IDLE, LATENCY, LIMIT, Figures, percentile
from bench.peers.report import body, target_table
from bench.peers.session import Sizes
from bench.peers.targets import Target, targets


def some() -> Figures:
    figures = Figures()
    for value in (30_000.0, 26_000.0, 28_000.0):
        figures.add(DRAIN_1, "treadle-postgresql", value)
    for value in (12_000.0, 14_000.0, 10_000.0):
        figures.add(DRAIN_1, "pgqueuer-postgresql", value)
    figures.add(DRAIN_1, "procrastinate-postgresql", 900.0)
    figures.add(LIMIT, "postgresql", 70_000.0)
    figures.add(FUNCTIONS, "treadle-postgresql", 1_000.0)
    figures.add(FUNCTIONS, "dbos-postgresql", 25.0)
    figures.add(LATENCY, "treadle-postgresql", 2.0, 2.0, 2.0, 9.0)
    figures.add(LATENCY, "pgqueuer-postgresql", 3.0, 3.0, 3.0, 4.0)
    figures.add(IDLE, "treadle-postgresql", 1.0)
    figures.add(IDLE, "pgqueuer-postgresql", 0.5)
    figures.add(IDLE, "procrastinate-postgresql", 2.0)
    figures.add(ENQUEUE_1, "treadle-postgresql", 900.0)
    figures.add(ENQUEUE_1, "pgqueuer-postgresql", 1_000.0)
    figures.add(ENQUEUE_1, "celery-redis", 100_000.0)
    figures.add(ENQUEUE_32, "treadle-postgresql", 20_000.0)
    figures.fail(DRAIN_1, "absurd-postgresql", "SubjectFailed: absurd work ended | it said nothing")
    return figures


def found(title: str, against: str) -> Target:
    (target,) = [each for each in targets(some()) if each.title.startswith(title) and against in each.against]
    return target


def test_a_target_compares_round_by_round_with_the_fastest_peer_of_the_same_store() -> None:
    drain = found(f"PostgreSQL: {DRAIN_1}", "PgQueuer")
    assert (drain.ours, drain.ratio, drain.verdict) == ([30_000.0, 26_000.0, 28_000.0], 2.5, "met")  # of 2.5, 1.9 and 2.8
    many = found("PostgreSQL: enqueue, 32 callers", "PgQueuer")
    assert (many.ratio, many.verdict) == (20.0, "met")
    one = found("PostgreSQL: enqueue, one caller", "PgQueuer")
    assert (one.ratio, one.verdict) == (0.9, "**missed by 25 %**")


def test_a_missed_target_reports_its_shortfall() -> None:
    assert found(f"PostgreSQL: {DRAIN_1}", "limit").verdict == "**missed by 33 %**"
    assert found("PostgreSQL: ten-step", "DBOS").verdict == "**missed by 20 %**"


def test_the_lowest_peer_counts_for_lower_is_better_figures() -> None:
    assert found("PostgreSQL: idle latency, p50", "PgQueuer").verdict == "met"
    assert found("PostgreSQL: idle latency, p99", "PgQueuer").verdict == "**missed by 125 %**"
    idle = found("PostgreSQL: idle transactions", "PgQueuer")
    assert (idle.ratio, idle.verdict) == (2.0, "**missed by 100 %**")


def test_targets_without_figures_are_reported_as_not_measured() -> None:
    assert found("PostgreSQL: ten-step", "Absurd").verdict == "not measured"
    assert {each.verdict for each in targets(Figures())} == {"not measured"}


def test_a_failed_subject_is_in_the_table_with_its_error() -> None:
    text = body(some(), SUBJECTS, Sizes(), {"pgqueuer": "1.6"}, ["PostgreSQL 18"])
    assert "| Absurd | PostgreSQL | failed: SubjectFailed: absurd work ended / it said nothing | – |" in text
    assert "| PgQueuer | PostgreSQL | 12,000 (10,000 to 14,000) | – |" in text
    assert "| PgQueuer | 1.6 | PostgreSQL | a log line, no payload | no |" in text
    assert "| Treadle | PostgreSQL | 2.00 | 9.00 | 4 | 1.00 |" in text


def test_every_row_of_a_table_has_a_cell_for_every_head() -> None:
    rows = [line for line in body(some(), SUBJECTS, Sizes(), {}, []).splitlines() if line.startswith("|")]
    blocks: list[list[int]] = [[]]
    for line in rows:
        if set(line) <= {"|", "-"}:
            blocks.append([blocks[-1].pop()])
        blocks[-1].append(line.count("|"))
    assert len(blocks) == 7
    assert all(len(set(block)) == 1 for block in blocks if block)
    assert len(target_table(targets(some())).splitlines()) == len(targets(some())) + 2


def test_subjects_are_chosen_by_engine_by_store_or_by_both() -> None:
    assert chosen([]) == list(SUBJECTS)
    assert [each.name for each in chosen(["dbos"])] == ["dbos-postgresql", "dbos-sqlite"]
    assert [each.name for each in chosen(["dbos-sqlite", "redis"])] == ["dbos-sqlite", "celery-redis", "dramatiq-redis"]
    with pytest.raises(ValueError, match="nobody is called rabbit"):
        chosen(["rabbit"])


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(200, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99)) == (101.0, 199.0)
    assert percentile([7.0], 0.99) == 7.0
