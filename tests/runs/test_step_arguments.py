"""Rows show which item a step is about: in the kernel once, and from there in every interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.commands import Treadle
from tests.engines import make_engine
from tests.functions.driver import until
from tests.limits import BOUND
from tests.stores.test_codec import Secret
from tests.web.conftest import visiting

from treadle import ApprovalRequest, AwaitingApproval, Engine, FunctionContext, NonRetryable
from treadle.engine.operations import Operations
from treadle.model.access import OPEN
from treadle.model.errors import RunFailed
from treadle.settings import Settings
from treadle.testing import Environment

FLOW = """
namespace imports {
    event facet Load(n: Long, name: String) => (rows: Long)
    workflow Import(files: Json, tag: String) => (rows: Json) andThen foreach file in $.files {
        load = Load(n = $.file, name = $.tag)
        yield Import(rows = [load.rows])
    }
}
"""
TAG = "<i>two & three</i>"
ESCAPED = "&lt;i&gt;two &amp; three&lt;/i&gt;"


async def fetch(url: str, row: int, token: str) -> int:
    if row == 2:
        raise NonRetryable("the row is bad")
    return row


def scene(url: str) -> Engine:
    """An engine with handlers and a function that fail for the item 2."""
    engine = make_engine(url)

    @engine.handler("imports.Load")
    async def load(payload: dict[str, Any]) -> dict[str, Any]:
        if payload["n"] == 2:
            raise NonRetryable("the file is bad")
        return {"rows": payload["n"]}

    @engine.function("crawl")
    async def crawl(payload: dict[str, Any], ctx: FunctionContext) -> None:
        await ctx.call("imports.Load", {"n": 9, "name": "x" * 9000})
        await ctx.gather(*(ctx.step(fetch, f"https://a/{n}", n, token="s3cr3t") for n in (1, 2)))

    return engine


async def play(engine: Engine) -> tuple[str, str]:
    run = await engine.start_run([("i.afl", FLOW)], "imports.Import", {"files": [1, 2], "tag": TAG})
    function = await engine.start_function("crawl", {})
    async with engine.worker():
        for run_id in (run.id, function.id):
            with pytest.raises(RunFailed):
                await engine.run_result(run_id, timeout=BOUND)
    return run.id, function.id


async def test_steps_of_runs_and_their_tasks_name_their_item_in_every_interface(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with scene(url) as engine:
        run_id, function_id = await play(engine)
        service = Operations(engine, OPEN)
        found = {step.path: step for step in (await service.steps.list(run_id)).steps}
        assert found["Import[1].load"].about == f'n = 2, name = "{TAG}"'
        assert found["Import[1]"].about == "file = 2"
        times = {each.path: each.about for each in (await service.steps.timeline(run_id)).steps}
        assert times["Import[1].load"] == f'n = 2, name = "{TAG}"'
        (letter,) = (await service.dead_letters.list(name="imports.Load")).letters
        assert letter.about == f'n = 2, name = "{TAG}"'

        steps = {step.path: step for step in (await service.steps.list(function_id)).steps}
        assert steps["1[1].fetch"].about == 'url = "https://a/2", row = 2, token = ***'
        assert steps["imports.Load"].about.startswith('n = 9, name = "xxx')
        failed = await service.steps.get(function_id, steps["1[1].fetch"].id)
        assert "raise NonRetryable" in (failed.traceback or "")
        load = await service.steps.get(run_id, found["Import[1].load"].id)
        assert "raise NonRetryable" in (load.traceback or "")

        async with visiting(engine) as visit:
            for path in (f"/runs/{run_id}", f"/runs/{run_id}?view=steps", f"/dead-letters?fingerprint={letter.fingerprint}"):
                page = await visit.page(path)
                assert f"(n = 2, name = &#34;{ESCAPED}&#34;)" in page
                assert TAG not in page
            page = await visit.page(f"/runs/{function_id}?view=steps")
            assert "row = 2, token = ***" in page
            assert "s3cr3t" not in page
            assert "raise NonRetryable" in await visit.page(f"/runs/{function_id}/steps/{failed.id}")
    shown = Treadle(tmp_path, url)("runs", "show", run_id, COLUMNS="200").out
    assert f'load(n = 2, name = "{TAG}")' in shown


async def _all_asked(service: Operations) -> bool:
    return len((await service.approvals.list()).approvals) == 2


async def test_a_question_names_its_context_or_the_payload_of_its_task():
    engine = Engine("memory://")

    @engine.handler("ask")
    async def ask(payload: dict[str, Any]) -> AwaitingApproval:
        return AwaitingApproval(ApprovalRequest(title="Go?", context=payload.get("context", {})))

    async with engine:
        await engine.enqueue("ask", {"order": 7})
        await engine.enqueue("ask", {"order": 8, "context": {"amount": 12}})
        service = Operations(engine, OPEN)
        async with engine.worker():
            await until(lambda: _all_asked(service))
        page = await service.approvals.list()
        assert {each.about for each in page.approvals} == {"order = 7", "amount = 12"}


async def test_arguments_are_encoded_with_the_rest(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    engine = Engine(url, settings=Settings(), codec=Secret("k"))

    @engine.function("crawl")
    async def crawl(payload: dict[str, Any], ctx: FunctionContext) -> None:
        await ctx.step(fetch, "https://gooseberry", 1, "t")

    async with engine:
        run = await engine.start_function("crawl", {})
        async with engine.worker():
            await engine.run_result(run.id, timeout=BOUND)
        (step,) = (await Operations(engine, OPEN).steps.list(run.id)).steps
        assert "gooseberry" in step.about
    assert not _stored(tmp_path, b"gooseberry")


def _stored(folder: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in folder.iterdir() if path.is_file())


async def test_the_page_of_a_call_shows_its_payload_and_traceback() -> None:
    engine = Engine("memory://")

    @engine.handler("charge")
    async def charge(payload: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("card declined")

    @engine.function("pay")
    async def pay(payload: dict[str, Any], ctx: FunctionContext) -> Any:
        return await ctx.call("charge", {"amount": 9})

    async with Environment(engine) as env:
        run = await engine.start_function("pay")
        with pytest.raises(RunFailed):
            await env.result(run)
        step = await Operations(engine, OPEN).steps.get(run.id, "charge")
    assert step.params == {"amount": 9}
    assert "card declined" in (step.traceback or "")
