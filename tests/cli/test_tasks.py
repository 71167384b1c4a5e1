"""Enqueue, look, operate: each command for people and for machines."""

from __future__ import annotations

import json
import re

from tests.commands import Treadle

from treadle import Engine, TaskSpec
from treadle.kernel.search.service import VALUES_LIMIT
from treadle.settings import Settings

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def test_an_enqueued_task_is_listed_and_shown(treadle: Treadle):
    said = treadle("enqueue", "greet", "-p", "name=Ada", "-p", "n=3", "--priority", "5", "--list", "slow")
    assert said.code == 0
    assert said.out.startswith("Enqueued greet as ")
    assert "warning" in said.err
    assert "no live worker" in said.err  # it may be a slip of the pen; somebody may come yet
    (task,) = treadle.json("tasks", "list")["tasks"]
    assert (task["name"], task["state"], task["priority"], task["task_list"]) == ("greet", "pending", 5, "slow")
    assert RFC3339.fullmatch(task["created_at"])
    assert task["created_by"].startswith("cli:")
    shown = treadle.json("tasks", "show", task["id"])
    assert shown["payload"] == {"name": "Ada", "n": 3}
    assert (shown["result"], shown["transitions"], shown["lines"]) == (None, [], [])
    assert shown["why"]["code"] == "no_worker"
    people = treadle("tasks", "show", task["id"]).out
    assert all(
        word in people for word in ("greet", "pending", "lease", "progress", "deadline", '"name": "Ada"', task["created_by"])
    )
    assert task["id"] in treadle("tasks", "list").out


def test_a_payload_is_read_from_an_argument_a_file_or_stdin(treadle: Treadle):
    (treadle.folder / "payload.json").write_text('{"from": "file"}')
    ids = [
        treadle.json("enqueue", "greet", "--payload", '{"from": "argument"}')["id"],
        treadle.json("enqueue", "greet", "--payload", "@payload.json")["id"],
        json.loads(treadle("enqueue", "greet", "--payload", "-", "--json", stdin='{"from": "stdin"}').out)["id"],
    ]
    assert [treadle.json("tasks", "show", i)["payload"]["from"] for i in ids] == ["argument", "file", "stdin"]


def test_a_live_unique_key_names_the_task_that_has_it(treadle: Treadle):
    first = treadle.json("enqueue", "greet", "--unique-key", "k", "--delay", "1h")
    again = treadle.json("enqueue", "greet", "--unique-key", "k")
    assert (first["created"], again["created"], again["id"]) == (True, False, first["id"])
    assert first["id"] in treadle("enqueue", "greet", "--unique-key", "k").out


def test_an_idempotency_key_names_the_task_that_had_it_first_also_when_that_has_ended(treadle: Treadle):
    first = treadle.json("enqueue", "greet", "--idempotency-key", "order-7")
    treadle("tasks", "cancel", first["id"])
    again = treadle.json("enqueue", "greet", "--idempotency-key", "order-7")
    assert (again["id"], first["created"], again["created"]) == (first["id"], True, False)
    assert f"A task already has this key: {first['id']}" in treadle("enqueue", "greet", "--idempotency-key", "order-7").out


def test_pages_follow_one_another(treadle: Treadle):
    ids = [treadle.json("enqueue", name)["id"] for name in ("one", "two", "three")]
    first = treadle.json("tasks", "list", "--limit", "2")
    assert [task["id"] for task in first["tasks"]] == [ids[2], ids[1]]
    rest = treadle.json("tasks", "list", "--limit", "2", "--before", first["next_before"])
    assert ([task["id"] for task in rest["tasks"]], rest["next_before"]) == ([ids[0]], None)
    assert [task["name"] for task in treadle.json("tasks", "list", "--name", "two", "--state", "pending")["tasks"]] == ["two"]
    assert treadle.json("tasks", "list", "--state", "failed", "--state", "running")["tasks"] == []
    assert treadle("tasks", "list", "--list", "other").out == "No tasks.\n"
    assert f"--before {ids[1]}" in treadle("tasks", "list", "--limit", "2").out
    said = ("--state", "pending", "--state", "failed", "--list", "default", "--limit", "2", "--store", treadle.store)
    hint = treadle("tasks", "list", *said).out.splitlines()[-1]
    shown = " ".join(said[:-2])
    assert hint == f"More: treadle tasks list {shown} --before {ids[1]} --store {treadle.store}"
    next_page = treadle(*hint.removeprefix("More: treadle ").split(), "--json").value
    assert [task["id"] for task in next_page["tasks"]] == [ids[0]]


