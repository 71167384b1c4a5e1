"""Workers from the command line: they run handlers, stop gracefully, and crash where a test says so."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request

import pytest
from tests.commands import Running, Treadle
from tests.limits import BOUND


def started(running: Running) -> dict:
    event = json.loads(running.first)
    assert event["event"] == "started"
    return event


def wait_for(path, running: Running) -> None:
    """Until the file is there; the test's own time limit ends it otherwise."""
    while not path.exists():
        assert running.process.poll() is None
        time.sleep(0.01)


def test_a_worker_runs_handlers_and_reports_their_outcomes(treadle: Treadle):
    with treadle.started("worker", "--handlers", "jobs", "--json") as worker:
        event = started(worker)
        assert event["handlers"] == ["boom", "chain", "flaky", "gate", "greet", "isolated"]
        assert treadle("enqueue", "greet", "-p", "name=Ada", "--wait").out == '{\n  "hello": "Ada"\n}\n'
        done = treadle.json("enqueue", "flaky", "--wait")
        assert (done["state"], done["result"]) == ("completed", {"attempt": 2})
        assert treadle.json("enqueue", "isolated", "--wait")["result"]["pid"] != worker.process.pid
        failed = treadle("enqueue", "boom", "--wait", "--json")
        assert (failed.code, failed.error["code"]) == (1, "task_failed")
        assert (failed.value["state"], failed.value["error"]["code"]) == ("failed", "spoiled")
        people = treadle("enqueue", "boom", "--wait")
        assert (people.code, people.out, "no [bold]good[/bold]" in people.err) == (1, "", True)
        (server,) = treadle.json("workers", "--live")["servers"]
        assert (server["id"], server["pid"], server["state"]) == (event["server_id"], worker.process.pid, "running")
        assert "running" in treadle("workers").out
        assert treadle("enqueue", "greet").err == ""  # somebody has a handler for it
        while {task["state"] for task in treadle.json("tasks", "list", "--name", "greet")["tasks"]} != {"completed"}:
            pass
        late = treadle("enqueue", "nobody.serves.this", "--wait-for", "50ms", "--json")
        assert (late.code, late.error["code"]) == (6, "wait_timed_out")
        stopped = worker.stop()
    assert stopped.code == 0
    assert json.loads(stopped.out) == {"event": "stopped", "pid": worker.process.pid, "handled": 7, "released": 0}
    shown = treadle("tasks", "show", treadle.json("tasks", "list", "--name", "greet")["tasks"][0]["id"]).out
    assert "[bold]markup[/bold]" in shown
    assert "\x1b" not in shown


def test_handlers_can_use_the_engine_of_their_module(treadle: Treadle):
    with treadle.started("worker", "--handlers", "jobs.py:engine", "--store", "sqlite:///chosen.db", "--json"):
        first = treadle("enqueue", "chain", "--wait", "--json", "--store", "sqlite:///chosen.db").value
        second = treadle("tasks", "show", first["result"]["next"], "--json", "--store", "sqlite:///chosen.db")
        assert second.value["payload"] == {"name": "chain"}


def test_a_module_may_name_its_own_store(treadle: Treadle):
    (treadle.folder / "mine.py").write_text("from treadle import Engine\nengine = Engine('sqlite:///mine.db')\n")
    treadle.store = ""
    with treadle.started("worker", "--handlers", "mine", "--json") as worker:
        assert started(worker)["store"] == "sqlite:///mine.db"
    treadle.store = "sqlite:///treadle.db"
    with treadle.started("worker", "--handlers", "mine", "--json") as worker:
        assert started(worker)["store"] == "sqlite:///treadle.db"


def health(url: str) -> tuple[int, str]:
    """Status and body of a worker's `/health`, given the URL of its metrics."""
    try:
        with urllib.request.urlopen(url.replace("/metrics", "/health"), timeout=BOUND) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_sigterm_waits_for_running_tasks(treadle: Treadle):
    task_id = treadle.json("enqueue", "gate")["id"]
    environment = {"TREADLE_METRICS_ADDRESS": "0", "TREADLE_LOG_FORMAT": "json"}
    with treadle.started("worker", "--handlers", "jobs", "--json", **environment) as worker:
        wait_for(treadle.folder / "started", worker)
        url = json.loads(worker.err.wait_for("metrics_served"))["fields"]["url"]
        assert health(url) == (200, '{"status": "running"}')
        worker.process.send_signal(signal.SIGTERM)
        assert worker.err.wait_for("stopping")
        assert health(url) == (503, '{"status": "draining"}'), "no reason to send it work, nor to restart it"
        (treadle.folder / "open").touch()
        ended = worker.ended()
    assert (ended.code, json.loads(ended.out)["handled"]) == (0, 1)
    assert treadle.json("tasks", "show", task_id)["result"] == {"cancelled": False}


