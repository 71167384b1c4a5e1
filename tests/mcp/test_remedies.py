"""Each fault leads a model to its remedy, by `why` and `debug`: the right name, the task to end, the flow's version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client
from tests.limits import BOUND
from tests.mcp.transports import in_request_context, told

from treadle import Engine
from treadle.kernel.queue.why import HANGS_AFTER
from treadle.model.errors import NotFound
from treadle.model.runs import ActivityKind
from treadle.testing import ManualClock

FLOW = """namespace shop {{
    event facet Pay(n: Long) => (paid: Long)
    workflow Divide(n: Long) => (share: Double) andThen {{
        pay = Pay(n = $.n)
        yield Divide(share = {share})
    }}
    workflow Script(n: Long) => (half: Json) script {{
        result["half"] = 1 // params["n"]
    }} andThen {{
        yield Script(half = $.half)
    }}
    workflow Buy(n: Long) => (paid: Long) andThen {{
        pay = Pay(n = $.n)
        yield Buy(paid = pay.paid)
    }}
}}
"""
BROKEN = FLOW.format(share="100 / pay.paid")


def shop(clock: ManualClock | None = None) -> Engine:
    engine = Engine("memory://") if clock is None else Engine("memory://", clock=clock)

    @engine.handler("shop.Pay", retry=0)
    async def pay(payload: dict[str, Any]) -> dict[str, Any]:
        if payload["n"] == 13:
            raise RuntimeError("the card is declined")
        return {"paid": payload["n"]}

    @engine.handler("shop.Hang")
    async def hang(payload: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    @engine.function("trip")
    async def trip(payload: dict[str, Any], ctx: Any) -> Any:
        return await ctx.wait_for("approved")

    return engine


@asynccontextmanager
async def session(engine: Engine, **worker: Any) -> AsyncIterator[Client]:
    async with engine, engine.worker(grace=0, **worker), in_request_context(engine) as client:
        yield client


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(BOUND):
        while not await look():  # noqa: ASYNC110 - the engine ends it
            await asyncio.sleep(0.01)


async def why(client: Client, some_id: str) -> dict[str, Any]:
    return told(await client.call_tool("why", {"id": some_id}))


@pytest.mark.parametrize(
    ("name", "task_list", "expected"),
    [
        ("shop.Pya", "default", "in list default; did you mean shop.Pay?; start"),
        ("Shop.pay", "default", "in list default; did you mean shop.Pay?; start"),
        ("shop.Pay", "gpu", "in list gpu, but in default; start"),
        ("mail.Send", "default", "in list default; start"),
    ],
)
async def test_an_unserved_handler_is_reported_with_a_similar_served_one(name: str, task_list: str, expected: str):
    engine = shop()
    async with session(engine) as client:
        task = await engine.enqueue(name, {}, task_list=task_list)
        reason = await why(client, task.id)
        assert reason["code"] == "no_worker"
        assert expected in reason["text"]


async def test_an_unknown_function_or_tool_is_reported_with_a_similar_name():
    engine = shop()
    async with session(engine) as client:
        with pytest.raises(NotFound, match=r"did you mean trip\?"):
            await engine.start_function("tirp", {})
        unknown = (await client.call_tool("tool_call", {"name": "task_shwo"})).structured_content
        assert "did you mean task_show?" in unknown["error"]


async def test_a_holder_that_may_hang_is_named_with_its_age_and_can_be_canceled():
    clock = ManualClock()
    engine = shop(clock)
    async with engine:
        holder = await engine.enqueue("shop.Hang", {}, limit_key="till", limit=1)
        waiting = await engine.enqueue("shop.Pay", {"n": 1}, limit_key="till", limit=1)
        await engine.kernel.store.tasks.claim([(await engine.kernel.reads.get_task(holder.id)).queue_id], "somebody", 60_000, 1)
        assert "(running for 0 ms)" in (await engine.why(waiting)).text
        assert "tasks cancel" not in (await engine.why(waiting)).text
        clock.advance(HANGS_AFTER / 1000)
        async with in_request_context(engine) as client:
            for some_id in (waiting.id, holder.id):
                reason = await why(client, some_id)
                assert "for 10" in reason["text"], reason
                assert {"tool": "task_cancel", "arguments": {"task_id": holder.id}} in reason["actions"]


@pytest.mark.parametrize(("workflow", "n"), [("shop.Divide", 0), ("shop.Script", 0)])
async def test_a_failure_of_the_flow_itself_leads_to_its_version_and_not_to_a_retry(workflow: str, n: int):
    engine = shop()
    async with session(engine) as client:
        await client.call_tool("flow_publish", {"name": "shop", "source": BROKEN})
        run = told(await client.call_tool("run_start", {"flow": "shop", "workflow_name": workflow, "inputs": {"n": n}}))
        reason = await why(client, run["run_id"])
        assert "version 1 of the flow shop itself fails" in reason["text"]
        assert [action["tool"] for action in reason["actions"]] == ["flow_publish", "run_start"]
        advice = told(await client.call_tool("debug", {"id": run["run_id"]}))["next_actions"]
        assert "corrected flow" in advice[0]
        await client.call_tool("flow_publish", {"name": "shop", "source": FLOW.format(share="1.0")})
        assert "version 2 is the newest" in (await why(client, run["run_id"]))["text"]


async def test_a_failure_of_a_handler_leads_to_a_retry():
    engine = shop()
    async with session(engine) as client:
        run = told(
            await client.call_tool("afl_execute_workflow", {"source": BROKEN, "workflow_name": "shop.Buy", "inputs": {"n": 13}})
        )
        assert [action["tool"] for action in (await why(client, run["run_id"]))["actions"]] == ["run_retry"]
        advice = told(await client.call_tool("debug", {"id": run["run_id"]}))["next_actions"]
        assert advice[0].startswith("afl_retry_step(")


async def test_a_failure_of_an_unpublished_flow_leads_to_its_source():
    engine = shop()
    async with session(engine) as client:
        inputs = {"source": BROKEN, "workflow_name": "shop.Divide", "inputs": {"n": 0}}
        run = told(await client.call_tool("afl_execute_workflow", inputs))
        reason = await why(client, run["run_id"])
        assert "correct its source" in reason["text"]
        assert "actions" not in reason


async def test_an_unexpected_signal_is_reported():
    engine = shop()
    async with session(engine) as client:
        run = await engine.start_function("trip", {})

        async def waits() -> bool:
            return (await engine.kernel.run_services.reads.why(run.id)).code == "suspended"

        await until(waits)
        for name in ("aproved", "weather"):
            await client.call_tool("run_signal", {"run_id": run.id, "name": name})
        await until(waits)
        text = (await why(client, run.id))["text"]
        assert "the signal aproved, which nothing waits for; did you mean approved?" in text
        assert "the signal weather, which nothing waits for" in text


async def test_a_run_that_ends_while_it_is_read_is_not_stuck(monkeypatch: pytest.MonkeyPatch):
    engine = shop()
    async with session(engine) as client:
        failed = {"source": BROKEN, "workflow_name": "shop.Buy", "inputs": {"n": 13}}
        run_id = told(await client.call_tool("afl_execute_workflow", failed))["run_id"]
        runs = engine.kernel.runs
        retry = runs.retry

        async def slow_retry(*arguments: Any, **named: Any) -> Any:
            """Return the row as it was before the worker was done with the run again."""
            row = await retry(*arguments, **named)

            async def ended() -> bool:
                return (await engine.kernel.run_services.reads.get_run(run_id)).finished

            await until(ended)
            return row

        monkeypatch.setattr(runs, "retry", slow_retry)
        retried = told(await client.call_tool("run_retry", {"run_id": run_id}))
        assert retried["activity"] != ActivityKind.STUCK
        assert "stuck" not in str(retried)
