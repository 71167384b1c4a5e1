"""Bad input: a clear line with a code on stderr, an exit code, and nothing changed."""

from __future__ import annotations

import ctypes
import json
import os
import sqlite3
from pathlib import Path

import pytest
from tests.commands import Treadle

from treadle.interfaces.cli.values import workflow_inputs

MISSING = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"

BAD = [
    (["enqueue", "x", "--store", "mysql://host/db"], 2, "invalid_store_url", "no store for mysql"),
    (["enqueue", "x", "--store", "treadle.db"], 2, "invalid_store_url", "not a store URL"),
    (["enqueue", "x", "--store", "sqlite:////no/such/folder/x.db"], 2, "invalid_store_url", "no directory"),
    (["enqueue", "x", "--store", "postgresql://someone:secret@127.0.0.1:1/db"], 4, "store_unavailable", "cannot be reached"),
    (["enqueue", "x", "--payload", "{oops"], 2, "invalid_payload", "not JSON"),
    (["enqueue", "x", "--payload", "[1, 2]"], 2, "invalid_payload", "JSON object"),
    (["enqueue", "x", "--payload", '{"n": NaN}'], 2, "invalid_payload", "not JSON"),
    (["enqueue", "x", "--payload", '{"n": "\\u0000"}'], 2, "invalid_payload", "U+0000"),
    (["enqueue", "x", "--payload", "@nowhere.json"], 2, "invalid_payload", "cannot be read"),
    (["enqueue", "x", "--payload", "@large.json"], 2, "payload_too_large", "limit is 1048576"),
    (["enqueue", "x", "-p", "novalue"], 2, "invalid_input", "key=value"),
    (["enqueue", "odd name!"], 2, "invalid_name", "not a valid handler name"),
    (["enqueue", "x", "--list", "a b"], 2, "invalid_name", "not a valid task list"),
    (["enqueue", "x", "--namespace", "../x"], 2, "invalid_name", "not a valid namespace"),
    (["enqueue", "x", "--retry", "-1"], 2, "invalid_policy", "policy is invalid"),
    (["enqueue", "x", "--retry", "often"], 2, "usage", "--retry"),
    (["enqueue", "x", "--delay", "soon"], 2, "invalid_policy", "duration"),
    (["enqueue", "x", "--deadline", "0"], 2, "invalid_policy", "more than zero"),
    (["enqueue", "x", "--delay", "9" * 400 + "d"], 2, "invalid_policy", "under a century"),
    (["enqueue", "x", "--wait", "--wait-for", "9" * 400], 2, "invalid_policy", "under a century"),
    (["runner", "--poll-interval", "9" * 400], 2, "usage", "--poll-interval"),
    (["enqueue", "x", "--priority", "99999999"], 2, "invalid_input", "priority"),
    (["enqueue"], 2, "usage", "enqueue --help"),
    (["enqueue", "x", "--bogus"], 2, "usage", "--bogus"),
    (["conjure"], 2, "usage", "conjure"),
    (["worker", "--role", "gate"], 2, "invalid_input", "--topology FILE"),
    (["worker", "--handlers", "no_such_module"], 2, "handlers_not_found", "no module no_such_module"),
    (["worker", "--handlers", "nowhere.py"], 2, "handlers_not_found", "no file"),
    (["worker", "--handlers", "json"], 2, "handlers_not_found", "no Engine"),
    (["worker", "--handlers", "jobs:nope"], 2, "handlers_not_found", "not an Engine"),
    (["worker", "--handlers", "broken"], 2, "handlers_broken", "ZeroDivisionError"),
    (["up", "--handlers", "twins.py"], 2, "handlers_not_found", "one, two"),
    (["worker", "--handlers", "jobs", "--concurrency", "0"], 2, "usage", "--concurrency"),
    (["tasks", "list"], 4, "schema_behind", "no database"),
]


@pytest.mark.parametrize(("arguments", "code", "error", "message"), BAD, ids=lambda value: str(value)[:60])
def test_bad_input_is_refused_with_a_code_without_a_change(treadle: Treadle, arguments, code, error, message):
    (treadle.folder / "large.json").write_text(json.dumps({"x": "y" * 2_000_000}))
    (treadle.folder / "broken.py").write_text("1 / 0")
    (treadle.folder / "twins.py").write_text("from treadle import Engine\none, two = Engine(), Engine()")
    said = treadle(*arguments, "--json")
    assert (said.code, said.out) == (code, "")
    assert said.error["code"] == error
    assert message in said.error["message"]
    assert "secret" not in said.err
    assert not (treadle.folder / "treadle.db").exists()


def test_errors_for_people_are_one_line(treadle: Treadle):
    said = treadle("enqueue", "odd \x1b[31mname")
    assert said.err.startswith("treadle: invalid_name: 'odd")
    assert (said.err.count("\n"), "\x1b" in said.err, said.out) == (1, False, "")


