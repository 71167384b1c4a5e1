"""`treadle schedules`: added, shown, previewed, operated and fired, for people and for machines; bad input changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import Treadle


def test_a_schedule_is_added_shown_edited_paused_resumed_and_removed(treadle: Treadle):
    made = treadle.json(
        "schedules", "add", "nightly", "--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--task", "greet", "-p", "n=1"
    )
    assert (made["state"], made["when"], made["target"]["inputs"]) == (
        "active",
        {"cron": "30 2 * * *", "zone": "Europe/Berlin"},
        {"n": 1},
    )
    (listed,) = treadle.json("schedules", "list")["schedules"]
    assert listed == treadle.json("schedules", "show", "nightly")
    people = treadle("schedules", "list").out
    assert all(word in people for word in ("nightly", "30 2 * * * (Europe/Berlin)", "task greet"))
    shown = treadle("schedules", "show", "nightly").out
    assert all(word in shown for word in ("nightly", "catch-up", "only the newest fires", '"n": 1'))
    edited = treadle.json("schedules", "edit", "nightly", "--every", "2h", "--overlap", "queue")
    assert (edited["when"]["every_for"], edited["overlap"]) == (7_200_000, "queue")
    assert treadle.json("schedules", "pause", "nightly")["state"] == "paused"
    assert treadle.json("schedules", "resume", "nightly")["state"] == "active"
    assert treadle.json("schedules", "remove", "nightly")["state"] == "removed"
    assert treadle.json("schedules", "list")["schedules"] == []
    (ended,) = treadle.json("schedules", "list", "--all")["schedules"]
    assert ended["state"] == "removed"
    assert "No schedules" in treadle("schedules", "list").out
    assert treadle.json("store", "verify")["holds"]


def test_a_preview_needs_no_store_and_shows_both_clocks(treadle: Treadle):
    found = treadle.json("schedules", "preview", "--cron", "0 12 29 2 *", "--zone", "Asia/Tokyo", "-n", "2")
    assert [tick[4:] for tick in found["ticks"]] == ["-02-29T03:00:00.000Z"] * 2
    people = treadle("schedules", "preview", "--cron", "@daily", "--zone", "Asia/Tokyo", "-n", "1").out
    assert "00:00:00 JST (+0900)" in people
    would = treadle.json("schedules", "add", "nightly", "--every", "5m", "--task", "greet", "--dry-run")
    assert (would["dry_run"], len(would["ticks"])) == (True, 10)
    assert not (Path(treadle.folder) / "treadle.db").exists()


def test_run_now_and_backfill_start_work_and_support_dry_runs(treadle: Treadle):
    treadle.json("schedules", "add", "nightly", "--cron", "0 3 * * *", "--task", "greet", "--paused")
    started = treadle.json("schedules", "run-now", "nightly")
    assert treadle.json("tasks", "show", started["id"])["name"] == "greet"
    span = ("--from", "2026-01-01", "--to", "2026-01-03T12:00")
    would = treadle.json("schedules", "backfill", "nightly", *span, "--dry-run")
    assert (would["dry_run"], len(would["started"]), would["ticks"][0]) == (True, 3, "2026-01-01T03:00:00.000Z")
    assert len(treadle.json("tasks", "list")["tasks"]) == 1
    assert "Would start 3 of 3" in treadle("schedules", "backfill", "nightly", *span, "--dry-run").out
    assert treadle.json("schedules", "backfill", "nightly", *span)["started"] == would["started"]
    assert "Started 0 of 3 tick(s); 3 were already started." in treadle("schedules", "backfill", "nightly", *span).out
    assert len(treadle.json("tasks", "list")["tasks"]) == 4
    days = treadle.json("schedules", "backfill", "nightly", "--from", "2026-02-01", "--to", "2026-02-02", "--dry-run")
    assert [tick[:10] for tick in days["ticks"]] == ["2026-02-01", "2026-02-02"]  # a day includes that day
    today = treadle.json("schedules", "show", "nightly")["updated_at"][:10]
    until_now = treadle("schedules", "backfill", "nightly", "--from", today, "--to", today, "--dry-run")
    assert until_now.code == 0  # the rest of the day is still to come


def test_a_worker_fires_due_schedules(treadle: Treadle):
    treadle.json(
        "schedules", "add", "once", "--at", "2026-01-01T09:00", "--zone", "Europe/Berlin", "--task", "greet", "-p", "name=Ada"
    )
    with treadle.started("worker", "--handlers", "jobs", "--json") as worker:
        treadle.json("schedules", "add", "often", "--every", "1s", "--task", "greet", "--overlap", "allow")
        while len(treadle.json("tasks", "list", "--state", "completed")["tasks"]) < 3:
            pass
        assert worker.stop().code == 0
    (ended,) = [each for each in treadle.json("schedules", "list", "--all")["schedules"] if each["name"] == "once"]
    assert (ended["state"], ended["fired"]) == ("finished", 1)
    done = treadle.json("tasks", "show", ended["recent"][0]["id"])
    assert (done["result"], done["payload"]["tick"]) == ({"hello": "Ada"}, "2026-01-01T08:00:00.000Z")
    assert treadle.json("store", "verify")["holds"]


BAD = [
    (("add", "x", "--cron", "61 * * * *", "--task", "greet"), 2, "invalid_schedule"),
    (("add", "x", "--cron", "0 0 * * *", "--zone", "Europe/Berlyn", "--task", "greet"), 2, "invalid_schedule"),
    (("add", "x", "--task", "greet"), 2, "invalid_schedule"),
    (("add", "x", "--every", "1m"), 2, "invalid_input"),
    (("add", "x", "--every", "soon", "--task", "greet"), 2, "invalid_policy"),
    (("add", "x", "--at", "tomorrow", "--task", "greet"), 2, "invalid_policy"),
    (("add", "no good", "--every", "1m", "--task", "greet"), 2, "invalid_name"),
    (("preview",), 2, "invalid_input"),
    (("preview", "--cron", "* * *"), 2, "invalid_schedule"),
]


@pytest.mark.parametrize(("arguments", "code", "error"), BAD)
def test_bad_input_is_an_error_and_makes_no_database(treadle: Treadle, arguments: tuple[str, ...], code: int, error: str):
    ended = treadle("schedules", *arguments, "--json")
    assert (ended.code, ended.error["code"]) == (code, error)
    assert not (Path(treadle.folder) / "treadle.db").exists()


def test_missing_and_duplicate_schedules_are_reported(treadle: Treadle):
    treadle.json("schedules", "add", "nightly", "--cron", "@daily", "--task", "greet")
    taken = treadle("schedules", "add", "nightly", "--cron", "@daily", "--task", "greet", "--json")
    assert (taken.code, taken.error["code"]) == (5, "schedule_exists")
    for arguments in (("show", "nobody"), ("pause", "nobody"), ("run-now", "nobody"), ("preview", "nobody")):
        ended = treadle("schedules", *arguments, "--json")
        assert (ended.code, ended.error["code"]) == (3, "schedule_not_found")
