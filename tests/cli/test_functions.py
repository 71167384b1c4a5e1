"""Durable functions from the command line: list, start, signal, adopt; and the commands of runs on them."""

from __future__ import annotations

import pytest
from tests.commands import Treadle

FUNCTIONS = """
from treadle import Engine

engine = Engine()


async def double(n):
    return n * 2


async def fail(n):
    from pathlib import Path
    if not Path("fixed").exists():
        raise ValueError("not fixed yet")
    return n


@engine.function("order", version=VERSION)
async def order(payload, ctx):
    doubled = await ctx.step(double, payload["n"])
    told = await ctx.wait_for("go")
    checked = await ctx.step(fail, doubled)
    return {"n": checked, "told": told, "version": ctx.version}
"""


@pytest.fixture
def functions(treadle: Treadle) -> Treadle:
    for version in (1, 2):
        (treadle.folder / f"fn{version}.py").write_text(FUNCTIONS.replace("VERSION", str(version)))
    return treadle


def test_a_function_is_started_signaled_and_operated(functions: Treadle):
    treadle = functions
    treadle("store", "migrate")
    assert "No functions" in treadle("functions", "list").out
    refused = treadle("functions", "start", "order", "--json")
    assert (refused.code, refused.error["code"]) == (3, "function_not_found")
    with treadle.started("worker", "--handlers", "fn1"):
        started = treadle.json("functions", "start", "order", "-p", "n=4")
        assert started["created"] is True
        run_id = started["id"]
        (known,) = treadle.json("functions", "list")["functions"]
        assert known == {"name": "order", "version": 1, "servers": 1, "runs": 1, "task_lists": ["default"]}
        assert treadle.json("signal", run_id, "go", "--payload", "[1, 2]", "--idempotency-key", "k")["accepted"] is True
        assert treadle.json("signal", run_id, "go", "--payload", "[1, 2]", "--idempotency-key", "k")["accepted"] is False
        assert treadle("signal", run_id, "go", "--payload", "{oops").code == 2
        shown = {}
        while shown.get("state") != "failed":
            shown = treadle.json("runs", "show", run_id)
        assert [(row["path"], row["facet"], row["state"]) for row in shown["step_rows"]] == [
            ("double", "step", "completed"),
            ("go", "wait", "completed"),
            ("fail", "step", "failed"),
        ]
        lines = treadle("runs", "show", run_id).out.splitlines()
        assert lines[0].startswith("fail failed: ")
        assert "Traceback" in lines[1]
        assert lines.index("Steps") > next(number for number, line in enumerate(lines) if "ValueError: not fixed yet" in line)
        (treadle.folder / "fixed").touch()
        assert treadle.json("runs", "retry", run_id)["state"] in {"running", "completed"}  # the worker may be faster
        while shown.get("state") != "completed":
            shown = treadle.json("runs", "show", run_id)
        assert shown["outputs"] == {"result": {"n": 8, "told": [1, 2], "version": 1}}
        refused = treadle("signal", run_id, "go", "--json")
        assert (refused.code, refused.error["code"]) == (5, "illegal_transition")
        done = treadle("functions", "start", "order", "-p", "n=1", "--wait-for", "0.2")
        assert done.code == 6
        waits = treadle.json("functions", "start", "order", "-p", "n=1")["id"]
        silent = treadle("update", waits, "set_address", "--wait", "0.1")
        assert (silent.code, f"treadle why {waits}" in silent.out) == (6, True)
        refused = treadle("update", waits, "set_address", "--wait", "90", "--json")
        assert (refused.code, "--wait must be from 0 to 60" in refused.error["message"]) == (2, True)
        assert "update is not possible" in treadle("update", run_id, "set_address", "--json").error["message"]


def test_a_run_of_a_version_without_workers_is_adopted(functions: Treadle):
    treadle = functions
    (treadle.folder / "fixed").touch()
    run_id = treadle.json("functions", "start", "order", "-p", "n=4", "--version", "1")["id"]
    treadle.json("signal", run_id, "go")
    with treadle.started("worker", "--handlers", "fn2"):
        reason = treadle.json("why", run_id)
        assert reason["code"] == "no_worker"
        assert "functions adopt" in reason["text"]
        assert "warning: no live worker has order@7" in treadle("functions", "adopt", run_id, "--version", "7").err
        adopted = treadle("functions", "adopt", run_id, "--version", "2")
        assert (adopted.code, adopted.err) == (0, "")
        shown = {}
        while shown.get("state") != "completed":
            shown = treadle.json("runs", "show", run_id)
        assert shown["outputs"]["result"]["version"] == 2
        refused = treadle("functions", "adopt", run_id, "--version", "1", "--json")
        assert (refused.code, refused.error["code"]) == (5, "illegal_transition")
        forked = treadle.json("runs", "fork", run_id, "double", "--input", "n=7")
        assert treadle.json("signal", forked["id"], "go")["accepted"]
        rerun = treadle.json("runs", "rerun", run_id)
        assert rerun["id"] not in (run_id, forked["id"])
