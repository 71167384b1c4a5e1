"""The comparison of two revisions, here of this one with itself."""

from __future__ import annotations

from bench.against import FIGURES, HERE, compare, show
from bench.servers import temporary_store


async def test_both_revisions_do_the_same_work_in_turns():
    with temporary_store("sqlite") as url:
        found = await compare(url, HERE, rounds=2, size=50)
    assert set(found) == {"now", "before"}
    for figures in found.values():
        assert set(figures) == set(FIGURES)
        assert all(len(each) == 2 and min(each) > 0 for each in figures.values())
    assert show(found).count("\n") == len(FIGURES) + 1
