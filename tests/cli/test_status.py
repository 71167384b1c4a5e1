"""`treadle status`: how the system is, for people, for machines and for scripts."""

from __future__ import annotations

from tests.commands import Treadle


def test_status_reports_problems_with_a_remedy_and_counts_work(treadle: Treadle):
    treadle.json("enqueue", "later", "--delay", "1h")
    well = treadle("status", "--check")
    assert (well.code, well.out.startswith("ok (namespace default)")) == (0, True)
    treadle.json("enqueue", "greet")
    found = treadle.json("status")
    assert (found["health"], found["tasks"]["ready"], found["tasks"]["waiting"]) == ("degraded", 1, 1)
    remedy = "start one with `treadle worker --handlers MODULE`"
    assert found["reasons"] == [f"no live worker for 1 ready task: greet in list default; {remedy}"]
    people = treadle("status")
    assert (people.code, "no live worker" in people.out, "1 ready" in people.out) == (0, True, True)
    assert treadle("status", "--check").code == 1
