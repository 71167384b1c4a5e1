"""Approvals and recovery at the command line, for people and for machines."""

from __future__ import annotations

import json
import time

import pytest
from tests.commands import Treadle
from tests.limits import BOUND

ASKERS = """
from treadle import ApprovalRequest, AwaitingApproval, Engine

engine = Engine()


@engine.handler("refund")
async def refund(payload, ctx):
    if ctx.approval_decision is None:
        return AwaitingApproval(ApprovalRequest.of("Refund [bold]it[/bold]?", context=payload, **payload.get("options", {})))
    return {"by": ctx.approval_decision["by"], "amount": ctx.approval_decision["context"]["amount"]}
"""


@pytest.fixture
def asking(treadle: Treadle) -> Treadle:
    (treadle.folder / "askers.py").write_text(ASKERS)
    return treadle


def ask(treadle: Treadle, count: int = 1, **options: object) -> list[str]:
    """The ids of so many approvals that wait, oldest first; no worker runs any more."""
    payload = json.dumps({"amount": 5, "options": options})
    with treadle.started("worker", "--handlers", "askers") as worker:
        for _ in range(count):
            treadle.json("enqueue", "refund", "--payload", payload)
        deadline = time.monotonic() + BOUND  # noqa: TID251
        while len(found := treadle.json("approvals", "list")["approvals"]) < count:
            assert time.monotonic() < deadline  # noqa: TID251
        worker.stop()
    return [each["id"] for each in reversed(found)]


def test_pending_approvals_are_listed_shown_and_explained_by_why(asking: Treadle) -> None:
    (approval_id,) = ask(asking, deciders=["ada"], expires=3600, edits=True)
    (listed,) = asking.json("approvals", "list")["approvals"]
    assert (listed["id"], listed["state"], listed["title"]) == (approval_id, "pending", "Refund [bold]it[/bold]?")
    assert (listed["deciders"], listed["quorum"], listed["context"]["amount"]) == (["ada"], 1, 5)
    shown = asking.json("approvals", "show", approval_id)
    assert (shown["task_name"], shown["transitions"], shown["votes"]) == ("refund", [], [])
    assert "Refund [bold]it[/bold]?" in asking("approvals", "list").out
    people = asking("approvals", "show", approval_id).out
    assert all(word in people for word in ("Refund [bold]it[/bold]?", "ada", "pending", '"amount": 5', "expires"))
    said = asking.json("why", listed["task_id"])
    assert said["code"] == "approval"
    assert approval_id in said["text"]
    assert asking.json("why", approval_id) == said


def test_approving_with_an_edit_takes_effect_without_a_worker(asking: Treadle) -> None:
    (approval_id,) = ask(asking, edits=True, deciders=["leads"])
    done = asking(
        "approvals", "approve", approval_id, "--as", "ada", "--group", "leads", "--edit", '{"amount": 3}', "--reason", "less"
    )
    assert (done.code, "is approved now" in done.out) == (0, True)
    shown = asking.json("approvals", "show", approval_id)
    assert (shown["state"], shown["ended_by"], shown["edited_by"], shown["reason"]) == ("approved", "ada", "ada", "less")
    assert asking.json("tasks", "show", shown["task_id"])["state"] == "pending"
    with asking.started("worker", "--handlers", "askers"):
        deadline = time.monotonic() + BOUND  # noqa: TID251
        while (task := asking.json("tasks", "show", shown["task_id"]))["state"] != "completed":
            assert time.monotonic() < deadline  # noqa: TID251
    assert task["result"] == {"by": "ada", "amount": 3}


def test_each_approval_of_a_batch_is_decided_independently(asking: Treadle) -> None:
    ids = ask(asking, 2)
    assert asking("approvals", "deny", ids[0], "--reason", "no").code == 0
    missing = "00000000-0000-7000-8000-000000000000"
    said = asking("approvals", "approve", *ids, missing, "--json")
    answers = said.value["answers"]
    assert [each.get("state") or each["error"]["code"] for each in answers] == ["already_decided", "approved", "approval_not_found"]
    assert said.code == 1
    assert asking.json("approvals", "list")["approvals"] == []
    assert [each["state"] for each in asking.json("approvals", "list", "--all")["approvals"]] == ["approved", "denied"]
    assert [each["id"] for each in asking.json("approvals", "list", "--state", "denied")["approvals"]] == [ids[0]]
    failed = asking.json("tasks", "list", "--state", "failed")["tasks"]
    assert [task["name"] for task in failed] == ["refund"]


def test_refused_decisions_report_an_error_code(asking: Treadle) -> None:
    (approval_id,) = ask(asking, deciders=["ada"])
    for arguments, code, word in (
        (("approve", approval_id, "--as", "eve"), 5, "may_not_decide"),
        (("approve", approval_id, "--as", "ada", "--edit", '{"amount": 1}'), 5, "edits_not_allowed"),
        (("approve", approval_id, "--as", "ada", "--edit", "[1]"), 2, "invalid_payload"),
        (
            ("approve", approval_id, approval_id[:-1] + ("1" if approval_id.endswith("0") else "0"), "--edit", "{}"),
            2,
            "invalid_input",
        ),
        (("show", "00000000-0000-7000-8000-000000000000"), 3, "approval_not_found"),
        (("approve", "nonsense"), 2, "invalid_input"),
        (("list", "--state", "open"), 2, "invalid_input"),
    ):
        said = asking("approvals", *arguments, "--json")
        assert (said.code, said.error["code"]) == (code, word)
    assert asking("approvals", "deny", approval_id, "--as", "ada").code == 0
    second = asking("approvals", "deny", approval_id, "--as", "ada", "--json")
    assert (second.code, second.error["code"]) == (5, "already_decided")


def test_recover_dry_run_describes_the_start_up(asking: Treadle) -> None:
    ask(asking, expires=3600)
    said = asking.json("recover", "--dry-run")
    assert (said["dry_run"], said["pending_approvals"], said["overdue_approvals"], said["expired_leases"]) == (True, 1, 0, 0)
    people = asking("recover", "--dry-run").out
    assert all(word in people for word in ("nothing was changed", "1. approvals", "1 pending", "2. running work", "3. schedules"))
    assert asking.json("recover", "--name", "billing-1")["own_servers"] == []
