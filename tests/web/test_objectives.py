"""The board of objectives, and the page of one."""

from __future__ import annotations

from tests.web.conftest import Visit


async def test_an_objective_is_added_approved_blocked_and_unblocked(visit: Visit):
    criteria = "the tests pass\nit is polite"
    page = await visit.do("/objectives", title="greet must name the person", criteria=criteria, importance="4")
    assert "greet must name the person is NEW" in page
    assert "it is polite" in page
    (found,) = await visit.engine.objectives.list()
    base = f"/objectives/{found.objective_id}"
    assert base in await visit.page("/objectives")
    assert "is TODO now." in await visit.do(f"{base}/approve")
    assert "no budget" in await visit.do(f"{base}/block", reason="no budget")
    assert (await visit.engine.objectives.show(found.objective_id)).objective.open_blockers
    assert "is TODO now." in await visit.do(f"{base}/unblock")
    assert not (await visit.engine.objectives.show(found.objective_id)).objective.open_blockers
