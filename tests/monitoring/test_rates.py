"""Rates by handler: the last hour, or as far back as the newest ends reach."""

from __future__ import annotations

from treadle.kernel.reads.throughput import HOUR_FOR, rates_of
from treadle.kernel.store.queries import TaskEnd

NOW = 10 * HOUR_FOR


def end(ago: int, took: int | None = 10, name: str = "a", state: str = "completed", namespace: str = "default") -> TaskEnd:
    return TaskEnd(namespace, "handler", name, state, NOW - ago, None if took is None else NOW - ago - took)


def test_ends_of_the_last_hour_are_counted_by_name_with_median_and_95th_percentile():
    ends = [end(n, took) for n, took in enumerate([*range(1, 100), 5000])]
    ends += [end(1, state="failed"), end(2, None, state="canceled"), end(HOUR_FOR + 1), end(1, namespace="other")]
    found = rates_of([*ends, end(5, name="b")], {("handler", "a"): 2, ("handler", "c"): 1, ("handler", "d"): 0}, NOW, "default")
    assert found.since_at.ms == NOW - HOUR_FOR
    a, b, c = found.rates
    assert (a.name, a.started, a.finished, a.failed, a.running) == ("a", 103, 102, 1, 2)
    assert (a.median_for, a.p95_for) == (50, 95)
    assert (b.name, b.finished, b.median_for) == ("b", 1, 10)
    assert (c.name, c.started, c.finished, c.running, c.median_for) == ("c", 1, 0, 1, None)


def test_a_busy_store_is_counted_as_far_back_as_the_ends_reach():
    found = rates_of([end(n * 100) for n in range(10)], {}, NOW, "default", most=10)
    assert found.since_at.ms == NOW - 900
    assert found.rates[0].finished == 10
    assert rates_of([], {}, NOW, "default").rates == []
