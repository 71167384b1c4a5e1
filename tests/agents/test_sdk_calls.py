"""Calls of the agent SDK as its document specifies them, where users meet their edges."""

from __future__ import annotations

import pytest
from tests.agents.scenes import add

from treadle.agents import AgentPoller, Evaluator, Persistence, open_persistence
from treadle.model.errors import InvalidStoreUrl


@pytest.mark.parametrize("task_id", ["nope", "", "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"])
def test_an_unknown_task_is_none(persistence: Persistence, task_id: str) -> None:
    assert persistence.get_task(task_id) is None


def test_the_metadata_of_a_handler_is_there_when_it_is_empty(memory: Persistence) -> None:
    seen: list[object] = []
    poller = AgentPoller(memory, Evaluator(memory))
    poller.register("x.Y", lambda payload: seen.append(payload["_handler_metadata"]))
    add(memory, "x.Y")
    assert poller.poll_once() == 1
    assert seen == [{}]


def test_a_direct_claim_can_be_extended_until_it_is_settled(persistence: Persistence) -> None:
    add(persistence, "x.Y")
    task = persistence.claim_task(["x.Y"])
    assert task is not None
    before = persistence.run(persistence.engine.get_task(task.uuid)).wake_at
    assert persistence.extend_task(task.uuid, 600_000)
    after = persistence.run(persistence.engine.get_task(task.uuid)).wake_at
    assert before is not None
    assert after is not None
    assert after - before > 400_000
    assert persistence.complete_task(task.uuid)
    assert not persistence.extend_task(task.uuid)


@pytest.mark.parametrize("scheme", ["mongodb", "mongodb+srv"])
def test_a_mongodb_url_is_answered_with_the_alternatives(scheme: str) -> None:
    with pytest.raises(InvalidStoreUrl, match=r"no MongoDB store.*PostgreSQL.*sqlite:///"):
        open_persistence(f"{scheme}://user:secret@host/afl")
