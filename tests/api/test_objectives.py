"""Calls about objectives, on an engine and over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.api.conftest import Scene
from tests.goals.scene import GATE, OK, READINESS, RUN, SCHEDULE, play, play_all, settle, take, use_topology

from treadle.engine.operations import Operations
from treadle.goals.records import ObjectiveNotFound
from treadle.model.access import GRANTS, Access, Scope
from treadle.model.errors import Forbidden, IllegalTransition, InvalidInput

NOBODY = "01935b8e-7c3a-7000-8000-000000000000"


async def test_an_objective_is_added_approved_blocked_unblocked_and_edited_by_the_caller(scene: Scene):
    api = scene.api.objectives
    made = await api.add("Do it", acceptance_criteria=["fast"], urgency=4, metadata={"a": 1}, key="only")
    assert (made.status, made.acceptance_criteria, made.urgency, made.created_by) == ("NEW", ["fast"], 4, "local")
    assert (await api.add("Again", key="only")).objective_id == made.objective_id
    with pytest.raises(IllegalTransition):
        await api.block(made.objective_id, reason="no")
    approved = await api.approve(made.objective_id)
    assert (approved.status, approved.approved_by) == ("TODO", "local")
    blocked = await api.block(made.objective_id, reason="no key")
    assert (blocked.status, [each.text for each in blocked.open_blockers]) == ("BLOCKED", ["no key"])
    shown = await api.get(made.objective_id)
    assert (shown.why, shown.workorder_trails, shown.overdue) == ("blocked: no key", [], None)
    assert [(transition.transition, transition.actor) for transition in shown.transitions] == [
        ("approve", "local"),
        ("block", "local"),
    ]
    assert (await api.unblock(made.objective_id)).status == "TODO"
    edited = await api.edit(made.objective_id, title="Do that", importance=0)
    assert (edited.title, edited.importance, edited.urgency, edited.metadata) == ("Do that", 0, 4, {"a": 1})


async def test_an_objective_behind_a_blocked_one_shows_that_blocker(scene: Scene):
    api = scene.api.objectives
    first = await api.add("Find the key")
    second = await api.add("Open the door", blocked_by=[first.objective_id])
    for each in (first, second):
        await api.approve(each.objective_id)
    waits = f"blocked: objective {first.objective_id} (Find the key), which is"
    assert (await api.get(second.objective_id)).why == f"{waits} TODO"
    await api.block(first.objective_id, reason="nobody knows where")
    shown = await api.get(second.objective_id)
    assert (shown.status, shown.why) == ("TODO", f"{waits} BLOCKED: nobody knows where")
    (listed,) = (await api.list(status=["TODO"])).objectives
    (on_board,) = (await api.board()).TODO.objectives
    for each in (shown, listed, on_board):
        assert [blocker.objective_status for blocker in each.open_blockers] == ["BLOCKED"]


async def test_everything_caused_by_an_objective_is_shown(scene: Scene, tmp_path: Path):
    use_topology(scene.engine, tmp_path)
    made = await scene.api.objectives.add("Do it")
    await scene.api.objectives.approve(made.objective_id)
    await play_all(scene.engine, READINESS)
    task = await take(scene.engine, SCHEDULE)
    assert task is not None
    (claim,) = (await scene.api.objectives.claims()).claims
    assert (claim.resource_type, claim.task_id, claim.claim_version) == ("EVENT", task.id, task.claim_version)
    await settle(scene.engine, task)
    await play(scene.engine, RUN, {"content": "ok", "notes": ["done"]})
    await play(scene.engine, GATE, OK)
    shown = await scene.api.objectives.get(made.objective_id)
    assert (shown.status, shown.why, [event.processed_reason for event in shown.events]) == ("DONE", "done", ["SCHEDULED"])
    (trail,) = shown.workorder_trails
    assert (trail.workorder.status, trail.workorder.diazotroph_type, trail.workorder.budget_ms) == ("EXECUTED", "do", 30_000)
    assert trail.context_snapshot is not None
    assert (trail.context_snapshot.objective.title, trail.context_snapshot.topology_name) == ("Do it", "tests")
    assert trail.output_bundle is not None
    assert (trail.output_bundle.content, trail.output_bundle.notes) == ("ok", ["done"])
    assert trail.run_record is not None
    assert (trail.run_record.gate_result, [gate.result for gate in trail.run_record.gates]) == ("PASS", ["PASS"])
    assert trail.pause_state is not None
    assert (trail.pause_state.reason, trail.pause_state.terminal) == ("RUN_COMPLETE", True)
    assert trail.workorder.executed_at is not None
    assert trail.workorder.executed_at >= trail.workorder.created_at


async def test_pages_and_the_board_group_objectives_by_status(scene: Scene):
    api = scene.api.objectives
    made = [(await api.add(f"Do {n}", importance=n)).objective_id for n in range(3)]
    await api.approve(made[0])
    first = await api.list(limit=2)
    rest = await api.list(limit=2, before=first.next_before)
    assert [each.objective_id for each in (*first.objectives, *rest.objectives)] == made[::-1]
    assert rest.next_before is None
    assert [each.objective_id for each in (await api.list(status=["TODO", "DONE"])).objectives] == [made[0]]
    board = await api.board(limit=1)
    assert (board.NEW.count, board.TODO.count, board.DONE.count) == (2, 1, 0)
    assert [each.title for each in board.NEW.objectives] == ["Do 2"]


async def test_invalid_arguments_are_rejected(scene: Scene):
    api = scene.api.objectives
    with pytest.raises(ObjectiveNotFound):
        await api.get(NOBODY)
    with pytest.raises(InvalidInput):
        await api.add("")
    with pytest.raises(InvalidInput):
        await api.add("Do it", urgency=5)
    with pytest.raises(InvalidInput):
        await api.board(limit=1001)
    made = await api.add("Do it")
    with pytest.raises(InvalidInput, match="either"):
        await api.block(made.objective_id)


async def test_approving_is_a_separate_permission(scene: Scene) -> None:
    made = await scene.api.objectives.add("Do it")
    operator = Operations(scene.engine, Access("operator", GRANTS[Scope.OPERATE]))
    approver = Operations(scene.engine, Access("approver", GRANTS[Scope.APPROVE]))
    for call in (operator.objectives.approve(made.objective_id), approver.objectives.unblock(made.objective_id)):
        with pytest.raises(Forbidden):
            await call
    assert (await approver.objectives.approve(made.objective_id)).approved_by == "approver"
    assert (await operator.objectives.block(made.objective_id, reason="wait")).status == "BLOCKED"
