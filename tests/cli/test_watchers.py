"""`treadle watchers`: added, shown, operated and at work, for people and for machines; bad input changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import Treadle


def test_a_watcher_is_added_shown_edited_paused_resumed_and_removed(treadle: Treadle):
    inbox = Path(treadle.folder) / "inbox"
    inbox.mkdir()
    made = treadle.json("watchers", "add", "inbox", "--directory", "inbox", "--pattern", "*.csv", "--task", "greet", "-p", "n=1")
    assert (made["state"], made["source"]["place"], made["source"]["pattern"]) == ("active", str(inbox), "*.csv")
    (listed,) = treadle.json("watchers", "list")["watchers"]
    assert listed == treadle.json("watchers", "show", "inbox")
    people = treadle("watchers", "list").out
    assert all(word in people for word in ("inbox", "*.csv", "created, modified", "task greet"))
    assert "files that existed when it was added count as seen" in treadle("watchers", "show", "inbox").out
    edited = treadle.json("watchers", "edit", "inbox", "--every", "5m", "--on", "deleted", "--no-hash")
    assert (edited["every_for"], edited["changes"], edited["source"]["hashing"]) == (300_000, ["deleted"], False)
    assert treadle.json("watchers", "pause", "inbox")["state"] == "paused"
    assert treadle("watchers", "look", "inbox").code == 5
    assert treadle.json("watchers", "resume", "inbox")["state"] == "active"
    assert "as soon as a worker is free" in treadle("watchers", "look", "inbox").out
    assert treadle.json("watchers", "remove", "inbox")["state"] == "removed"
    assert "No watchers" in treadle("watchers", "list").out
    assert treadle.json("watchers", "list", "--all")["watchers"][0]["state"] == "removed"
    assert treadle.json("store", "verify")["holds"]


def test_a_worker_reports_changes_and_lists_seen_files(treadle: Treadle):
    inbox = Path(treadle.folder) / "inbox"
    inbox.mkdir()
    (inbox / "old").write_text("old")
    treadle.json("watchers", "add", "inbox", "--directory", "inbox", "--every", "1s", "--settle", "0", "--task", "greet")
    (Path(treadle.folder) / "nowhere").mkdir()
    treadle.json("watchers", "add", "lost", "--file", "nowhere/flag", "--every", "1s", "--task", "greet")
    (Path(treadle.folder) / "nowhere").rmdir()
    with treadle.started("worker", "--handlers", "jobs", "--json") as worker:
        while not treadle.json("watchers", "seen", "inbox")["seen"]:
            pass
        (inbox / "new").write_text("new")
        while not treadle.json("tasks", "list", "--state", "completed")["tasks"]:
            pass
        assert worker.stop().code == 0
    (task,) = treadle.json("tasks", "list")["tasks"]
    change = treadle.json("tasks", "show", task["id"])["payload"]["change"]
    assert (change["change"], change["path"]) == ("created", str(inbox / "new"))
    assert [each["name"] for each in treadle.json("watchers", "seen", "inbox")["seen"]] == ["new", "old"]
    assert "new" in treadle("watchers", "seen", "inbox").out
    lost = treadle.json("watchers", "show", "lost")
    assert lost["error"]["code"] == "path_not_found"
    people = treadle("watchers", "show", "lost").out
    assert all(word in people for word in ("cannot scan", "path_not_found"))
    assert treadle.json("why", lost["task_id"])["code"] == "backoff"
    assert treadle.json("store", "verify")["holds"]


def test_a_missing_directory_is_an_error_and_existing_files_are_mentioned(treadle: Treadle):
    for source in (("--directory", "nowhere"), ("--file", "nowhere/flag")):
        missing = treadle("watchers", "add", "x", *source, "--task", "greet", "--json")
        assert (missing.code, missing.error["code"]) == (2, "invalid_watcher")
        assert "nowhere" in missing.error["message"]
    elsewhere = treadle("watchers", "add", "x", "--directory", "nowhere", "--scan-on", "files", "--task", "greet")
    assert elsewhere.code == 0
    (Path(treadle.folder) / "inbox").mkdir()
    added = treadle("watchers", "add", "inbox", "--directory", "inbox", "--task", "greet").out
    assert "already exist count as seen" in added
    added = treadle("watchers", "add", "all", "--directory", "inbox", "--existing", "new", "--task", "greet").out
    assert "already exist start work too" in added


def test_a_dry_run_previews_the_first_scan(treadle: Treadle):
    inbox = Path(treadle.folder) / "inbox"
    inbox.mkdir()
    (inbox / "a.csv").write_text("a")
    would = treadle.json("watchers", "add", "inbox", "--directory", "inbox", "--existing", "new", "--task", "greet", "--dry-run")
    assert (would["found"], would["names"], would["started"]) == (1, ["a.csv"], 1)
    assert "count as seen" in treadle("watchers", "add", "inbox", "--directory", "inbox", "--task", "greet", "--dry-run").out
    missing = treadle("watchers", "add", "x", "--directory", "nowhere", "--task", "greet", "--dry-run", "--json")
    assert (missing.code, missing.error["code"]) == (1, "scan_failed")
    assert not (Path(treadle.folder) / "treadle.db").exists()


BAD = [
    (("add", "x", "--task", "greet"), 2, "invalid_watcher"),
    (("add", "x", "--url", "ftp://example.org", "--task", "greet"), 2, "invalid_watcher"),
    (("add", "x", "--directory", "inbox", "--on", "moved", "--task", "greet"), 2, "invalid_watcher"),
    (("add", "x", "--directory", "inbox"), 2, "invalid_input"),
    (("add", "no good", "--directory", "inbox", "--task", "greet"), 2, "invalid_name"),
]


@pytest.mark.parametrize(("arguments", "code", "error"), BAD)
def test_bad_input_is_an_error_and_makes_no_database(treadle: Treadle, arguments: tuple[str, ...], code: int, error: str):
    ended = treadle("watchers", *arguments, "--json")
    assert (ended.code, ended.error["code"]) == (code, error)
    assert not (Path(treadle.folder) / "treadle.db").exists()


def test_missing_and_duplicate_watchers_are_reported(treadle: Treadle):
    (Path(treadle.folder) / "inbox").mkdir()
    treadle.json("watchers", "add", "inbox", "--directory", "inbox", "--task", "greet")
    taken = treadle("watchers", "add", "inbox", "--directory", "inbox", "--task", "greet", "--json")
    assert (taken.code, taken.error["code"]) == (5, "watcher_exists")
    ended = treadle("watchers", "show", "nobody", "--json")
    assert (ended.code, ended.error["code"]) == (3, "watcher_not_found")
