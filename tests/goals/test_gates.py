"""Gates: shipped ones and registered ones judge a bundle, within their time and their folder."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.goals.artifacts import bundle, objective, workorder
from tests.limits import BOUND

from treadle import Engine
from treadle.api.objectives import GateReport, OutputBundle
from treadle.goals.gates import GateContext, GateError, GateExists, Gates, Judgement
from treadle.goals.topology import GateSpec, InvalidTopology, read_topology
from treadle.settings import Settings
from treadle.workers.context import make_handler
from treadle.workers.executor import SystemExecutor


@pytest.fixture
def executor() -> Iterator[SystemExecutor]:
    made = SystemExecutor(2)
    yield made
    made.close()


@pytest.fixture
def gates() -> Gates:
    return Gates()


async def ask(
    gates: Gates,
    executor: SystemExecutor,
    folder: Path,
    use: str,
    brought: OutputBundle | None = None,
    timeout_for: int | None = None,
    **options: Any,
) -> GateReport:
    spec = GateSpec("it", use, options, timeout_for)
    order = workorder(status="EXECUTED")
    (report,) = await gates.judge((spec,), brought or bundle(), objective(), order, folder, executor)
    return report


PYTHON = sys.executable


@pytest.mark.parametrize(
    ("code", "expect", "result"), [("pass", 0, "PASS"), ("raise SystemExit(3)", 0, "FAIL"), ("raise SystemExit(3)", 3, "PASS")]
)
async def test_a_command_is_judged_by_its_exit_code(gates, executor, tmp_path, code: str, expect: int, result: str):
    report = await ask(gates, executor, tmp_path, "exit_code", argv=[PYTHON, "-c", code], expect=expect)
    assert report.result == result
    assert "ended with" in report.reason


async def test_a_command_receives_the_bundle_and_the_end_of_its_output_is_the_reason(gates, executor, tmp_path):
    code = "import json, sys; print('saw', json.load(sys.stdin)['content']); print('x' * 5000); print('the end'); sys.exit(1)"
    report = await ask(gates, executor, tmp_path, "exit_code", argv=[PYTHON, "-c", code])
    assert report.reason.endswith("the end")
    assert len(report.reason) <= 1100


async def test_a_command_may_write_much_output_and_ignore_its_input(gates, executor, tmp_path):
    big = bundle(content="x" * 1_000_000)
    code = "import os; os.close(0); [print('y' * 100_000) for _ in range(50)]; print('done \\x00')"
    report = await ask(gates, executor, tmp_path, "exit_code", big, argv=[PYTHON, "-c", code])
    assert (report.result, report.reason[-7:]) == ("PASS", "done \\0")


async def test_a_command_is_not_run_by_a_shell(gates, executor, tmp_path):
    marks = tmp_path / "mark"
    await ask(gates, executor, tmp_path, "exit_code", argv=[PYTHON, "-c", "pass", f"; touch {marks}", f"$(touch {marks})"])
    assert not marks.exists()


async def test_a_command_runs_in_the_folder_of_the_topology_or_below(gates, executor, tmp_path):
    order = workorder()
    inner = tmp_path / "work" / order.objective_id
    inner.mkdir(parents=True)
    code = "import os, sys; sys.exit(os.getcwd() != sys.argv[1])"
    argv = [PYTHON, "-c", code]
    assert (await ask(gates, executor, tmp_path, "exit_code", argv=[*argv, str(tmp_path)])).result == "PASS"
    assert (await ask(gates, executor, tmp_path, "exit_code", argv=[*argv, str(inner)], cwd="work/{objective_id}")).result == "PASS"
    (tmp_path / "out").symlink_to("/")
    refused = await ask(gates, executor, tmp_path, "exit_code", argv=[*argv, "/"], cwd="out")
    assert (refused.result, "outside" in refused.reason) == ("FAIL", True)
    gone = await ask(gates, executor, tmp_path, "exit_code", argv=argv, cwd="nowhere")
    assert (gone.result, "there is no folder" in gone.reason) == ("FAIL", True)


async def test_a_missing_command_fails(gates, executor, tmp_path):
    report = await ask(gates, executor, tmp_path, "exit_code", argv=["no-such-command"])
    assert (report.result, "could not be started" in report.reason) == ("FAIL", True)


async def test_a_command_that_times_out_is_killed_with_its_children(gates, executor, tmp_path):
    start = "import pathlib, subprocess, time; p = subprocess.Popen(['sleep', '60']); "
    code = start + "pathlib.Path('pid').write_text(str(p.pid)); time.sleep(60)"
    report = await ask(gates, executor, tmp_path, "exit_code", timeout_for=1500, argv=[PYTHON, "-c", code])
    assert (report.result, report.reason) == ("FAIL", "took longer than 1.5 s")
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    async with asyncio.timeout(BOUND):
        while runs(stat):  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.02)


def runs(stat: Path) -> bool:
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("part", "schema", "result"),
    [("content", {"required": ["n"]}, "PASS"), ("content", {"required": ["m"]}, "FAIL"), ("title", {"const": "Do it"}, "PASS")],
)
async def test_a_schema_judges_a_part_of_the_bundle(gates, executor, tmp_path, part: str, schema: Any, result: str):
    assert (await ask(gates, executor, tmp_path, "json_schema", schema=schema, of=part)).result == result


@pytest.mark.parametrize(
    ("content", "options", "result"),
    [
        ("all ok", {"pattern": "ok$"}, "PASS"),
        ("all bad", {"pattern": "ok$"}, "FAIL"),
        ("all bad", {"pattern": "bad", "forbid": True}, "FAIL"),
        ({"word": "né"}, {"pattern": '"word": "né"'}, "PASS"),
    ],
)
async def test_a_regular_expression_is_found_or_not(gates, executor, tmp_path, content: Any, options: Any, result: str):
    assert (await ask(gates, executor, tmp_path, "regex", bundle(content=content), **options)).result == result


@pytest.mark.parametrize(
    ("said", "result", "reason"),
    [
        (True, "PASS", "passed"),
        (False, "FAIL", "did not pass"),
        (Judgement(True, "fine"), "PASS", "fine"),
        (Judgement(False, "poor"), "FAIL", "poor"),
    ],
)
async def test_a_registered_gate_passes_or_fails(gates, executor, tmp_path, said: Any, result: str, reason: str):
    gates.add(make_handler("mine", lambda given: said))
    report = await ask(gates, executor, tmp_path, "mine")
    assert report == GateReport(gate="it", result=result, reason=reason)


@pytest.mark.parametrize("said", [None, 1, "yes", Judgement("yes")])  # type: ignore[arg-type]
async def test_any_other_result_is_not_a_judgement(gates, executor, tmp_path, said: Any):
    gates.add(make_handler("mine", lambda given: said))
    with pytest.raises(GateError, match="must return True, False or a Judgement"):
        await ask(gates, executor, tmp_path, "mine")


async def test_a_sync_gate_runs_in_a_thread_and_an_async_one_on_the_loop_with_their_context(gates, executor, tmp_path):
    told: list[Any] = []

    def sync_gate(given: Any, ctx: GateContext) -> bool:
        told.append((threading.current_thread() is threading.main_thread(), ctx.objective["title"], ctx.options["n"], ctx.folder))
        return True

    async def async_gate(given: Any, ctx: GateContext) -> bool:
        told.append((threading.current_thread() is threading.main_thread(), ctx.workorder["status"], given["title"]))
        return True

    gates.add(make_handler("one", sync_gate))
    gates.add(make_handler("two", async_gate))
    for name in ("one", "two"):
        assert (await ask(gates, executor, tmp_path, name, n=5)).result == "PASS"
    assert told == [(False, "Do it", 5, tmp_path), (True, "EXECUTED", "Do it")]


async def test_a_gate_that_hangs_fails_after_its_time(gates, executor, tmp_path):
    async def hang(given: Any) -> bool:
        await asyncio.Event().wait()
        return True

    gates.add(make_handler("hang", hang, timeout=0.05))
    assert (await ask(gates, executor, tmp_path, "hang")).reason == "took longer than 0.05 s"


async def test_an_exception_of_a_gate_propagates(gates, executor, tmp_path):
    def broken(given: Any) -> bool:
        raise RuntimeError("no network")

    gates.add(make_handler("broken", broken))
    with pytest.raises(RuntimeError, match="no network"):
        await ask(gates, executor, tmp_path, "broken")


def test_a_name_has_one_gate_and_shipped_names_are_taken():
    engine = Engine("memory://", settings=Settings())
    engine.goals.gate("mine")(lambda given: True)
    for name in ("mine", "regex"):
        with pytest.raises(GateExists):
            engine.goals.gate(name)(lambda given: True)
    assert engine.goals.gates.names() == ["exit_code", "json_schema", "mine", "regex"]


def test_an_unknown_gate_in_a_topology_is_reported_with_the_available_names(gates: Gates):
    topology = read_topology({"types": {"TICKET": {"handler": "do", "gates": ["regx"]}}})
    with pytest.raises(InvalidTopology, match=r"types.TICKET.gates\[0\]: there is no gate regx here.*did you mean regex"):
        gates.check(topology)
