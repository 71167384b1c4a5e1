"""The store's own commands, the doctor, and what a command imports."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.commands import Treadle


def test_migrate_creates_the_store_and_downgrades_only_after_confirmation(treadle: Treadle):
    made = treadle.json("store", "migrate")
    assert made["store"] == "sqlite:///treadle.db"
    assert "is at schema version" in treadle("store", "migrate").out
    refused = treadle("store", "migrate", "--to", "0", "--json")
    assert (refused.code, refused.error["code"]) == (5, "refused")
    assert treadle.json("store", "info")["schema_version"] == made["schema_version"]
    assert treadle.json("store", "migrate", "--to", "0", "--yes")["schema_version"] == 0
    assert treadle("store", "info", "--json").error["code"] == "schema_behind"
    assert treadle("store", "migrate", "--to", "99", "--json").error["code"] == "schema_too_new"
    assert treadle("store", "migrate", "--to", "-1", "--json").code == 2


def test_migrate_waits_for_a_database_that_cannot_be_reached(treadle: Treadle):
    waited = treadle("store", "migrate", "--wait", "0.1", "--json", "--store", "postgresql://127.0.0.1:1/db")
    assert (waited.code, waited.error["code"]) == (4, "store_unavailable")
    assert treadle.json("store", "migrate", "--wait", "60")["store"] == "sqlite:///treadle.db"
    assert treadle("store", "migrate", "--wait", "60", "--server", "http://127.0.0.1:1", "--json").error["code"] == "not_over_http"


def test_info_lists_ready_tasks_by_queue(treadle: Treadle):
    for _ in range(2):
        treadle("enqueue", "greet")
    info = treadle.json("store", "info")
    assert (info["kind"], info["finished"]) == ("sqlite", {})
    assert [(queue["name"], queue["ready"]) for queue in info["queues"]] == [("greet", 2)]
    assert "greet" in treadle("store", "info").out


def test_verify_finds_a_row_that_the_log_does_not_explain(treadle: Treadle):
    task_id = treadle.json("enqueue", "greet")["id"]
    treadle("tasks", "cancel", task_id)
    assert treadle.json("store", "verify") == {"holds": True, "checked": 1, "problems": []}
    assert "no problems" in treadle("store", "verify").out
    database = sqlite3.connect(Path(treadle.folder, "treadle.db"))
    database.execute("update finished set state = 'completed'")
    database.commit()
    database.close()
    broken = treadle("store", "verify", "--json")
    assert (broken.code, broken.value["holds"]) == (1, False)
    assert any(task_id in problem for problem in broken.value["problems"])
    people = treadle("store", "verify")
    assert (people.code, task_id in people.out) == (1, True)


def test_an_older_copy_in_place_of_the_store_is_reported_and_can_be_accepted(treadle: Treadle):
    assert treadle.json("store", "accept", "--yes")["removed"] is None
    treadle("enqueue", "greet")
    backup = Path(treadle.folder, "backup.db")
    treadle("store", "backup", str(backup))
    for _ in range(3):
        treadle("enqueue", "greet")
    shutil.copy(backup, Path(treadle.folder, "treadle.db"))
    verified = treadle("store", "verify", "--json")
    assert (verified.code, verified.value["holds"]) == (1, False)
    assert "lacks its last" in verified.value["problems"][0]
    doctor = treadle("doctor", "--json")
    failed = {check["name"]: check["found"] for check in doctor.value["checks"] if check["verdict"] == "fail"}
    assert (doctor.code, set(failed)) == (1, {"damage", "writable"})
    status = treadle.json("status")
    assert (status["health"], status["problems"][0]["code"]) == ("degraded", "store_damaged")
    assert "lacks its last 3 commits" in treadle("status").out
    refused = treadle("enqueue", "greet", "--json")
    assert (refused.code, refused.error["code"]) == (4, "store_damaged")
    assert len(treadle.json("tasks", "list")["tasks"]) == 1
    assert treadle("store", "accept", "--json").error["code"] == "refused"
    removed = treadle.json("store", "accept", "--yes")["removed"]
    assert "commits" in removed
    (entry,) = treadle.json("audit")["changes"]
    assert (entry["operation"], entry["after"]) == ("store.accept", {"removed": removed})
    treadle("enqueue", "greet")
    assert treadle.json("store", "verify")["holds"]


def test_the_doctor_reports_problems_with_a_remedy(treadle: Treadle):
    treadle("store", "migrate")
    well = treadle.json("doctor", TREADLE_LEASE="5")
    verdicts = {check["name"]: check["verdict"] for check in well["checks"]}
    expected = {
        "python",
        "treadle",
        "sqlite",
        "asyncpg",
        "lease",
        "store",
        "writable",
        "damage",
        "schema",
        "clock",
        "fsync",
        "wake lag",
        "sqlite library",
        "write-ahead log",
        "free space",
        "leases",
        "workers",
    }
    assert set(verdicts) == expected
    assert (verdicts["lease"], verdicts["workers"], verdicts["store"], verdicts["writable"]) == ("warn", "warn", "ok", "ok")
    assert "remedy" in treadle("doctor").out
    ill = treadle("doctor", "--json", "--store", "postgresql://127.0.0.1:1/db")
    assert (ill.code, ill.value["ok"]) == (1, False)
    assert [check["name"] for check in ill.value["checks"] if check["verdict"] == "fail"] == ["store"]


def test_servers_reports_an_empty_list(treadle: Treadle):
    treadle("store", "migrate")
    assert treadle.json("workers") == {"servers": []}
    assert "No workers" in treadle("workers").out


@pytest.mark.new_schema
def test_the_same_commands_work_on_postgresql(treadle: Treadle, postgres_url: str):
    treadle.store = postgres_url
    task_id = treadle.json("enqueue", "greet", "-p", "name=Ada")["id"]
    with treadle.started("worker", "--handlers", "jobs", "--json") as worker:
        assert treadle.json("enqueue", "greet", "--wait")["result"] == {"hello": "nobody"}
        assert worker.stop().code == 0
    assert treadle.json("tasks", "show", task_id)["result"] == {"hello": "Ada"}
    assert [task["state"] for task in treadle.json("tasks", "list")["tasks"]] == ["completed", "completed"]
    assert treadle.json("store", "info")["finished"] == {"completed": 2}
    assert treadle.json("store", "verify")["holds"]
    assert treadle.json("workers")["servers"][0]["state"] == "stopped"
    assert treadle.json("doctor")["ok"]


@pytest.mark.parametrize("arguments", [["--help"], ["enqueue", "greet"], ["tasks", "list", "--json"]])
def test_commands_import_no_heavy_modules(treadle: Treadle, arguments: list[str]):
    treadle("store", "migrate")
    heavy = ["treadle.lang", "asyncpg", "rich.live", "rich.progress", "http.server"]
    left = f"sys.exit(str([m for m in {heavy!r} if m in sys.modules]))"
    script = f"import sys; from treadle.interfaces.cli.execution import execute; execute({arguments!r}); {left}"
    ended = subprocess.run([sys.executable, "-c", script], cwd=treadle.folder, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1] == "[]"  # after what may be a warning
