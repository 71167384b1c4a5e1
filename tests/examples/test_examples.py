"""The examples do what their READMEs say: on the real engine, without a store, and from the command line."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.commands import Treadle
from tests.engines import url_of
from tests.limits import BOUND

from treadle import Engine
from treadle.engine import use_store
from treadle.lang import compile_sources, format_source
from treadle.settings import Settings
from treadle.testing import run_workflow
from treadle.testing.workflows import Handler

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NAMES = ("hello", "checkout", "regions", "documents")


def inputs_of(name: str, file: str) -> dict[str, Any]:
    return json.loads((EXAMPLES / name / file).read_text())


ORDER, REGIONS, DRAFT = (
    inputs_of("checkout", "order.json"),
    inputs_of("regions", "regions.json"),
    inputs_of("documents", "draft.json"),
)

CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("hello", "hello.Hello", {}, {"greeting": "Hello, world!"}),
    ("hello", "hello.Hello", {"name": "Ada"}, {"greeting": "Hello, Ada!"}),
    ("checkout", "shop.Checkout", ORDER, {"status": "shipped", "reason": ""}),
    ("checkout", "shop.Checkout", ORDER | {"card": "bad-1"}, {"status": "declined", "reason": "card declined", "parcel": ""}),
    (
        "checkout",
        "shop.Checkout",
        ORDER | {"lines": [{"sku": "moon", "qty": 1, "price": 9.5}]},
        {"status": "refused", "reason": "out of moon"},
    ),
    (
        "regions",
        "sales.Report",
        REGIONS,
        {
            "totals": {"north": 1005.0, "south": 1608.0, "west": 603.0, "sea": 0},
            "silent": ["closed-Alta", "closed-Voss"],
            "best": "south",
            "sum": 3216.0,
        },
    ),
    ("regions", "sales.Report", {"regions": []}, {"totals": {}, "silent": [], "best": "", "sum": 0}),
    (
        "documents",
        "docs.Publish",
        DRAFT,
        {"title": "A Loom For Work", "approved": True, "comment": "Ada: fine"},
    ),
    ("documents", "docs.Digest", {"text": "one three"}, {"lines": ["1. one three (for everybody)"], "pages": 1}),
]


def load(name: str) -> ModuleType:
    """The handlers of an example, as a module of their own."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "handlers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def source_of(name: str) -> str:
    return (EXAMPLES / name / "flow.afl").read_text()


async def run_on(url: str, name: str, workflow: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """The outputs of a real run, in a database whose log then explains everything."""
    engine: Engine = load(name).engine
    use_store(engine, url, Settings())
    async with engine, engine.worker():
        started = await engine.start_run([("flow.afl", source_of(name))], workflow, inputs)
        outputs = await engine.run_result(started, timeout=BOUND)
        assert (await engine.kernel.verify()).holds
    return outputs


@pytest.mark.parametrize(("name", "workflow", "inputs", "expected"), CASES)
async def test_an_example_returns_its_documented_outputs_on_sqlite(name, workflow, inputs, expected, request, tmp_path):
    outputs = await run_on(url_of("sqlite", request, tmp_path), name, workflow, inputs)
    assert outputs == outputs | expected


@pytest.mark.parametrize("case", [CASES[2], CASES[5], CASES[7]], ids=lambda case: case[0])
async def test_an_example_has_the_same_outputs_on_postgresql(case, request, tmp_path):
    name, workflow, inputs, expected = case
    outputs = await run_on(url_of("postgres", request, tmp_path), name, workflow, inputs)
    assert outputs == outputs | expected


async def test_a_busy_payment_is_retried(request, tmp_path):
    outputs = await run_on(url_of("sqlite", request, tmp_path), "checkout", "Checkout", ORDER | {"card": "slow-1"})
    assert outputs["status"] == "shipped"


class _Task:
    """The part of the context that these handlers use."""

    task_id, attempt = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77", 1

    def log(self, message: str, **_: Any) -> None:
        pass


def plain_handlers(name: str) -> dict[str, Handler]:
    """The example's handlers as functions of a payload."""
    handlers: dict[str, Handler] = {}
    for handler in load(name).engine.kernel.registry:
        given = (_Task(),) if handler.arguments == 2 else ()
        handlers[handler.name] = lambda payload, call=handler.call, given=given: call(payload, *given)
    return handlers


@pytest.mark.parametrize(("name", "workflow", "inputs", "expected"), CASES)
def test_an_example_has_the_same_outputs_without_a_store(name, workflow, inputs, expected):
    outputs = run_workflow(source_of(name), workflow, inputs, plain_handlers(name))
    assert outputs == outputs | expected


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.afl")), ids=lambda path: path.parent.name)
def test_every_source_compiles_without_a_warning_and_is_formatted(path):
    text = path.read_text()
    compiled = compile_sources([(path.name, text)])
    assert compiled.diagnostics == (), compiled.render()
    assert format_source(text) == text


@pytest.mark.parametrize("name", NAMES)
def test_the_command_in_the_readme_works(name: str, treadle: Treadle):
    text = (EXAMPLES / name / "README.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^    treadle (run .*)$", text, re.M)
    (treadle.folder / "examples").symlink_to(EXAMPLES)
    said = treadle(*shlex.split(line), PYTHONDONTWRITEBYTECODE="1")
    assert said.code == 0, said.err
    expected = next(case[3] for case in CASES if case[0] == name and case[2])
    outputs = json.loads(said.out)
    assert outputs == outputs | expected


async def test_the_inbox_imports_new_files_and_reports(treadle: Treadle):
    """Its commands work as they stand in the README, and a worker does what they ask for."""
    text = (EXAMPLES / "inbox" / "README.md").read_text()
    lines = [shlex.split(line) for line in re.findall(r"^    treadle (.*)$", text, re.M)]
    (treadle.folder / "examples").symlink_to(EXAMPLES)
    inbox = treadle.folder / "inbox"
    inbox.mkdir()
    (inbox / "orders.csv").write_text("a,b\n1,2\n3,4\n")
    for line in lines:
        if line[0] != "worker":
            ended = treadle(*line)
            assert ended.code == 0, ended.err
    engine: Engine = load("inbox").engine
    use_store(engine, f"sqlite:///{treadle.folder / 'treadle.db'}", Settings())
    async with engine, engine.worker():
        (task,) = await engine.kernel.reads.list_tasks(kind="handler", name="report")
        assert set(await engine.result(task.id, timeout=BOUND)) == {"day"}
        async with asyncio.timeout(BOUND):
            while True:
                if imported := await engine.kernel.reads.list_tasks(kind="handler", name="import"):
                    break
                await asyncio.sleep(0.02)
        assert await engine.result(imported[0].id, timeout=BOUND) == {"name": "orders.csv", "rows": 3}
        assert (await engine.kernel.verify()).holds


def test_the_story_of_the_render_farm():
    ended = subprocess.run(
        [sys.executable, "examples/render_farm/show.py"], cwd=ROOT, capture_output=True, text=True, timeout=BOUND
    )
    assert ended.returncode == 0, ended.stderr
    assert "the farm is killed" in ended.stdout
    assert "jobs submitted to the farm: 1" in ended.stdout
