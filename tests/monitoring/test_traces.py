"""Traces: any id leads to everything that followed from one start, in the order in which it followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Treadle
from tests.engines import url_of
from tests.errors import raises_code
from tests.limits import BOUND
from tests.mcp.transports import in_request_context
from tests.sizes import POSTGRES
from tests.web.conftest import visiting

from treadle import ApprovalRequest, AwaitingApproval, Engine, ExternalProductionHandle, NonRetryable, RetryPolicy
from treadle.api.traces import Trace
from treadle.api.wire import to_builtins
from treadle.engine.operations import Operations
from treadle.model.access import Access, Scope
from treadle.settings import Settings

FLOW = """
namespace shop {
  event facet Pack(item: String) => (box: String)
  event facet Check(order: Int) => (good: Boolean)
  workflow Ship(items: Json, order: Int) => (done: Boolean) andThen {
    checked = Check(order = $.order)
    yield Ship(done = checked.good)
  } andThen foreach item in $.items {
    packed = Pack(item = $.item)
  }
}
"""


class Farm:
    """An external service with jobs that never finish."""

    async def start(self, payload: dict[str, Any]) -> ExternalProductionHandle:
        return ExternalProductionHandle("farm/7", 3600, "queued")

    async def poll(self, external_job_id: str) -> dict[str, Any]:
        return {}


def make(url: str) -> Engine:
    engine = Engine(url, settings=Settings())

    @engine.handler("shop.Pack")
    async def pack(payload: dict[str, Any]) -> dict[str, Any]:
        return {"box": payload["item"]}

    @engine.handler("shop.Check", retry=RetryPolicy.of(1, first=0.01))
    async def check(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
        if ctx.attempt == 1:
            raise ConnectionError("the shop is busy")
        return {"good": True}

    @engine.handler("refund")
    async def refund(payload: dict[str, Any]) -> AwaitingApproval:
        return AwaitingApproval(ApprovalRequest.of("Refund it?"))

    @engine.handler("broken")
    async def broken(payload: dict[str, Any]) -> None:
        raise NonRetryable("no good", "spoiled")

    async def look(number: int) -> int:
        return number

    @engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> int:
        return await ctx.step(look, payload["n"], name="look")

    @engine.function("order")
    async def order(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.step(look, 1, name="first")
        await ctx.gather(*(ctx.start("child", {"n": n}) for n in range(payload.get("children", 2))))
        await ctx.call("refund", {"amount": 5, "password": "s3cret"})

    engine.specialist("render", Farm())
    return engine


def service(engine: Engine) -> Operations:
    return Operations(engine, Access("ann", frozenset(Scope)))


def outline(trace: Trace) -> list[tuple[int, str, str, str]]:
    return [(each.depth, each.kind, each.name, each.state) for each in trace.entries]


async def until_shown(engine: Engine, any_id: str, *wanted: str) -> Trace:
    """The trace, once it has entries in these states."""
    async with asyncio.timeout(BOUND):
        while True:
            trace = await engine.kernel.traces.get(any_id)
            states = {f"{each.kind} {each.state}" for each in trace.entries}
            if {*wanted} <= states and not {"run pending", "step running"} & states and _children_ended(trace):
                return trace
            await asyncio.sleep(0.02)


def _children_ended(trace: Trace) -> bool:
    return all(each.ended_at is not None for each in trace.entries if each.kind == "run" and each.depth > 0)


@pytest.fixture(params=["sqlite"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    engine = make(url_of(request.param, request, tmp_path))
    async with engine, engine.worker():
        yield engine


@pytest.mark.postgres
@pytest.mark.parametrize("engine", ["sqlite", POSTGRES], indirect=True)
async def test_every_id_of_a_trace_leads_to_it(engine: Engine) -> None:
    run = await engine.start_function("order", trace_id="checkout-7")
    other = await engine.enqueue("broken", {"n": 1}, trace_id="checkout-7")
    await engine.enqueue("broken", {"n": 1}, trace_id="checkout-8")
    trace = await until_shown(engine, run.id, "approval pending", "task failed", "run completed")
    assert sorted(outline(trace)) == [
        (0, "run", "order", "running"),
        (0, "task", "broken", "failed"),
        (1, "run", "child", "completed"),
        (1, "run", "child", "completed"),
        (1, "step", "first", "completed"),
        (1, "task", "refund", "awaiting_approval"),
        (2, "approval", "refund", "pending"),
        (2, "step", "look", "completed"),
        (2, "step", "look", "completed"),
    ]
    kinds = [(each.kind, each.name) for each in trace.entries]
    assert kinds[kinds.index(("task", "refund")) + 1] == ("approval", "refund")
    assert kinds[kinds.index(("run", "child")) + 1] == ("step", "look")
    ids = [each.id for each in trace.entries]
    assert {each.id for each in trace.entries if each.kind == "task"} > {other.id}
    for each in (*ids, "checkout-7"):
        found = await engine.kernel.traces.get(each)
        assert [entry.id for entry in found.entries] == ids, each
    assert (trace.id, trace.trace_id, trace.ended_at, trace.total) == (run.id, "checkout-7", None, 5)
    with raises_code("trace_not_found"):
        await engine.kernel.traces.get("checkout-9")
    with raises_code("trace_not_found"):
        await engine.kernel.traces.get(engine.kernel.ids.new_id())


async def test_an_entry_has_its_times_attempts_worker_and_error(engine: Engine) -> None:
    run = await engine.start_run([("shop.afl", FLOW)], "shop.Ship", {"items": ["a", "b"], "order": 7})
    await engine.run_result(run.id, timeout=BOUND)
    trace = await engine.kernel.traces.get(run.id)
    (checked,) = [each for each in trace.entries if each.name == "shop.Check"]
    assert (checked.attempt, checked.state, checked.about, checked.error) == (2, "completed", "order = 7", None)
    assert checked.worker in {server.id for server in await engine.kernel.store.servers.list_all()}
    assert checked.ended_at is not None
    assert checked.began_at is not None
    assert checked.created_at <= checked.began_at <= checked.ended_at
    assert [each.kind for each in checked.spans][-1] == "running"
    assert trace.ended_at is not None
    assert [each.name for each in trace.entries].count("shop.Pack") == 2
    failed = await engine.enqueue("broken", {})
    (entry,) = (await until_shown(engine, failed.id, "task failed")).entries
    assert entry.error == "no good"


async def test_external_jobs_and_origins_are_part_of_a_trace(engine: Engine) -> None:
    await engine.schedules.create("nightly", cron="0 3 * * *", task="render")
    started = await engine.schedules.run_now("nightly")
    trace = await until_shown(engine, started.id, "external_job live")
    assert outline(trace) == [(0, "task", "render", "awaiting_external"), (1, "external_job", "render", "live")]
    assert trace.entries[1].about == "farm/7"
    assert trace.origin is not None
    assert (trace.origin.kind, trace.origin.name) == ("schedule", "nightly")


async def test_many_items_are_one_entry_and_can_be_paged(engine: Engine) -> None:
    items = [f"item {number}" for number in range(60)]
    run = await engine.start_run([("shop.afl", FLOW)], "shop.Ship", {"items": items, "order": 7})
    await engine.run_result(run.id, timeout=BOUND)
    api = service(engine).traces
    trace = await api.get(run.id)
    (group,) = [each for each in trace.entries if each.kind == "group"]
    assert (len(trace.entries), group.name, group.count, group.states, trace.total) == (3, "shop.Pack", 60, {"completed": 60}, 62)
    seen: list[str] = []
    after: str | None = None
    while True:
        page = await api.get(run.id, group=group.id, limit=25, after=after)
        seen += [each.about for each in page.entries]
        after = page.next_after
        if after is None:
            break
    assert sorted(seen) == sorted(f'item = "{each}"' for each in items)
    first = await api.get(run.id, limit=2)
    rest = await api.get(run.id, limit=2, after=first.next_after)
    assert [each.id for each in (*first.entries, *rest.entries)] == [each.id for each in trace.entries]


async def test_every_interface_shows_the_same_trace(engine: Engine, tmp_path: Path) -> None:
    run = await engine.start_function("order", {"children": 1}, trace_id="checkout-7")
    trace = await until_shown(engine, run.id, "approval pending", "run completed")
    wanted = [each.id for each in trace.entries]
    treadle = Treadle(tmp_path, store=engine.kernel.store.url)
    shown = treadle.json("trace", "checkout-7")
    assert [each["id"] for each in shown["entries"]] == wanted
    text = treadle("trace", run.id, COLUMNS="80").out
    assert max(map(len, text.splitlines())) <= 80, text
    for name in ("order", "first", "child", "refund", "approval"):
        assert name in text
    assert "s3cret" not in text
    async with visiting(engine) as visit:
        told = (await visit.browser.get(f"/v1/traces/{wanted[-1]}")).json()
        page = await visit.page(f"/traces/{wanted[-1]}")
    async with in_request_context(engine) as client:
        answer = await client.call_tool("trace_show", {"id": run.id})
    for found in (told, answer.structured_content):
        assert [each["id"] for each in found["entries"]] == wanted
        assert {name: found[name] for name in ("id", "trace_id", "name")} == {
            name: to_builtins(trace)[name] for name in ("id", "trace_id", "name")
        }
    for each in wanted:
        assert f'id="entry-{each}"' in page
