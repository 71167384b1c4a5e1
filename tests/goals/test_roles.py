"""Decisions of the roles; each artifact that they produce fits its schema."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.goals.artifacts import (
    ID,
    LATER,
    NOW,
    OTHER_ID,
    bundle,
    event,
    event_record,
    new_objective,
    objective,
    seen,
    topology,
    workorder,
    workorder_record,
)

from treadle.api.objectives import (
    Blocker,
    BundleError,
    ContextSnapshot,
    GateReport,
    Objective,
    OutputBundle,
    PastWorkorder,
    PauseState,
    ReadinessEvent,
    RunRecord,
    Workorder,
)
from treadle.goals.decide import (
    Decision,
    blocked,
    decide_executed,
    decide_gate,
    decide_overdue,
    decide_readiness,
    decide_schedule,
    digest_of,
    prompt_of,
    resolved_by,
    text_blocker,
)
from treadle.goals.records import event_id_of
from treadle.goals.schemas import check_document
from treadle.model.names import QueueKey
from treadle.model.values import decode

SCHEMAS = {
    Objective: "objective",
    ReadinessEvent: "event",
    ContextSnapshot: "context_snapshot",
    Workorder: "workorder",
    OutputBundle: "output_bundle",
    RunRecord: "run_record",
    PauseState: "pause_state",
}
OPEN = Blocker(blocker_id="b1", kind="TEXT", text="no key")
WAITS = Blocker(blocker_id="b2", kind="OBJECTIVE", objective_id=OTHER_ID, text="Before")
PASSED = [GateReport(gate="first", result="PASS", reason="ok"), GateReport(gate="second", result="PASS", reason="ok")]
FAILED = [GateReport(gate="first", result="PASS", reason="ok"), GateReport(gate="second", result="FAIL", reason="not so")]


def checked(decision: Decision) -> Decision:
    """The decision, all of whose documents fit their schemas."""
    for document in [*decision.new, *(changed.document for changed in decision.changed)]:
        check_document(SCHEMAS[type(document)], document.as_json())
    return decision


def one(decision: Decision, kind: type[Any]) -> Any:
    (found,) = [each for each in decision.new if isinstance(each, kind)]
    return found


def after(decision: Decision) -> Objective:
    (found,) = [changed.document for changed in decision.changed if isinstance(changed.document, Objective)]
    return found


def transition(decision: Decision) -> str | None:
    (found,) = [changed.transition for changed in decision.changed if isinstance(changed.document, Objective)]
    return found


# --- readiness ---


def test_an_executable_objective_emits_the_event_of_its_status_with_the_task_that_claims_it():
    decision = checked(decide_readiness(seen(objective()), (), LATER))
    made = one(decision, ReadinessEvent)
    assert (made.event_id, made.resource_id, made.processed) == (event_id_of(ID, 1), ID, False)
    (task,) = decision.tasks
    assert (task.queue, decode(task.payload)) == (
        QueueKey("default", "goal.schedule", "engine", "TICKET"),
        {"event_id": made.event_id},
    )
    assert (after(decision).emitted_version, transition(decision)) == (1, None)


@pytest.mark.parametrize(
    "what",
    [
        new_objective(),
        objective(blockers=[OPEN]),
        objective(blockers=[WAITS]),
        objective(status="IN_PROGRESS"),
        objective(status="BLOCKED", blockers=[OPEN]),
        objective(status="DONE"),
        objective(emitted_version=1),
        objective(status_version=4, emitted_version=4),
    ],
    ids=lambda what: f"{what.status}-{len(what.blockers)}-{what.emitted_version}",
)
def test_an_objective_that_is_not_executable_or_already_emitted_emits_no_event(what: Objective):
    decision = decide_readiness(seen(what), (), LATER)
    assert (decision.new, decision.changed, decision.tasks, decision.result["emitted"]) == ([], [], [], False)


def test_the_next_status_of_an_objective_emits_another_event():
    decision = decide_readiness(seen(objective(status_version=3, emitted_version=1)), (), LATER)
    assert one(decision, ReadinessEvent).event_id == event_id_of(ID, 3) != event_id_of(ID, 1)


def test_a_blocker_that_is_done_is_resolved_and_the_last_one_makes_it_ready():
    decision = checked(decide_readiness(seen(objective(blockers=[WAITS])), {OTHER_ID}, LATER))
    (blocker,) = after(decision).blockers
    assert (blocker.resolved, blocker.resolved_by, blocker.resolved_at) == (True, "readiness", LATER)
    assert (transition(decision), decision.result["emitted"]) == ("resolve", True)
    still = checked(decide_readiness(seen(objective(blockers=[WAITS, OPEN])), {OTHER_ID}, LATER))
    assert (transition(still), still.result["emitted"], still.tasks) == ("resolve", False, [])


def test_resolving_the_last_blocker_makes_an_objective_todo_and_ready():
    decision = checked(
        decide_readiness(seen(objective(status="BLOCKED", blockers=[WAITS], failed_workorders=2)), {OTHER_ID}, LATER)
    )
    assert (after(decision).status, after(decision).status_version, after(decision).failed_workorders) == ("TODO", 2, 0)
    assert (transition(decision), one(decision, ReadinessEvent).status_version) == ("unblock", 2)


def test_a_new_objective_with_a_done_blocker_still_waits_for_its_approval():
    decision = checked(decide_readiness(seen(new_objective(blockers=[WAITS])), {OTHER_ID}, LATER))
    assert (after(decision).status, transition(decision), decision.tasks) == ("NEW", "resolve", [])


def test_approvals_by_a_reviewer_and_by_a_person_have_the_same_effects():
    by_reviewer = checked(decide_readiness(seen(new_objective()), (), LATER, {"by": "reader", "approved": True, "reason": "fine"}))
    assert (after(by_reviewer).approved_by, transition(by_reviewer)) == ("reviewer:reader", "approve")
    by_person = decide_readiness(seen(objective()), (), LATER)
    assert one(by_reviewer, ReadinessEvent) == one(by_person, ReadinessEvent)
    assert by_reviewer.tasks == by_person.tasks


def test_a_refusal_by_a_reviewer_leaves_the_objective_new():
    decision = checked(decide_readiness(seen(new_objective()), (), LATER, {"by": "reader", "approved": False, "reason": "vague"}))
    assert (after(decision).status, transition(decision), decision.new, decision.tasks) == ("NEW", "review", [], [])
    assert decision.changed[0].data == {"approved": False, "reason": "vague"}


def test_a_review_of_an_emitted_version_is_a_no_op():
    decision = decide_readiness(seen(objective(emitted_version=1)), (), LATER, {"by": "reader", "approved": True})
    assert decision.changed == []


def test_an_objective_remembers_its_last_resolved_blockers_and_all_open_ones():
    what = objective()
    for number in range(30):
        what = resolved_by(blocked(what, text_blocker(what, f"reason {number}")), "ada", LATER)
    what = blocked(what, text_blocker(what, "open"))
    assert [each.text for each in what.blockers] == [*(f"reason {number}" for number in range(10, 30)), "open"]
    assert [each.blocker_id for each in what.blockers] == [f"b{number}" for number in range(11, 32)]


# --- scheduler ---


def schedule(what: Objective, **fields: Any) -> Decision:
    return checked(decide_schedule(event(**fields), event_record(event(**fields)), seen(what), topology(budget_ms=77), LATER))


def test_scheduling_makes_snapshot_and_workorder_sets_in_progress_and_processes_the_event():
    decision = schedule(objective(emitted_version=1))
    order, snapshot = one(decision, Workorder), one(decision, ContextSnapshot)
    assert (order.diazotroph_type, order.budget_ms, order.status, order.snapshot_id) == ("do", 77, "CREATED", snapshot.snapshot_id)
    assert (after(decision).status, after(decision).work_order_id, transition(decision)) == (
        "IN_PROGRESS",
        order.work_order_id,
        "schedule",
    )
    (processed,) = [each.document for each in decision.changed if isinstance(each.document, ReadinessEvent)]
    assert (processed.processed, processed.processed_reason, processed.processed_at) == (True, "SCHEDULED", LATER)
    (task,) = decision.tasks
    assert (task.queue, decode(task.payload)) == (
        QueueKey("default", "goal.run", "default", "do"),
        {"work_order_id": order.work_order_id},
    )


def test_a_snapshot_is_complete_for_its_instant():
    past = {"gate_result": "FAIL", "run_record_digest": "a" * 64, "output_bundle_digest": "b" * 64}
    what = objective(
        acceptance_criteria=["fast", "small"],
        blockers=[replace(OPEN, resolved=True, resolved_at=NOW, resolved_by="ada")],
        workorders=[PastWorkorder(work_order_id=OTHER_ID, **past)],
    )
    snapshot = one(schedule(what), ContextSnapshot)
    assert (snapshot.objective, snapshot.blockers) == (what, what.blockers)
    assert [each.digest for each in snapshot.run_records] == ["a" * 64]
    assert [each.digest for each in snapshot.output_bundles] == ["b" * 64]
    assert (snapshot.topology_name, len(snapshot.topology_digest)) == ("topology", 64)
    assert snapshot.prompt == "Do it\n\nIt is done when:\n- fast\n- small"


def test_scheduling_a_processed_event_is_a_no_op():
    decision = schedule(objective(), processed=True, processed_reason="SCHEDULED", processed_at=NOW)
    assert (decision.new, decision.changed, decision.tasks) == ([], [], [])
    assert decision.result == {"event_id": event_id_of(ID, 1), "reason": "SCHEDULED", "repeated": True}


@pytest.mark.parametrize(
    "what",
    [objective(status_version=2), objective(status="BLOCKED"), objective(status="IN_PROGRESS"), objective(blockers=[OPEN])],
    ids=["next status", "BLOCKED", "IN_PROGRESS", "open blocker"],
)
def test_an_event_of_a_changed_objective_is_processed_as_stale(what: Objective):
    decision = schedule(what)
    (changed,) = decision.changed
    assert isinstance(changed.document, ReadinessEvent)
    assert (changed.document.processed_reason, decision.new, decision.tasks) == ("STALE", [], [])


def test_an_event_of_a_missing_objective_is_processed_as_stale():
    decision = decide_schedule(event(), event_record(event()), None, topology(), LATER)
    assert decision.result["reason"] == "STALE"


def test_an_objective_of_an_unknown_type_is_blocked_with_a_reason():
    decision = schedule(objective(type="STANDING"))
    assert (after(decision).status, transition(decision), decision.new, decision.tasks) == ("BLOCKED", "block", [], [])
    (blocker,) = after(decision).open_blockers
    assert "no rules for objectives of type STANDING" in str(blocker.text)
    assert decision.result["reason"] == "NO_TYPE_IN_TOPOLOGY"


def test_a_prompt_is_the_objectives_own_or_the_topologys():
    rules = topology(prompt="Please: $title ($type)\n$acceptance_criteria $unknown").types["TICKET"]
    assert prompt_of(objective(acceptance_criteria=["a"]), rules) == "Please: Do it (TICKET)\n- a $unknown"
    assert prompt_of(objective(prompt="Just $title"), rules) == "Just Do it"
    assert prompt_of(objective(), topology().types["TICKET"]) == "Do it"


# --- runner ---


def executed(result: Any, error: Any = None, **fields: Any) -> Decision:
    order = workorder(**fields)
    return checked(decide_executed(order, workorder_record(order), "Do it", result, error, LATER))


def test_a_handler_result_becomes_the_bundle_and_the_workorder_is_executed():
    decision = executed({"title": "Done", "metadata": {"a": 1}, "content": [1, 2], "notes": "short"})
    made = one(decision, OutputBundle)
    assert (made.title, made.metadata, made.content, made.notes, made.error) == ("Done", {"a": 1}, [1, 2], ["short"], None)
    (changed,) = decision.changed
    assert isinstance(changed.document, Workorder)
    assert (changed.document.status, changed.document.executed_at, changed.transition) == ("EXECUTED", LATER, "execute")
    assert [task.queue.kind for task in decision.tasks] == ["goal.gate"]


@pytest.mark.parametrize("result", [{}, {"n": 1}, {"content": 1, "other": 2}, {"notes": [1]}, {"title": 5}, {"metadata": []}])
def test_a_result_that_is_not_a_bundle_becomes_bundle_content(result: Any):
    made = one(executed(result), OutputBundle)
    assert (made.title, made.content, made.notes) == ("Do it", result, [])


def test_a_failure_is_a_bundle_too_with_the_error_in_its_notes():
    made = one(executed(None, {"code": "handler_error", "message": "no luck"}), OutputBundle)
    assert (made.content, made.notes) == (None, ["handler_error: no luck"])
    assert made.error == BundleError(code="handler_error", message="no luck")


def test_executing_an_executed_workorder_is_a_no_op():
    decision = executed({"n": 2}, status="EXECUTED", executed_at=NOW)
    assert (decision.new, decision.changed, decision.tasks, decision.result["repeated"]) == ([], [], [], True)


# --- gate ---


def judged(reports: list[GateReport], what: Objective | None = None, brought: OutputBundle | None = None, **rules: Any) -> Decision:
    order = workorder(status="EXECUTED", executed_at=NOW)
    what = what or objective(status="IN_PROGRESS", work_order_id=order.work_order_id)
    return checked(decide_gate(order, brought or bundle(), seen(what), reports, topology(**rules).types["TICKET"], LATER))


def test_all_gates_passing_is_done_with_one_run_record_and_one_pause_state():
    decision = judged(PASSED)
    record, pause = one(decision, RunRecord), one(decision, PauseState)
    assert (record.gate_result, record.gates, pause.reason, pause.terminal) == ("PASS", PASSED, "RUN_COMPLETE", True)
    assert (after(decision).status, transition(decision), after(decision).work_order_id) == ("DONE", "pass", None)
    assert [decode(task.payload) for task in decision.tasks] == [{"dependants_of": ID, "after_key": None}]
    (past,) = after(decision).workorders
    assert (past.gate_result, past.run_record_digest, past.output_bundle_digest) == ("PASS", digest_of(record), digest_of(bundle()))


def test_a_failing_gate_returns_the_objective_to_todo_with_a_new_event():
    decision = judged(FAILED)
    record, pause = one(decision, RunRecord), one(decision, PauseState)
    assert (record.gate_result, record.reason, pause.reason) == ("FAIL", "second: not so", "GATE_FAILED")
    assert (after(decision).status, after(decision).failed_workorders, transition(decision)) == ("TODO", 1, "fail")
    assert [decode(task.payload) for task in decision.tasks] == [{"objective_id": ID}]


def test_the_last_allowed_workorder_that_fails_leads_to_blocked():
    order_id = workorder().work_order_id
    for failures, status in ((0, "TODO"), (1, "TODO"), (2, "BLOCKED")):
        decision = judged(FAILED, objective(status="IN_PROGRESS", work_order_id=order_id, failed_workorders=failures))
        assert after(decision).status == status
    assert (transition(decision), decision.tasks) == ("give_up", [])
    (blocker,) = after(decision).open_blockers
    assert blocker.text == "3 workorders failed; the last: second: not so"
    assert len(one(decision, PauseState).actions) == 2


def test_a_policy_may_block_at_the_first_failure():
    decision = judged(FAILED, on_fail="BLOCKED")
    assert (after(decision).status, after(decision).open_blockers[0].text) == (
        "BLOCKED",
        "1 workorder failed; the last: second: not so",
    )


def test_an_exhausted_budget_fails_with_a_distinct_reason():
    spent = bundle(content=None, error=BundleError(code="budget_exhausted", message="too long"))
    decision = judged([], brought=spent)
    assert (one(decision, RunRecord).gate_result, one(decision, PauseState).reason) == ("FAIL", "BUDGET_EXHAUSTED")
    assert 1 <= len(one(decision, PauseState).actions) <= 3


def test_a_failed_handler_fails_the_gate_despite_passing_gates():
    decision = judged(PASSED, brought=bundle(error=BundleError(code="x", message="broke")))
    assert (one(decision, RunRecord).reason, one(decision, PauseState).reason) == ("no output: x: broke", "GATE_FAILED")


def test_a_gate_that_did_not_answer_fails():
    assert one(judged(PASSED[:1]), RunRecord).reason == "not judged by second"


def test_without_gates_a_bundle_without_error_passes():
    assert one(judged([], gates=[]), RunRecord).gate_result == "PASS"


def test_without_rules_for_its_type_it_fails_and_is_blocked():
    order = workorder(status="EXECUTED", executed_at=NOW)
    what = seen(objective(status="IN_PROGRESS", work_order_id=order.work_order_id))
    decision = checked(decide_gate(order, bundle(), what, [], None, LATER))
    assert (one(decision, RunRecord).gate_result, after(decision).status) == ("FAIL", "BLOCKED")


@pytest.mark.parametrize("what", [objective(status="DONE"), objective(status="IN_PROGRESS", work_order_id=OTHER_ID)])
def test_a_changed_objective_is_not_advanced_but_the_workorder_is_judged(what: Objective):
    decision = judged(PASSED, what)
    assert decision.changed == []
    assert {type(each) for each in decision.new} == {RunRecord, PauseState}


def test_repeated_decisions_derive_the_same_ids():
    for decide in (
        lambda: decide_readiness(seen(objective()), (), LATER),
        lambda: schedule(objective()),
        lambda: executed({"n": 1}),
        lambda: judged(PASSED),
        lambda: judged(FAILED),
        lambda: decide_overdue(seen(objective()), LATER),
    ):
        first, second = decide(), decide()
        assert (first.new, first.tasks, first.changed) == (second.new, second.tasks, second.changed)


# --- deadline monitor ---


@pytest.mark.parametrize("status", ["TODO", "IN_PROGRESS", "BLOCKED"])
def test_an_overdue_objective_is_flagged_with_a_pause_state_that_ends_no_workorder(status: str):
    decision = checked(decide_overdue(seen(objective(status=status)), LATER))
    pause = one(decision, PauseState)
    assert (pause.reason, pause.terminal, pause.work_order_id) == ("DEADLINE_PASSED", False, None)
    assert 1 <= len(pause.actions) <= 3
    assert (after(decision).overdue_at, after(decision).status, transition(decision)) == (LATER, status, "overdue")
