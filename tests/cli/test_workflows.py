"""The commands around workflows: compile, fmt, graph, run, submit, runs, flows, why; for people and for machines."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from tests.commands import Ended, Treadle
from tests.limits import BOUND

from treadle.interfaces.cli.execution import execute as run_command

FLOW = """\
/** Tea. */
namespace tea {
    event facet Boil(litres: Double) => (degrees: Long)
    event facet Pour(degrees: Long, cup: String) => (cup: String)
    /** Makes a cup. */
    workflow Brew(litres: Double, cup: String = "mug") => (cup: String, degrees: Long) andThen {
        water = Boil(litres = $.litres)
        poured = Pour(degrees = water.degrees, cup = $.cup)
        sys.log(degrees = water.degrees)
        yield Brew(cup = poured.cup, degrees = water.degrees)
    }
}
"""
HANDLERS = '''
import time
from pathlib import Path

from treadle import Engine

engine = Engine()


@engine.handler("tea.Boil")
def boil(payload, ctx):
    """With a file `gate` it waits for that to go away; with a file `cold` it fails."""
    Path("boils").open("a").write("x")
    while Path("gate").exists() and not ctx.cancelled:
        time.sleep(0.01)
    if Path("cold").exists():
        raise RuntimeError("the kettle is broken")
    ctx.log("hot", litres=payload["litres"])
    return {"degrees": 100}


@engine.handler("Pour")
async def pour(payload):
    return {"cup": payload["cup"].upper()}
'''
PURE = "workflow Twice(n: Long) => (m: Long) andThen script { result['m'] = params['n'] * 2 }"
BAD = "namespace b {\n  facet F(n: Lnog)\n  workflow W(size: Long) andThen { a = F(n = $.siez) }\n}\n"
MISSING = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"


class Quick(Treadle):
    """Runs commands that only look or operate in this process, which is faster; those that work get one of their own."""

    def __call__(self, *arguments: str, stdin: str = "", **options: Any) -> Ended:
        if "--handlers" in arguments or arguments[0] == "run":
            return super().__call__(*arguments, stdin=stdin, **options)
        out, err = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.chdir(self.folder),
        ):
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            patch.setattr("treadle.kernel.telemetry.log_format.set_up_logging", lambda *_: None)
            patch.setenv("TREADLE_STORE", self.store)
            code = run_command(list(arguments))
        return Ended(code, out.getvalue(), err.getvalue())


@pytest.fixture
def tea(treadle: Treadle) -> Treadle:
    """The command, beside a flow with its handlers, a pure one, and one that does not compile."""
    treadle = Quick(treadle.folder)
    (treadle.folder / "tea.afl").write_text(FLOW)
    (treadle.folder / "kettle.py").write_text(HANDLERS)
    (treadle.folder / "pure.afl").write_text(PURE)
    (treadle.folder / "bad.afl").write_text(BAD)
    return treadle


RUN = ("run", "tea.afl", "-i", "litres=0.5", "--handlers", "kettle.py")


# --- sources ---


def test_compile_lists_workflows_or_all_errors(tea: Treadle):
    good = tea("compile", "tea.afl", "pure.afl")
    assert (good.code, good.err) == (0, "")
    assert "tea.Brew, Twice" in good.out or "Twice, tea.Brew" in good.out
    value = tea.json("compile", "tea.afl")
    assert (value["ok"], value["workflows"], value["program"]["type"]) == (True, ["tea.Brew"], "Program")
    assert "program" not in tea.json("compile", "tea.afl", "--check")
    tea("compile", "tea.afl", "--output", "tea.json")
    assert json.loads((tea.folder / "tea.json").read_text()) == value["program"]
    bad = tea("compile", "bad.afl")
    assert bad.code == 2
    assert "bad.afl:2:14: error[unknown-type]" in bad.err
    assert "did you mean `size`?" in bad.err
    told = tea("compile", "bad.afl", "--json")
    assert (told.code, told.err) == (2, "")
    assert [each["rule"] for each in told.value["diagnostics"]] == ["unknown-type", "unknown-input"]
    assert tea("compile", "-", stdin=PURE).code == 0


def test_warnings_are_shown_and_are_errors_on_request(tea: Treadle):
    (tea.folder / "odd.afl").write_text('facet F(n: Long)\nworkflow W() => (n: Long) andThen { f = F(n = "1") yield W(n = 2) }\n')
    for command in (("compile", "odd.afl"), ("run", "odd.afl"), ("flows", "publish", "odd", "odd.afl")):
        done = tea(*command)
        assert done.code == 0
        assert "odd.afl:2:47: warning[type-mismatch]" in done.err
        strict = tea(*command, "--strict")
        assert strict.code == 2
        assert "odd.afl:2:47: error[type-mismatch]" in strict.err
    assert tea("run", "odd.afl", TREADLE_STRICT="yes").code == 2
    assert tea.json("compile", "odd.afl")["diagnostics"][0]["severity"] == "warning"


def test_fmt_rewrites_files_or_shows_a_diff(tea: Treadle):
    ugly = "facet   A( x:Long )\n"
    (tea.folder / "ugly.afl").write_text(ugly)
    assert tea("fmt", "--check", "ugly.afl", "tea.afl").code == 1
    assert "-facet   A( x:Long )" in tea("fmt", "--diff", "ugly.afl").out
    assert (tea.folder / "ugly.afl").read_text() == ugly
    (tea.folder / "broken.afl").write_text("facet A(")
    assert tea("fmt", "ugly.afl", "broken.afl").code == 2
    assert (tea.folder / "ugly.afl").read_text() == ugly
    assert tea.json("fmt", "ugly.afl")["files"] == [{"file": "ugly.afl", "changed": True}]
    assert (tea.folder / "ugly.afl").read_text() == "facet A(x: Long)\n"
    assert tea("fmt", "-", stdin=ugly).out == "facet A(x: Long)\n"


def test_fixes_are_shown_as_a_diff_checked_or_written(tea: Treadle):
    wrong = 'facet A(x: List<String>)\nworkflow W() => (y: Long) andThen {\n    a = A(["q"])\n    return 1\n}\n'
    right = 'facet A(x: [String])\nworkflow W() => (y: Long) andThen {\n    a = A(x = ["q"])\n    yield W(y = 1)\n}\n'
    (tea.folder / "wrong.afl").write_text(wrong)
    shown = tea("fix", "wrong.afl")
    assert (shown.code, "+    yield W(y = 1)" in shown.out, "3 problems can be fixed" in shown.out) == (
        0,
        True,
        True,
    )
    assert tea("fix", "--check", "wrong.afl").code == 1
    assert (tea.folder / "wrong.afl").read_text() == wrong
    told = tea.json("fix", "wrong.afl")
    assert (told["ok"], told["written"], [each["text"] for each in told["files"]]) == (True, False, [right])
    assert len(told["fixed"]) == 3
    assert tea("fix", "-", stdin=wrong).out == right
    assert tea("fix", "--write", "wrong.afl").code == 0
    assert (tea.folder / "wrong.afl").read_text() == right
    assert "Nothing fixed" in tea("fix", "--write", "wrong.afl").out
    (tea.folder / "hopeless.afl").write_text("facet A(x: Lnog)\nworkflow W() andThen { if x { } }\n")
    left = tea("fix", "hopeless.afl")
    assert (left.code, "1 error left" in left.out, "AFL has no `if`" in left.err) == (2, True, True)


def test_a_workflow_can_be_drawn(tea: Treadle):
    assert "poured = tea.Pour" in tea("graph", "tea.afl").out
    assert tea("graph", "tea.afl", "--format", "dot").out.startswith("digraph")
    nodes = tea.json("graph", "tea.afl", "--workflow", "Brew")["nodes"]
    assert {node["kind"] for node in nodes} == {"workflow", "event", "sys", "yield"}
    assert not (tea.folder / "treadle.db").exists()


# --- run ---


def test_a_run_prints_its_outputs_alone_and_its_steps_beside_them(tea: Treadle):
    said = tea(*RUN, "-i", "cup=7")
    assert (said.code, json.loads(said.out)) == (0, {"cup": "7", "degrees": 100})
    assert "Brew.poured (tea.Pour): completed" in said.err
    assert 'log Brew: {"degrees":100}' in said.err
    (run,) = tea.json("runs", "list")["runs"]
    assert f"run {run['id']} of tea.Brew" in said.err
    lines = tea.json("runs", "logs", run["id"])["lines"]
    assert [line["message"] for line in lines] == ["hot", 'Brew: {"degrees":100}']
    assert 'Brew.water: hot  {"litres":0.5}' in tea("runs", "logs", run["id"]).out
    value = tea.json(*RUN)
    assert (value["state"], value["outputs"]["cup"]) == ("completed", "MUG")
    assert tea.json("run", "pure.afl", "--inputs", '{"n": 1}', "--input", "n=21")["outputs"] == {"m": 42}


def test_a_run_stopped_at_a_limit_suggests_rerun_instead_of_retry(tea: Treadle):
    (tea.folder / "endless.afl").write_text("facet A() andThen { a = A() } workflow W() andThen { a = A() }")
    said = tea("run", "endless.afl", TREADLE_RUN_DEPTH="5")
    (run,) = tea.json("runs", "list")["runs"]
    for told in (said.err, tea("why", run["id"]).out):
        assert "treadle runs rerun" in told
        assert "treadle runs retry" not in told
    assert tea("runs", "retry", run["id"]).code != 0
    assert tea("runs", "rerun", run["id"]).code == 0


def test_a_failed_run_names_its_failed_step_and_is_retried_from_it(tea: Treadle):
    (tea.folder / "cold").touch()
    said = tea(*RUN)
    assert (said.code, said.out) == (1, "")
    assert "Brew.water: handler failed: the kettle is broken. `treadle runs show" in said.err
    (run,) = tea.json("runs", "list", "--state", "failed")["runs"]
    shown = tea("runs", "show", run["id"]).out
    assert all(word in shown for word in ("tea.Brew", "failed", "the kettle is broken", '"litres": 0.5', "water"))
    assert tea.json("why", run["id"])["code"] == "finished_failed"
    (tea.folder / "cold").unlink()
    assert tea.json("runs", "retry", run["id"], "Brew.water", "--handlers", "kettle.py")["outputs"]["degrees"] == 100
    again = tea("runs", "retry", run["id"], "--json")
    assert (again.code, again.error["code"]) == (5, "illegal_transition")
    assert tea("store", "verify").code == 0


def test_a_fork_keeps_the_results_before_its_step(tea: Treadle):
    run_id = tea.json(*RUN)["id"]
    fork = tea.json("runs", "fork", run_id, "Brew.poured", "-i", "cup=vase", "--handlers", "kettle.py")
    assert (fork["parent_id"], fork["outputs"]["cup"]) == (run_id, "VASE")
    assert (tea.folder / "boils").read_text() == "x"
    lost = tea("runs", "fork", run_id, "Brew.nope", "--json")
    assert (lost.code, lost.error["code"]) == (3, "step_not_found")


def test_an_interrupted_run_is_paused_and_continues_from_its_position(tea: Treadle):
    (tea.folder / "gate").touch()
    environment = tea._environment({})
    command = [sys.executable, "-m", "treadle", *RUN]
    with subprocess.Popen(command, cwd=tea.folder, env=environment, stdout=-1, stderr=-1, text=True) as process:
        try:
            while "Brew.water (tea.Boil): running, handler works" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            while tea.json("runs", "list")["runs"][0]["state"] != "paused":
                assert process.poll() is None
            (tea.folder / "gate").unlink()
            out, err = process.communicate(timeout=BOUND)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    (run,) = tea.json("runs", "list")["runs"]
    assert f"is paused. Continue with `treadle runs resume {run['id']} --handlers kettle.py`" in err
    assert run["state"] == "paused"
    assert tea.json("why", run["id"])["code"] == "paused"
    said = tea("runs", "resume", run["id"], "--handlers", "kettle.py")
    assert (said.code, json.loads(said.out)["cup"]) == (0, "MUG")
    assert (tea.folder / "boils").read_text() == "x"
    refused = tea("runs", "resume", run["id"], "--json")
    assert (refused.code, refused.error["code"]) == (5, "illegal_transition")


# --- submit and operate ---


def test_a_submitted_run_waits_for_a_worker_with_a_warning(tea: Treadle):
    said = tea("submit", "tea.afl", "-i", "litres=1", "--idempotency-key", "k")
    assert said.code == 0
    assert "no handler in a live worker of list default for tea.Boil, tea.Pour" in said.err
    again = tea.json("submit", "tea.afl", "-i", "litres=1", "--idempotency-key", "k")
    assert (again["created"], again["id"] in said.out) == (False, True)
    assert again["missing_handlers"] == ["tea.Boil", "tea.Pour"]
    reused = tea("submit", "tea.afl", "-i", "litres=2", "--idempotency-key", "k", "--json")
    assert (reused.code, reused.error["code"]) == (2, "idempotency_key_reused")
    assert "waits for Brew.water (tea.Boil): no live worker serves tea.Boil" in tea("why", again["id"]).out
    late = tea("submit", "tea.afl", "-i", "litres=2", "--wait-for", "0.2", "--json")
    assert (late.code, late.error["code"]) == (6, "wait_timed_out")
    with tea.started("worker", "--handlers", "kettle.py"):
        done = tea("submit", "tea.afl", "-i", "litres=3", "--wait")
        assert (done.err, json.loads(done.out)["degrees"]) == ("", 100)
    assert {run["state"] for run in tea.json("runs", "list")["runs"]} == {"completed"}


def test_operators_pause_resume_cancel_and_rerun(tea: Treadle):
    run_id = tea.json("submit", "tea.afl", "-i", "litres=1")["id"]
    assert "is paused now" in tea("runs", "pause", run_id).out
    (task,) = tea.json("tasks", "list")["tasks"]
    assert tea.json("why", task["id"])["code"] == "run_paused"
    assert tea.json("runs", "resume", run_id)["state"] == "running"
    assert tea.json("runs", "resume", run_id)["state"] == "running"
    assert tea.json("runs", "cancel", run_id, "--reason", "coffee")["state"] == "canceled"
    assert tea.json("runs", "cancel", run_id)["state"] == "canceled"
    assert "coffee" in tea("runs", "show", run_id).out
    assert tea.json("tasks", "show", task["id"])["state"] == "canceled"
    made = tea.json("runs", "rerun", run_id, "-i", "cup=bowl")
    assert (made["parent_id"], made["state"]) == (run_id, "running")
    assert tea.json("runs", "show", made["id"])["inputs"] == {"litres": 1, "cup": "bowl"}
    steps = tea.json("runs", "steps", made["id"])["steps"]
    assert [(step["path"], step["state"]) for step in steps] == [("Brew", "running"), ("Brew.water", "pending")]
    assert len(tea.json("runs", "steps", made["id"], "--blocks")["steps"]) == 3
    assert tea("runs", "steps", made["id"], "--state", "failed").out == "No steps.\n"


def test_runs_are_filtered_by_activity(tea: Treadle):
    waiting, paused = (tea.json("submit", "tea.afl", "-p", "litres=1")["id"] for _ in range(2))
    tea.json("runs", "pause", paused)
    (listed,) = tea.json("runs", "list", "--activity", "waiting_for_worker")["runs"]
    assert (listed["id"], listed["activity"]["counts"]) == (waiting, {"waiting_for_worker": 1})
    assert [run["id"] for run in tea.json("runs", "list", "--activity", "blocked")["runs"]] == [paused]
    assert "tea.Boil: waiting for a worker" in tea("runs", "show", waiting).out
    assert {step["state"] for step in tea.json("runs", "steps", paused)["steps"]} == {"paused"}
    refused = tea("runs", "list", "--activity", "napping", "--json")
    assert (refused.code, "waiting_for_approval" in refused.error["message"]) == (2, True)


def test_flows_are_published_by_name_and_runs_keep_their_version(tea: Treadle):
    assert tea.json("flows", "publish", "tea", "tea.afl")["version"] == 1
    old = tea.json("submit", "tea", "-i", "litres=1")
    (tea.folder / "tea.afl").write_text(FLOW.replace('"mug"', '"glass"'))
    assert "version 2" in tea("flows", "publish", "tea", "tea.afl").out
    assert tea.json("flows", "publish", "tea", "tea.afl")["version"] == 2
    assert [each["version"] for each in tea.json("flows", "list", "tea")["flows"]] == [2, 1]
    shown = tea("flows", "show", "tea").out
    assert "tea.Brew(litres: Double, cup: String = ...) => (cup: String, degrees: Long)" in shown
    assert tea("flows", "show", "tea", "--version", "1", "--source").out.strip() == FLOW.strip()
    for flow, cup in (("tea", "GLASS"), (old["flow_id"], "MUG")):
        assert tea.json("run", flow, "-i", "litres=1", "--handlers", "kettle.py")["outputs"]["cup"] == cup
    assert tea.json("runs", "show", old["id"])["outputs"]["cup"] == "MUG"  # a worker takes what there is


# --- bad input ---

WRONG = [
    (["submit", "tea.afl"], 2, "invalid_inputs", "litres (Double) is missing"),
    (["submit", "tea.afl", "-i", "litres=much"], 2, "invalid_inputs", "must be a Double, not a string"),
    (["submit", "tea.afl", "-i", "litres=1", "-i", "cups=2"], 2, "invalid_inputs", "did you mean cup?"),
    (["submit", "tea.afl", "-i", "litres"], 2, "invalid_input", "key=value"),
    (["run", "tea.afl", "--inputs", "[1]"], 2, "invalid_payload", "not a list"),
    (["run", "tea.afl", "--inputs", "@nowhere.json"], 2, "invalid_payload", "cannot be read"),
    (["run", "tea.afl", "-i", "litres=1", "-w", "Brw"], 3, "workflow_not_found", "tea.Brew"),
    (["run", "tea.afl", "-i", "litres=1", "--handlers", "nowhere"], 2, "handlers_not_found", "no module"),
    (["run", "missing.afl"], 2, "source_not_found", "missing.afl cannot be read"),
    (["run", "bad.afl"], 2, "invalid_flow", "do not compile"),
    (["flows", "publish", "odd name!", "tea.afl"], 2, "invalid_name", "flow name"),
    (["flows", "publish", "b", "bad.afl"], 2, "invalid_flow", "do not compile"),
    (["submit", "tea.afl", "--version", "2"], 2, "invalid_input", "flows in the store"),
    (["graph", "tea.afl", "--workflow", "Nope"], 3, "workflow_not_found", "tea.Brew"),
    (["compile", "latin.afl"], 2, "source_not_found", "not UTF-8"),
    (["submit", "nowhere"], 4, "schema_behind", "no database"),
    (["runs", "list"], 4, "schema_behind", "no database"),
]


@pytest.mark.parametrize(("arguments", "code", "error", "message"), WRONG, ids=lambda value: str(value)[:60])
def test_bad_input_is_refused_with_a_code_without_a_change(tea: Treadle, arguments, code, error, message):
    (tea.folder / "latin.afl").write_bytes("facet Größe()".encode("latin-1"))
    said = tea(*arguments, "--json")
    assert (said.code, said.out) == (code, "")
    assert said.error["code"] == error
    assert message in said.error["message"]
    assert not (tea.folder / "treadle.db").exists()


def test_missing_runs_and_flows_are_not_found(tea: Treadle):
    tea("store", "migrate")
    for arguments, error in (
        (["runs", "show", MISSING], "run_not_found"),
        (["runs", "cancel", MISSING], "run_not_found"),
        (["why", MISSING], "task_not_found"),
        (["flows", "show", "nope"], "flow_not_found"),
        (["submit", "nope"], "flow_not_found"),
    ):
        said = tea(*arguments, "--json")
        assert (said.code, said.error["code"]) == (3, error)
    assert "'nope' is not a valid run id" in tea("runs", "show", "nope").err
    assert "states of runs are" in tea("runs", "list", "--state", "odd").err
    assert tea("runs", "list").out.startswith("No runs.")
    assert tea("flows", "list").out.startswith("No flows.")


def test_a_terminal_sees_the_steps_as_a_table(tea: Treadle):
    """Rich draws on a terminal only, so give it one."""
    reader, writer = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "treadle", *RUN], cwd=tea.folder, env=tea._environment({"TERM": "xterm"}), stdout=-1, stderr=writer
    ) as process:
        os.close(writer)
        seen = b""
        while True:
            try:
                seen += (read := os.read(reader, 65536))
            except OSError:  # the other side is closed
                break
            if not read:
                break
        out, _ = process.communicate(timeout=BOUND)
    os.close(reader)
    assert json.loads(out)["cup"] == "MUG"
    assert b"poured" in seen
    assert b"completed" in seen
