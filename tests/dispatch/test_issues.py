"""GitHub issues as payloads: typed, checked with errors that name the field, and the same in Python and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.dispatch.scenes import issue

from treadle.dispatch import (
    AgentCoordinator,
    GitHubIssue,
    InvalidIssue,
    Label,
    Owner,
    Repository,
    TaskState,
    TaskStatus,
    make_issue,
)
from treadle.dispatch.records import issue_json
from treadle.model.errors import InvalidPayload

REPOSITORY = issue()["repository"]


def test_an_issue_round_trips_through_json():
    made = make_issue(issue(7, body="text"))
    assert isinstance(made.repository, Repository)
    assert (made.labels, made.body, made.installation and made.installation.id) == ([Label("bug")], "text", 9)
    assert issue_json(made) == issue(7, body="text")


def test_unknown_github_fields_are_dropped_and_optional_fields_may_be_missing():
    sent = issue(state="open", user={"login": "ann"})
    for name in ("body", "labels", "installation"):
        del sent[name]
    made = make_issue(sent)
    assert (made.body, made.labels, made.installation) == (None, [], None)
    assert set(issue_json(made)) == {"id", "number", "title", "body", "labels", "repository"}


def test_the_example_is_an_issue():
    file = Path(__file__).parents[2] / "examples" / "dispatch" / "issue.json"
    assert make_issue(json.loads(file.read_text())).number == 17


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({}, "missing required field `id`"),
        (issue(number=0), "issue.number"),
        (issue(id="7"), "issue.id"),
        (issue(number=True), "issue.number"),
        (issue(title=""), "issue.title"),
        (issue(body=7), "issue.body"),
        (issue(labels=["bug"]), "issue.labels"),
        (issue(labels=[{}]), "`name`"),
        (issue(repository=None), "issue.repository"),
        (issue(repository=REPOSITORY | {"full_name": "loom"}), "issue.repository.full_name"),
        (issue(repository=REPOSITORY | {"owner": {}}), "issue.repository.owner"),
        (issue(installation={"id": -1}), "issue.installation.id"),
        ([], "JSON object"),
        (None, "JSON object"),
        ("issue", "JSON object"),
    ],
)
async def test_an_invalid_issue_is_rejected_with_the_field_name(bad, word, coordinator):
    with pytest.raises(InvalidIssue) as refused:
        await coordinator.enqueue(bad)
    assert word in str(refused.value)
    assert refused.value.code == "invalid_issue"
    assert await coordinator.get_all_tasks() == []


async def test_an_issue_made_in_python_is_checked_too(coordinator):
    repository = Repository(
        id=1, name="loom", full_name="weavers/loom", owner=Owner("weavers"), clone_url="file:///loom", default_branch="main"
    )
    good = GitHubIssue(id=1, number=1, title="t", repository=repository)
    found = await coordinator.get_task(await coordinator.enqueue(good))
    assert found is not None
    assert found.issue == good
    with pytest.raises(InvalidIssue, match=r"issue\.number"):
        await coordinator.enqueue(msgspec.structs.replace(good, number=-1))


async def test_text_that_not_every_store_can_keep_is_refused(coordinator):
    with pytest.raises(InvalidPayload):
        await coordinator.enqueue(issue(body="a\x00b"))


async def test_a_long_body_is_returned_complete(coordinator: AgentCoordinator):
    body = "lorem " * 5_000
    task_id = await coordinator.enqueue(issue(body=body))
    task = await coordinator.dequeue("worker-1")
    assert task is not None
    assert task.issue.body == body
    assert (await coordinator.get_all_tasks())[0].issue.body == body
    await coordinator.update_status(task_id, "completed")


def test_a_task_state_encodes_as_json():
    state = TaskState(id="x", status=TaskStatus("cancelled"), issue=make_issue(issue()))
    sent = json.loads(msgspec.json.encode(state))
    assert (sent["status"], sent["attempts"], sent["issue"]["repository"]["owner"]) == ("canceled", 0, {"login": "weavers"})
    assert msgspec.json.decode(msgspec.json.encode(state), type=TaskState) == state