@pytest.mark.parametrize("command", [["why"], ["tasks", "show"], ["tasks", "cancel"], ["tasks", "retry"], ["tasks", "pause"]])
def test_a_missing_task_is_reported(treadle: Treadle, command):
    treadle("store", "migrate")
    said = treadle(*command, MISSING, "--json")
    assert (said.code, said.error["code"]) == (3, "task_not_found")


def test_an_invalid_id_state_or_page_is_rejected(treadle: Treadle):
    treadle("store", "migrate")
    for arguments in (["show", "42"], ["list", "--state", "odd"], ["list", "--limit", "0"], ["list", "--before", "x"]):
        said = treadle("tasks", *arguments, "--json")
        assert (said.code, said.error["code"]) == (2, "invalid_input")


def test_invalid_settings_are_rejected(treadle: Treadle):
    for name, value in (("LEASE", "long"), ("LOG_LEVEL", "loud"), ("CRASH_AT", "nowhere"), ("CRASH_AT", "claim.after:0")):
        said = treadle("enqueue", "x", "--json", **{f"TREADLE_{name}": value})
        assert (said.code, said.error["code"]) == (2, "invalid_input")
        assert name in said.error["message"]


def test_a_schema_newer_than_the_code_is_refused(treadle: Treadle):
    treadle("store", "migrate")
    _change(treadle, "update treadle_schema set version = 99")
    for arguments in (["enqueue", "x"], ["tasks", "list"], ["store", "migrate"]):
        said = treadle(*arguments, "--json")
        assert (said.code, said.error["code"]) == (4, "schema_too_new")
    doctor = treadle("doctor", "--json")
    assert doctor.code == 1
    assert "schema_too_new" in next(check["found"] for check in doctor.value["checks"] if check["name"] == "store")


def test_a_file_that_is_not_a_database_is_reported(treadle: Treadle):
    (treadle.folder / "treadle.db").write_text("remember the milk\n" * 100)
    said = treadle("enqueue", "x", "--json")
    assert (said.code, said.error["code"]) == (2, "invalid_store_url")


def test_an_unwritable_file_is_reported(treadle: Treadle):
    treadle("store", "migrate")
    path = treadle.folder / "treadle.db"
    before = path.read_bytes()
    path.chmod(0o444)
    said = treadle("enqueue", "x", "--json", preexec=_without_roots_privilege)
    assert (said.code, said.error["code"]) == (4, "store_read_only")
    assert path.read_bytes() == before


def _without_roots_privilege() -> None:
    """Root may write everything; without CAP_DAC_OVERRIDE it is a user like others."""
    if os.geteuid() == 0:
        drop_from_bounding_set, may_override_access = 24, 1
        ctypes.CDLL(None).prctl(drop_from_bounding_set, may_override_access, 0, 0, 0)


def test_a_file_locked_by_another_process_is_reported(treadle: Treadle):
    path = treadle.folder / "treadle.db"
    other = sqlite3.connect(path)
    other.execute("begin exclusive")
    said = treadle("enqueue", "x", "--json")
    other.close()
    assert (said.code, said.error["code"]) == (4, "store_busy")
    assert path.stat().st_size == 0


def _change(treadle: Treadle, statement: str) -> None:
    database = sqlite3.connect(Path(treadle.folder, "treadle.db"))
    database.execute(statement)
    database.commit()
    database.close()


@pytest.mark.parametrize(
    ("text", "plain", "optional", "other"),
    [
        ("null", "null", None, None),
        ('"null"', "null", "null", "null"),
        ("Null", "Null", "Null", "Null"),
        (" null", " null", " null", None),
        ("nullable", "nullable", "nullable", "nullable"),
        ("007", "007", "007", "007"),
        ("", "", "", ""),
    ],
)
def test_only_the_word_null_is_null_for_an_optional_text(text: str, plain: str, optional: str | None, other: str | None) -> None:
    pairs = [f"{name}={text}" for name in ("plain", "optional", "other")]
    found = workflow_inputs({"plain": False, "optional": True}, None, pairs)
    assert found == {"plain": plain, "optional": optional, "other": other}


def test_null_for_an_optional_text_of_a_workflow(treadle: Treadle, tmp_path: Path) -> None:
    file = tmp_path / "w.afl"
    file.write_text(
        "workflow W(a: String, b: String?) => (is_null: Boolean, a: String) andThen { yield W(is_null = $.b == null, a = $.a) }"
    )
    assert treadle.json("run", str(file), "-p", "a=null", "-p", "b=null")["outputs"] == {"is_null": True, "a": "null"}


def test_a_value_is_shown_as_one(treadle: Treadle, tmp_path: Path) -> None:
    file = tmp_path / "w.afl"
    file.write_text("workflow W() => (x: Long) andThen { d = 1 + 2 yield W(x = d) }")
    done = treadle("run", str(file))
    assert "W.d (value): completed" in done.err + done.out
