"""The state tables hold together, and the SQL of both stores allows just the states that are in them."""

from __future__ import annotations

import re

import pytest

from treadle.kernel.store.queries import EntityHistory
from treadle.kernel.store.verify import check_history
from treadle.model.states import FINAL_TASK_STATES, HELD_TRANSITIONS, LIVE_TASK_STATES, MACHINES, TASK, BlockReason, TaskState
from treadle.model.tasks import Task, Transition
from treadle.stores.statements import load_migrations


@pytest.mark.parametrize("package", ["treadle.stores.sqlite", "treadle.stores.postgres"])
@pytest.mark.parametrize(("table", "states"), [("tasks", LIVE_TASK_STATES), ("finished", FINAL_TASK_STATES)])
def test_the_check_in_sql_is_the_state_table(package, table, states):
    first, *later = load_migrations(package)
    body, *_ = re.findall(rf"create table {table}(?:_rest)? \((.*?)\n\)", first.up, re.DOTALL)
    (check,) = re.findall(r"state text not null (?:constraint \w+ )?check \(state in \((.*?)\)\)", body)
    known = [part.strip("' ") for part in check.split(",")]
    if table == "tasks":
        assert "awaiting_external" not in known
        assert [step.name for step in later if "'pending', " in step.up.replace("''", "'")] == ["awaiting_external"]
        known.insert(1, "awaiting_external")
    assert known == list(states)


def test_live_and_final_states_are_all_stored_states():
    assert {*LIVE_TASK_STATES, *FINAL_TASK_STATES} == set(TASK.states) == set(TaskState) - {TaskState.RUNNING, TaskState.PAUSED}
    assert TASK.final == set(FINAL_TASK_STATES)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
def test_every_state_can_be_reached_and_every_live_one_can_be_left(machine):
    reached, frontier = {machine.initial}, [machine.initial]
    while frontier:
        state = frontier.pop()
        targets = {machine.transitions[state, transition] for transition in machine.possible(state)}
        frontier += targets - reached
        reached |= targets
    assert reached == set(machine.states)
    for state in set(machine.states) - machine.final:
        assert machine.possible(state)


def test_a_final_state_is_left_only_by_an_operator():
    left = {(state, transition) for state, transition in TASK.transitions if state in TASK.final}
    assert {transition for _, transition in left} == {"requeue", "discard"}
    assert not any(state == TaskState.COMPLETED for state, _ in left)


def test_every_live_task_can_be_canceled_paused_and_resumed():
    for state in LIVE_TASK_STATES:
        assert TASK.target(state, "cancel") == TaskState.CANCELED
        assert TASK.target(state, "pause") == TASK.target(state, "resume") == state


def test_an_expired_lease_leads_back_to_where_the_task_was():
    for state in LIVE_TASK_STATES:
        assert TASK.target(state, "expire") == TASK.target(state, "release") == state


def test_transitions_that_need_an_owner_start_in_live_states():
    assert {transition for _, transition in TASK.transitions} >= HELD_TRANSITIONS
    assert not {state for state, transition in TASK.transitions if transition in HELD_TRANSITIONS} & TASK.final


def test_a_transition_outside_the_table_is_impossible():
    assert TASK.target(TaskState.COMPLETED, "retry") is None
    assert TASK.target("nowhere", "succeed") is None
    assert TASK.possible(TaskState.COMPLETED) == ()


def test_block_reasons_are_distinct_bits():
    bits = [BlockReason.OVER_LIMIT, BlockReason.LIST_PAUSED, BlockReason.RUN_PAUSED, BlockReason.TASK_PAUSED]
    assert sum(bits) == 15
    assert all(bit.bit_count() == 1 for bit in bits)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "pending"),
        ({"owner_id": "o"}, "running"),
        ({"blocked_by": BlockReason.OVER_LIMIT}, "pending"),
        ({"blocked_by": BlockReason.TASK_PAUSED}, "paused"),
        ({"blocked_by": BlockReason.RUN_PAUSED, "owner_id": "o"}, "paused"),
        ({"state": "awaiting_external", "owner_id": "o"}, "awaiting_external"),
        ({"state": "awaiting_approval"}, "awaiting_approval"),
        ({"state": "completed", "owner_id": "o", "finished_at": 1}, "completed"),
    ],
)
def test_the_shown_state_of_a_task_is_derived(fields, shown):
    assert Task(id="t", queue_id=1, **fields).shown_state == shown


# --- histories against the table ---


def history(*transitions: tuple[str, str, str], state: str, version: int | None = None, entity: str = "task") -> EntityHistory:
    rows = tuple(
        Transition(
            seq=number,
            at=0,
            entity=entity,
            entity_id="e",
            version=number,
            transition=transition,
            from_state=source,
            to_state=target,
        )
        for number, (source, transition, target) in enumerate(transitions, start=1)
    )
    return EntityHistory(entity, "e", state, len(rows) if version is None else version, rows)


RETRY, SUCCEED = ("pending", "retry", "pending"), ("pending", "succeed", "completed")
FAIL, REQUEUE = ("pending", "fail", "failed"), ("failed", "requeue", "pending")


@pytest.mark.parametrize(
    "sound",
    [
        history(state="pending"),
        history(RETRY, RETRY, SUCCEED, state="completed"),
        history(FAIL, REQUEUE, SUCCEED, state="completed"),
        history(("pending", "hand_off", "awaiting_external"), state="awaiting_external"),
        history(("pending", "start", "running"), ("running", "pause", "paused"), state="paused", entity="run"),
    ],
)
def test_a_history_that_follows_the_table_is_valid(sound):
    assert check_history(sound) == []


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (history(state="completed"), "the row says completed"),
        (history(RETRY, state="pending", version=2), "counts 2 transitions, but the log has 1"),
        (history(RETRY, state="pending", version=0), "counts 0 transitions, but the log has 1"),
        (history(FAIL, SUCCEED, state="completed"), "starts in pending, but the one before ended in failed"),
        (history(("failed", "requeue", "pending"), state="pending"), "starts in failed, but the one before ended in pending"),
        (history(("pending", "levitate", "pending"), state="pending"), "cannot be made from pending"),
        (history(("pending", "succeed", "failed"), state="failed"), "leads from pending to completed, not to failed"),
        (history(state="x", entity="ghost"), "no state table"),
    ],
)
def test_a_history_that_does_not_follow_the_table_is_reported(broken, complaint):
    assert any(complaint in problem for problem in check_history(broken))


def test_a_gap_and_a_repetition_in_the_versions_are_reported():
    sound = history(RETRY, RETRY, RETRY, state="pending")
    gap = EntityHistory("task", "e", "pending", 2, sound.transitions[::2])
    assert check_history(gap) == ["task e: transition 3 (retry) should be number 2"]
    twice = EntityHistory("task", "e", "pending", 2, (sound.transitions[0], sound.transitions[0]))
    assert check_history(twice) == ["task e: transition 1 (retry) should be number 2"]


def test_a_transition_by_another_actor_is_reported():
    transitions = history(RETRY, state="pending").transitions
    assert check_history(EntityHistory("task", "other", "pending", 1, transitions)) == [
        "task other: transition 1 (retry) belongs to task e"
    ]