def test_work_that_does_not_finish_in_time_is_released_for_others(treadle: Treadle):
    task_id = treadle.json("enqueue", "gate")["id"]
    with treadle.started("worker", "--handlers", "jobs", "--json", "--grace", "0") as worker:
        wait_for(treadle.folder / "started", worker)
        ended = worker.stop()
    assert (ended.code, json.loads(ended.out)["released"]) == (0, 1)
    shown = treadle.json("tasks", "show", task_id)
    assert (shown["state"], shown["transitions"][-1]["transition"]) == ("pending", "release")


def test_a_second_sigint_stops_immediately(treadle: Treadle):
    task_id = treadle.json("enqueue", "gate")["id"]
    with treadle.started("worker", "--handlers", "jobs", "--json") as worker:
        wait_for(treadle.folder / "started", worker)
        worker.process.send_signal(signal.SIGINT)
        assert worker.err.wait_for("stopping")
        assert worker.stop(signal.SIGINT).code == 130
    assert treadle.json("tasks", "show", task_id)["state"] == "running"


def test_up_runs_without_handlers_and_explains_how_to_add_them(treadle: Treadle):
    with treadle.started("up") as up:
        assert up.first == "Store:    sqlite:///treadle.db\n"
        ended = up.stop(signal.SIGINT)
    assert ended.code == 0
    assert "Handlers: none" in ended.out
    assert "--handlers FILE" in ended.out
    assert f"kill {up.process.pid}" in ended.out
    with treadle.started("up", "--handlers", "jobs.py", "--json") as up:
        assert "greet" in started(up)["handlers"]
        assert treadle.json("enqueue", "greet", "--wait")["state"] == "completed"
        assert up.stop().code == 0


def test_several_processes_work_and_stop_together(treadle: Treadle):
    with treadle.started("worker", "--handlers", "jobs", "--processes", "2", "--json") as fleet:
        pids = started(fleet)["processes"]
        while {server["pid"] for server in treadle.json("workers")["servers"] if server["state"] == "running"} != set(pids):
            pass
        assert treadle.json("enqueue", "greet", "--wait")["state"] == "completed"
        ended = fleet.stop()
    assert ended.code == 0
    assert {server["state"] for server in treadle.json("workers")["servers"]} == {"stopped"}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(("point", "there"), [("enqueue.before_commit", 0), ("enqueue.after_commit", 1)])
def test_a_crash_while_enqueueing_stores_all_tasks_or_none(treadle: Treadle, point: str, there: int):
    treadle("store", "migrate")
    assert treadle("enqueue", "greet", TREADLE_CRASH_AT=point).code == -signal.SIGKILL
    assert len(treadle.json("tasks", "list")["tasks"]) == there


def test_a_failpoint_crashes_a_worker_at_its_nth_pass(treadle: Treadle):
    for name in ("Ada", "Bo"):
        treadle("enqueue", "greet", "-p", f"name={name}")
    with treadle.started("worker", "--handlers", "jobs", "--json", TREADLE_CRASH_AT="handler.after:2") as worker:
        assert worker.ended().code == -signal.SIGKILL
    tasks = treadle.json("tasks", "list")["tasks"]
    assert "running" in {task["state"] for task in tasks}
    why = treadle.json("why", next(task["id"] for task in tasks if task["state"] == "running"))
    assert why["code"] in ("running", "owner_lost")


def test_log_lines_are_text_or_json(treadle: Treadle):
    with treadle.started("up", "--json", TREADLE_LOG_FORMAT="json") as up:
        lines = [json.loads(line) for line in up.stop().err.splitlines()]
    assert {"at", "level", "logger", "event", "message"} <= set.intersection(*(set(line) for line in lines))
    assert {(line["level"], line["logger"]) for line in lines} == {("info", "treadle")}
    assert {"worker_started", "worker_stopped"} <= {line["event"] for line in lines}
    with treadle.started("up", "--json", TREADLE_LOG_LEVEL="ERROR") as up:
        assert up.stop().err == ""
