"""The board of objectives, and the page of one."""

from __future__ import annotations

from tests.web.conftest import Visit


async def test_an_objective_is_added_approved_blocked_and_unblocked(visit: Visit):
    criteria = "the tests pass\nit is polite"
    page = await visit.do("/objectives", title="greet must name the person", acceptance_criteria=criteria, importance="4")
    assert "greet must name the person is NEW" in page
    assert "it is polite" in page
    (found,) = await visit.engine.goals.objectives.list()
    base = f"/objectives/{found.objective_id}"
    assert base in await visit.page("/objectives")
    assert "is now TODO." in await visit.do(f"{base}/approve")
    assert "no budget" in await visit.do(f"{base}/block", reason="no budget")
    assert (await visit.engine.goals.objectives.show(found.objective_id)).objective.open_blockers
    assert "is now TODO." in await visit.do(f"{base}/unblock")
    assert not (await visit.engine.goals.objectives.show(found.objective_id)).objective.open_blockers


async def test_objectives_that_depend_on_a_blocked_one_are_marked(visit: Visit):
    objectives = visit.engine.goals.objectives
    first = await objectives.add("find the key", actor="ada")
    await objectives.approve(first.objective_id, actor="ada")
    second = await objectives.add("open the door", actor="ada", blocked_by=[first.objective_id])
    await objectives.approve(second.objective_id, actor="ada")
    assert "which is blocked" not in await visit.page("/objectives")
    await objectives.block(first.objective_id, actor="ada", reason="lost")
    assert "which is blocked" in await visit.page("/objectives")
    assert "which is BLOCKED: lost" in await visit.page(f"/objectives/{second.objective_id}")
