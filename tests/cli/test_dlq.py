"""Dead letters on the command line: listed, grouped, retried and discarded, with a dry run and clear refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Treadle
from tests.limits import BOUND

from treadle import Engine, NonRetryable
from treadle.settings import Settings


@pytest.fixture
def letters(treadle: Treadle) -> list[str]:
    """Three dead letters with one fingerprint and one with another, in the order in which they failed."""

    async def fail_all() -> list[str]:
        engine = Engine(f"sqlite:///{Path(treadle.folder, 'treadle.db')}", settings=Settings())

        @engine.handler("boom")
        async def boom(payload: Any) -> None:
            raise NonRetryable(f"order {payload['n']} is spoiled", "spoiled")

        @engine.handler("bang")
        async def bang(payload: Any) -> None:
            raise NonRetryable("out of memory", "no_memory")

        ids = []
        async with engine, engine.worker():
            for name, number in (("boom", 1), ("boom", 2), ("boom", 3), ("bang", 4)):
                task = await engine.enqueue(name, {"n": number}, task_list="default")
                await asyncio.gather(engine.result(task, timeout=BOUND), return_exceptions=True)
                ids.append(task.id)
        return ids

    return asyncio.run(fail_all())


def test_dead_letters_are_listed_from_the_last_and_grouped_by_cause(treadle: Treadle, letters: list[str]):
    listed = treadle.json("dlq", "list")
    assert [letter["id"] for letter in listed["letters"]] == letters[::-1]
    assert (listed["letters"][0]["error_code"], listed["next_before"]) == ("no_memory", None)
    page = treadle.json("dlq", "list", "--limit", "2")
    rest = treadle.json("dlq", "list", "--before", str(page["next_before"]))
    assert [letter["id"] for letter in page["letters"] + rest["letters"]] == letters[::-1]
    big, small = treadle.json("dlq", "show")["groups"]
    assert (big["count"], big["name"], big["error_code"], big["last_id"]) == (3, "boom", "spoiled", letters[2])
    assert big["error"]["message"] == "order 3 is spoiled"
    assert small["count"] == 1
    one = treadle.json("dlq", "show", big["fingerprint"])
    assert [letter["id"] for letter in one["letters"]] == letters[2::-1]
    assert "order 3 is spoiled" in treadle("dlq", "show", big["fingerprint"]).out
    assert "boom" in treadle("dlq", "show").out
    assert letters[0] in treadle("dlq", "list", "--code", "spoiled").out


def test_a_dry_run_counts_matches_without_a_change(treadle: Treadle, letters: list[str]):
    for act in ("retry", "discard"):
        told = treadle.json("dlq", act, "--code", "spoiled", "--dry-run")
        assert (told["matched"], told["done"], told["dry_run"]) == (3, 3, True)
    assert len(treadle.json("dlq", "list")["letters"]) == 4


def test_dead_letters_are_retried_and_discarded_by_filter_and_by_id(treadle: Treadle, letters: list[str]):
    assert treadle.json("dlq", "retry", "--name", "boom", "--newer-than", "1h")["done"] == 3
    assert treadle.json("tasks", "show", letters[0])["state"] == "pending"
    assert treadle.json("dlq", "discard", letters[3])["done"] == 1
    shown = treadle.json("tasks", "show", letters[3])
    assert (shown["state"], [transition["transition"] for transition in shown["transitions"]]) == ("canceled", ["fail", "discard"])
    assert treadle.json("dlq", "list")["letters"] == []
    assert "No dead letters" in treadle("dlq", "show").out
    assert treadle.json("store", "verify")["holds"]


def test_a_dead_letter_is_retried_with_an_edited_payload(treadle: Treadle, letters: list[str]):
    assert "1 retried" in treadle("dlq", "retry", letters[0], "--payload", '{"n": 99}').out
    assert treadle.json("tasks", "show", letters[0])["payload"] == {"n": 99}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        (["retry"], 2, "invalid_input"),
        (["discard"], 2, "invalid_input"),
        (["retry", "--all", "--name", "boom"], 2, "invalid_input"),
        (["retry", "--name", "nothing"], 3, "nothing_matches"),
        (["discard", "--older-than", "1h"], 3, "nothing_matches"),
        (["retry", "--older-than", "soon"], 2, "invalid_policy"),
        (["retry", "--all", "--payload", "[1]"], 2, "invalid_payload"),
        (["show", "feedbeef"], 3, "nothing_matches"),
        (["list", "--limit", "0"], 2, "invalid_input"),
        (["retry", "no-id"], 2, "invalid_input"),
        (["discard", "00000000-0000-7000-8000-000000000000"], 3, "task_not_found"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_invalid_or_empty_selections_are_refused(treadle: Treadle, letters: list[str], arguments, exit_code, code):
    ended = treadle("dlq", *arguments, "--json")
    assert (ended.code, ended.error["code"]) == (exit_code, code)
    assert len(treadle.json("dlq", "list")["letters"]) == 4


# --- upkeep of the store ---


def test_a_store_is_pruned_on_demand_after_a_dry_run(treadle: Treadle, letters: list[str]):
    assert treadle.json("store", "prune")["trees"] == 0
    dry = treadle.json("store", "prune", "--older-than", "0s", "--dry-run")
    assert (dry["trees"], dry["tasks"]) == (4, 4)
    assert "would be pruned" in treadle("store", "prune", "--older-than", "0s", "--dry-run").out
    assert treadle.json("store", "prune", "--tree", letters[0])["trees"] == 1
    assert treadle.json("store", "prune", "--older-than", "0s", "--compact")["tasks"] == 3
    assert treadle.json("dlq", "list")["letters"] == []


def test_a_file_is_compacted_on_demand(treadle: Treadle, letters: list[str]):
    treadle.json("store", "prune", "--older-than", "0s")
    compacted = treadle.json("store", "compact")
    assert set(compacted) == {"store", "freed", "bytes"}
    assert compacted["bytes"] > 0
    assert treadle.json("store", "compact")["freed"] == 0
    assert "KiB freed" in treadle("store", "compact").out


def test_pruning_an_active_tree_is_refused(treadle: Treadle):
    task_id = treadle.json("enqueue", "greet")["id"]
    refused = treadle("store", "prune", "--tree", task_id, "--json")
    assert (refused.code, refused.error["code"]) == (5, "refused")
    for arguments in (["--older-than", "-1d"], ["--tree", task_id, "--dry-run"], ["--dry-run", "--compact"]):
        assert treadle("store", "prune", *arguments, "--json").code == 2
    assert treadle.json("tasks", "show", task_id)["state"] == "pending"


def test_a_list_has_rules_of_its_own(treadle: Treadle, letters: list[str]):
    kept = treadle.json("store", "keep", "default", "--failed", "0s")
    assert (kept["keep_failed_for"], kept["keep_completed_for"]) == (0, 30 * 86_400_000)
    assert treadle.json("store", "prune")["trees"] == 4
    assert treadle("store", "keep", "default", "--failed", "-1d", "--json").code == 2


def test_a_backup_is_a_store_and_never_overwritten(treadle: Treadle, letters: list[str]):
    made = treadle.json("store", "backup", "copy.db")
    assert made["bytes"] > 0
    assert len(treadle.json("dlq", "list", TREADLE_STORE="sqlite:///copy.db")["letters"]) == 4
    refused = treadle("store", "backup", "copy.db", "--json")
    assert (refused.code, refused.error["code"]) == (5, "refused")
    assert treadle("store", "backup", "no/such/copy.db", "--json").code == 5


def test_info_and_doctor_report_the_health_of_the_store(treadle: Treadle, letters: list[str]):
    health = treadle.json("store", "info")["health"]
    assert {table["name"] for table in health["tables"]} >= {"tasks", "finished", "log"}
    assert {finding["name"] for finding in health["findings"]} >= {"wake lag", "sqlite library", "free space"}
    assert health["settings"] == {"journal_mode": "wal", "auto_vacuum": "incremental"}
    assert "Tables" in treadle("store", "info").out
    checks = {check["name"]: check["verdict"] for check in treadle.json("doctor")["checks"]}
    assert (checks["wake lag"], checks["sqlite library"]) == ("ok", "ok")
