"""`treadle objectives`: added, approved, blocked and shown, for people and machines; a topology is checked; the example runs."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Treadle
from tests.limits import BOUND

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "goals"
UNKNOWN = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"


def add(treadle: Treadle, *arguments: str) -> dict[str, Any]:
    made: dict[str, Any] = treadle.json("objectives", "add", *arguments)
    return made


def until_ended(treadle: Treadle, *ids: str) -> list[dict[str, Any]]:
    """The output of `show`, once all of them are DONE or BLOCKED."""
    end = time.perf_counter() + BOUND
    while time.perf_counter() < end:
        found = [treadle.json("objectives", "show", each) for each in ids]
        if all(each["status"] in ("DONE", "BLOCKED") for each in found):
            return found
        time.sleep(0.1)
    raise AssertionError(f"not ended in time: {found}")


def test_an_objective_is_added_listed_edited_approved_and_blocked(treadle: Treadle):
    made = add(treadle, "Do it", "--accept", "fast", "--urgency", "4", "--metadata", '{"a": 1}', "--key", "only")
    objective_id = made["objective_id"]
    assert (made["status"], made["acceptance_criteria"], made["urgency"], made["metadata"]) == ("NEW", ["fast"], 4, {"a": 1})
    assert made["created_by"].startswith("cli:")
    assert add(treadle, "Again", "--key", "only")["objective_id"] == objective_id
    assert "not approved" in treadle("objectives", "list").out
    assert treadle.json("objectives", "edit", objective_id, "--title", "Do that")["title"] == "Do that"
    refused = treadle("objectives", "block", objective_id, "--reason", "no", "--json")
    assert (refused.code, refused.error["code"]) == (5, "illegal_transition")
    approved = treadle.json("objectives", "approve", objective_id, "--as", "ada")
    assert (approved["status"], approved["approved_by"]) == ("TODO", "ada")
    blocked = treadle.json("objectives", "block", objective_id, "--reason", "no key", "--as", "ada")
    assert (blocked["status"], blocked["blockers"][0]["text"]) == ("BLOCKED", "no key")
    shown = treadle.json("objectives", "show", objective_id)
    assert shown["why"] == treadle.json("why", objective_id)["text"] == "blocked: no key"
    assert [(transition["transition"], transition["actor"]) for transition in shown["transitions"]][1:] == [
        ("approve", "ada"),
        ("block", "ada"),
    ]
    people = treadle("objectives", "show", objective_id).out
    assert all(word in people for word in ("Do that", "blocked: no key", "by ada", "fast"))
    waiting = add(treadle, "After it", "--blocked-by", objective_id)
    assert "(BLOCKED)" in treadle("objectives", "list").out.replace("\n", "")
    assert "Do that (BLOCKED)" in treadle("objectives", "show", waiting["objective_id"]).out
    assert treadle.json("objectives", "unblock", objective_id)["status"] == "TODO"
    board = treadle.json("objectives", "board")
    assert {status: column["count"] for status, column in board.items()} == {
        "NEW": 1,
        "TODO": 1,
        "IN_PROGRESS": 0,
        "BLOCKED": 0,
        "DONE": 0,
    }
    assert all(word in treadle("objectives", "board").out for word in ("TODO 1", "DONE 0", "Do that"))
    assert treadle.json("objectives", "list", "--state", "DONE")["objectives"] == []
    assert treadle.json("objectives", "claims") == {"claims": []}


BAD = [
    (("show", UNKNOWN), 3, "objective_not_found"),
    (("show", "x"), 2, "invalid_input"),
    (("approve", UNKNOWN), 3, "objective_not_found"),
    (("add", ""), 2, "invalid_input"),
    (("add", "x", "--metadata", "[1]"), 2, "invalid_payload"),
    (("add", "x", "--as", "reviewer:x"), 2, "invalid_input"),
    (("add", "x", "--blocked-by", UNKNOWN), 3, "objective_not_found"),
    (("list", "--limit", "0"), 2, "invalid_input"),
]


def test_invalid_input_is_reported_without_a_change(treadle: Treadle):
    add(treadle, "Do it")
    for arguments, code, error in BAD:
        refused = treadle("objectives", *arguments, "--json")
        assert (refused.code, refused.error["code"]) == (code, error), arguments
    assert treadle("objectives", "add", "x", "--urgency", "9").code == 2
    assert len(treadle.json("objectives", "list")["objectives"]) == 1
    assert treadle("worker", "--handlers", "jobs.py", "--role", "gate").code == 2


def test_a_topology_check_reports_every_error(treadle: Treadle):
    place = treadle.folder / "topology.yaml"
    place.write_text("types:\n  TIKET: {}\n  TICKET:\n    handler: greeet\n    gates: [regx]\n    budgt: 5\n")
    refused = treadle("objectives", "topology", "check", "topology.yaml")
    assert refused.code == 2
    assert "line 2, types.TIKET: is too similar to a built-in type; did you mean TICKET?" in refused.out
    assert "line 6, types.TICKET.budgt" in refused.out
    problems = json.loads(treadle("objectives", "topology", "check", "topology.yaml", "--json").out)["problems"]
    assert [(each["path"], each["line"]) for each in problems] == [("types.TIKET", 2), ("types.TICKET.budgt", 6)]
    place.write_text("types:\n  TICKET:\n    handler: greeet\n    gates: [{use: regex, pattern: x}]\n")
    assert treadle.json("objectives", "topology", "check", "topology.yaml")["ok"] is True
    unknown = treadle("objectives", "topology", "check", "topology.yaml", "--handlers", "jobs.py")
    assert (unknown.code, "did you mean greet?" in unknown.out) == (2, True)
    place.write_text("roles: {gate: {lease: 5}}\ntypes:\n  TICKET: {handler: greet, gates: []}\ndeadlines: {1: 1h}\n")
    warned = treadle.json("objectives", "topology", "check", "topology.yaml", "--handlers", "jobs.py")
    assert len(warned["warnings"]) == 3
    assert "warning" in treadle("objectives", "topology", "check", "topology.yaml").out
    missing = treadle("worker", "--handlers", "jobs.py", "--topology", "nothing.yaml", "--json")
    assert (missing.code, missing.error["code"]) == (2, "invalid_topology")
    role = treadle("worker", "--handlers", "jobs.py", "--topology", "topology.yaml", "--role", "gates", "--json")
    assert (role.code, "did you mean gate?" in role.error["message"]) == (2, True)


@pytest.fixture
def example(tmp_path: Path) -> Treadle:
    """The command in a copy of the example."""
    folder = tmp_path / "goals"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("work", "*.db*", "__pycache__"))
    return Treadle(folder)


def test_the_example_writes_a_patch_until_the_tests_pass(example: Treadle):
    checked = example.json("objectives", "topology", "check", "topology.yaml", "--handlers", "handlers.py")
    assert (checked["ok"], checked["warnings"], checked["types"]["TICKET"]["gates"]) == (True, [], ["has-a-patch", "tests-pass"])
    good = add(example, "greet must name the person", "--accept", "the tests pass")["objective_id"]
    hopeless = add(example, "be faster")["objective_id"]
    for each in (good, hopeless):
        example.json("objectives", "approve", each, "--as", "ada")
    with example.started("worker", "--handlers", "handlers.py", "--topology", "topology.yaml") as worker:
        done, blocked = until_ended(example, good, hopeless)
        assert worker.stop().code == 0
    assert (done["status"], blocked["status"]) == ("DONE", "BLOCKED")
    (trail,) = done["workorder_trails"]
    assert trail["output_bundle"]["notes"] == ["greeting.py now names the person"]
    assert [gate["result"] for gate in trail["run_record"]["gates"]] == ["PASS", "PASS"]
    assert trail["context_snapshot"]["topology_digest"] == checked["digest"]
    assert [each["pause_state"]["reason"] for each in blocked["workorder_trails"]] == ["GATE_FAILED"] * 3
    assert "AssertionError" in blocked["workorder_trails"][0]["run_record"]["reason"]
    assert example.json("store", "verify")["problems"] == []
    people = example("objectives", "show", hopeless).out
    assert all(word in people for word in ("tests-pass", f"treadle objectives unblock {hopeless}"))
    assert people.count("\nWorkorder ") == 3


def test_several_processes_and_single_roles_work_from_the_command_line(example: Treadle):
    made = add(example, "greet must name the person")["objective_id"]
    example.json("objectives", "approve", made)
    chosen = ("--topology", "topology.yaml", "--role", "runner", "--role", "gate")
    first = example.started("worker", "--handlers", "handlers.py", "--processes", "2", *chosen)
    second = example.started("up", "--topology", "topology.yaml", "--role", "readiness", "--role", "scheduler")
    with first, second as others:
        (done,) = until_ended(example, made)
        assert "readiness, scheduler (topology.yaml)" in "".join(others.out._lines)
    assert done["status"] == "DONE"
