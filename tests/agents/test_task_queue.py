"""Section 3 of the agent SDK: the task queue. On every store."""

from __future__ import annotations

import threading
from dataclasses import fields

import pytest
from tests.agents.scenes import ONE, add, one

from treadle.agents import Evaluator, Persistence, PersistenceAPI, TaskDefinition, TaskState
from treadle.model.errors import InvalidPayload, Refused


@pytest.mark.postgres
def test_claim_task_must_move_exactly_one_task_from_pending_to_running_and_return_it(persistence):
    ids = {add(persistence, amount=n) for n in range(3)}
    task = persistence.claim_task(["billing.Pay"])
    assert task is not None
    assert task.uuid in ids
    assert task.state == TaskState.RUNNING
    states = sorted(persistence.get_task(each).state for each in ids)
    assert states == [TaskState.PENDING, TaskState.PENDING, TaskState.RUNNING]


def test_claim_task_must_return_none_when_no_task_matches(persistence):
    assert persistence.claim_task(["billing.Pay"]) is None
    add(persistence, "billing.Other")
    assert persistence.claim_task(["billing.Pay"]) is None
    assert persistence.claim_task(["billing.Other"], "another-list") is None
    assert persistence.claim_task([]) is None


def test_concurrent_callers_must_not_receive_the_same_task(persistence):
    ids = [add(persistence, n=n) for n in range(40)]
    taken: list[str] = []

    def claim() -> None:
        while (task := persistence.claim_task(["billing.Pay"])) is not None:
            taken.append(task.uuid)

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(ids)


def test_the_oldest_task_is_claimed_first(persistence):
    first = add(persistence, n=1)
    add(persistence, n=2)
    assert persistence.claim_task(["billing.Pay"]).uuid == first


@pytest.mark.parametrize("name", ["billing.Pay", "Pay"])
def test_a_task_is_claimed_by_its_qualified_or_its_short_name(persistence, name):
    task_id = add(persistence, "billing.Pay")
    assert persistence.claim_task([name]).uuid == task_id


def test_a_step_has_at_most_one_live_task(persistence):
    evaluator = Evaluator(persistence)
    _, step_id = one(evaluator)
    assert persistence.claim_task(["Pay"]).step_id == step_id
    assert persistence.claim_task(["Pay"]) is None


def test_a_task_definition_has_the_fields_and_defaults_of_the_specification(persistence):
    result = Evaluator(persistence).execute(ONE, {"total": 2.5})
    (task,) = persistence.get_pending_tasks()
    names = "uuid name runner_id workflow_id flow_id step_id state created updated error task_list_name data_type data"
    assert [field.name for field in fields(TaskDefinition)] == names.split()
    assert (task.name, task.workflow_id, task.runner_id) == ("billing.Pay", result.workflow_id, result.workflow_id)
    assert (task.state, task.task_list_name, task.data, task.error) == ("pending", "default", {"amount": 2.5}, None)
    assert task.step_id
    assert task.created > 0
    assert persistence.get_task_for_step(task.step_id) == task


def test_the_states_of_a_task_are_those_of_the_specification():
    values = {name: value for name, value in vars(TaskState).items() if name.isupper()}
    assert values == {
        "PENDING": "pending",
        "RUNNING": "running",
        "COMPLETED": "completed",
        "FAILED": "failed",
        "IGNORED": "ignored",
        "CANCELED": "canceled",
    }


def test_a_store_has_every_method_of_the_persistence_api(memory):
    for name in vars(PersistenceAPI):
        assert name.startswith("_") or callable(getattr(memory, name))


def test_a_claimed_task_is_ended_by_saving_its_state_and_others_cannot_end_it(persistence):
    task_id = add(persistence)
    task = persistence.get_task(task_id)
    task.state = TaskState.COMPLETED
    with pytest.raises(Refused, match="claim it"):
        persistence.save_task(task)
    claimed = persistence.claim_task(["billing.Pay"])
    claimed.state, claimed.error = TaskState.FAILED, {"code": "declined", "message": "no money"}
    persistence.save_task(claimed)
    assert persistence.get_task(task_id).error == {"code": "declined", "message": "no money"}
    persistence.save_task(task)
    assert persistence.get_task(task_id).state == TaskState.FAILED


def test_a_payload_key_that_starts_with_an_underscore_is_refused_when_a_task_is_saved(memory):
    with pytest.raises(InvalidPayload, match="_facet_name"):
        add(memory, _facet_name="x")


def test_an_unsettled_claim_expires_after_two_minutes(tmp_path):
    from treadle import Engine
    from treadle.settings import Settings
    from treadle.testing import ManualClock

    clock = ManualClock()
    store = Persistence(engine=Engine("memory://", settings=Settings(), clock=clock))
    with store:
        task_id = add(store)
        first = store.claim_task(["billing.Pay"])
        assert store.claim_task(["billing.Pay"]) is None
        clock.advance(60)
        assert store.claim_task(["billing.Pay"]) is None
        clock.advance(61)
        assert store.claim_task(["billing.Pay"]).uuid == first.uuid == task_id