def test_operators_pause_resume_cancel_and_retry(treadle: Treadle):
    task_id = treadle.json("enqueue", "greet")["id"]
    assert "is paused now" in treadle("tasks", "pause", task_id).out
    assert treadle.json("why", task_id)["code"] == "paused"
    assert treadle.json("tasks", "resume", task_id)["state"] == "pending"
    assert "no live worker" in treadle("why", task_id).out
    assert "is canceled now" in treadle("tasks", "cancel", task_id, "--reason", "changed [red]my mind").out
    assert treadle.json("tasks", "cancel", task_id)["state"] == "canceled"
    assert "changed [red]my mind" in treadle("tasks", "show", task_id).out
    redriven = treadle.json("tasks", "retry", task_id, "--payload", '{"name": "Bo"}')
    assert redriven["state"] == "pending"
    shown = treadle.json("tasks", "show", task_id)
    assert shown["payload"] == {"name": "Bo"}
    assert [transition["transition"] for transition in shown["transitions"]] == ["pause", "resume", "cancel", "requeue"]
    assert all(
        transition["actor"].startswith("cli:") and RFC3339.fullmatch(transition["at"]) for transition in shown["transitions"]
    )
    refused = treadle("tasks", "retry", task_id, "--json")
    assert (refused.code, refused.error["code"]) == (5, "illegal_transition")
    assert treadle("tasks", "resume", task_id).code == 5


def test_options_may_stand_before_or_after_the_command_and_win_over_the_environment(treadle: Treadle):
    before = json.loads(treadle("--store", "sqlite:///other.db", "--json", "enqueue", "greet").out)
    after = treadle("tasks", "list", "--store", "sqlite:///other.db", "--json").value
    assert [task["id"] for task in after["tasks"]] == [before["id"]]
    treadle("--namespace", "tenant", "enqueue", "greet")
    assert len(treadle.json("tasks", "list", "--namespace", "tenant")["tasks"]) == 1
    assert treadle("tasks", "list").out == "No tasks.\n"
    assert len(treadle.json("tasks", "list", TREADLE_NAMESPACE="tenant")["tasks"]) == 1


def test_reading_creates_no_database(treadle: Treadle):
    for looking in (["tasks", "list"], ["store", "verify"], ["doctor"]):
        treadle(*looking)
    assert not (treadle.folder / "treadle.db").exists()


def test_the_help_shows_flags_without_an_argument(treadle: Treadle):
    for command in ([], ["tasks"], ["tasks", "list"], ["runner"]):
        shown = treadle(*command, "--help").out
        assert "--help" in shown
        assert "bool" not in shown.lower()


def test_the_help_lists_the_commands_and_the_exit_codes(treadle: Treadle):
    said = treadle("--help")
    assert said.code == 0
    for word in ("up", "worker", "enqueue", "tasks", "why", "workers", "store", "doctor", "demo", "Exit codes", "130"):
        assert word in said.out
    assert treadle("--version").out.startswith("treadle ")
    assert treadle().code == 2


async def test_a_search_continues_until_a_full_page_or_the_end(treadle: Treadle):
    async with Engine(f"sqlite:///{treadle.folder / 'treadle.db'}", settings=Settings()) as engine:
        for name, count in (("rare", 3), ("common", 2 * VALUES_LIMIT)):
            await engine.enqueue_many([TaskSpec("greet", {"name": name}, delay=3600) for _ in range(count)])
    query = ("tasks", "list", "--where", "input.name = rare")
    answer = treadle.json(*query)
    assert (len(answer["tasks"]), answer["complete"], answer["next_before"]) == (3, True, None)
    assert answer["searched"] == 2 * VALUES_LIMIT + 3
    first = treadle.json(*query, "--limit", "2")
    assert (len(first["tasks"]), first["complete"], first["next_before"] is not None) == (2, True, True)
    assert treadle(*query).out.count("greet") == 3
    assert "No tasks match" in treadle("tasks", "list", "--where", "input.name = nobody").out
