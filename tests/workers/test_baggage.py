"""Baggage: values of context variables of the caller are visible in all work that follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, url_of
from tests.functions.test_functions import Backwards
from tests.limits import BOUND

from treadle import Engine, RunFailed
from treadle.model.errors import InvalidInput
from treadle.settings import Settings

tenant: ContextVar[Any] = ContextVar("tenant")
request_id: ContextVar[Any] = ContextVar("request_id", default="none")

AFL = """namespace o {
  event facet Seen(item: String) => (seen: Json)
  workflow Look(item: String) => (seen: Json) andThen {
    s = Seen(item = $.item)
    yield Look(seen = s.seen)
  }
}"""


@pytest.fixture(params=ALL)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    opened = Engine(
        url_of(request.param, request, tmp_path), settings=Settings(), codec=Backwards(), propagate=[tenant, request_id]
    )
    register(opened)
    async with opened:
        yield opened


def here() -> list[Any]:
    return [tenant.get(None), request_id.get()]


def register(engine: Engine) -> None:
    @engine.handler("seen")
    async def seen(payload: dict[str, Any]) -> dict[str, Any]:
        return {"seen": here()}

    @engine.handler("sync")
    def sync(payload: dict[str, Any]) -> dict[str, Any]:
        return {"seen": here()}

    @engine.handler("again")
    async def again(payload: dict[str, Any]) -> dict[str, Any]:
        return await engine.result(await engine.enqueue("sync"))

    @engine.handler("retried", retry=1)
    async def retried(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
        if ctx.attempt == 1:
            raise ValueError
        return {"seen": here()}

    engine.handler("o.Seen")(lambda payload: {"seen": here()})

    @engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        return [here(), (await ctx.call("seen"))["seen"]]

    @engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        if payload.get("fail") and not failing.pop():
            raise ValueError("once")
        if payload.get("left"):
            await ctx.continue_as_new({"left": payload["left"] - 1})
        await ctx.sleep(0)
        started = await ctx.start("child")
        both = await ctx.gather(ctx.step(here), ctx.step(_async_here))
        return [here(), *both, *await started.result()]


failing: list[bool] = []


async def _async_here() -> list[Any]:
    return here()


async def with_values(call: Callable[[], Awaitable[Any]]) -> Any:
    """Await a call in a context in which the variables are set."""

    async def within() -> Any:
        tenant.set({"id": 7})
        request_id.set("r1")
        return await call()

    return await asyncio.get_running_loop().create_task(within(), context=copy_context())


SET = [{"id": 7}, "r1"]


@pytest.mark.postgres
async def test_work_sees_the_context_of_its_caller(engine: Engine) -> None:
    names = ("seen", "sync", "again", "retried")
    tasks = [await with_values(lambda name=name: engine.enqueue(name)) for name in names]
    runs = [await with_values(lambda payload=payload: engine.start("f", payload)) for payload in ({}, {"left": 2})]
    flow = await with_values(lambda: engine.start_run([("look.afl", AFL)], "o.Look", {"item": "x"}))
    bare = await engine.enqueue("sync")
    async with engine.worker():
        assert [(await engine.result(task, timeout=BOUND))["seen"] for task in tasks] == [SET] * 4
        assert [await run.result(timeout=BOUND) for run in runs] == [[SET] * 5] * 2
        assert (await engine.run_result(flow, timeout=BOUND))["seen"] == SET
        assert (await engine.result(bare, timeout=BOUND))["seen"] == [None, "none"]
        again = await engine.runs.rerun(flow.id)
        assert (await engine.run_result(again, timeout=BOUND))["seen"] == SET
        rerun = await engine.runs.rerun(runs[0].id)
        assert await engine.run_result(rerun, timeout=BOUND) == [SET] * 5
    stored = await engine.kernel.store.tasks.find(tasks[0].id)
    assert stored is not None
    assert stored.baggage is not None
    assert "r1" not in stored.baggage


async def test_a_retry_by_an_operator_keeps_the_baggage(engine: Engine) -> None:
    failing[:] = [True, False]
    run = await with_values(lambda: engine.start("f", {"fail": True}))
    async with engine.worker():
        with pytest.raises(RunFailed):
            await run.result(timeout=BOUND)
        await engine.runs.retry(run.id)
        assert await run.result(timeout=BOUND) == [SET] * 5


async def test_values_pass_unseen_through_a_process_that_does_not_know_their_variables(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of("sqlite", request, tmp_path)
    first = Engine(url, settings=Settings(), propagate=[tenant, request_id])
    second = Engine(url, settings=Settings(), propagate=[tenant])
    register(first)

    @second.handler("hop")
    async def pass_on(payload: dict[str, Any]) -> dict[str, Any]:
        assert here() == [{"id": 7}, "none"]
        return {"id": (await second.enqueue("seen", task_list="first")).id}

    async with first, second, first.worker(task_lists=["first"]), second.worker(task_lists=["second"]):
        task = await with_values(lambda: first.enqueue("hop", task_list="second"))
        passed = await first.result(task, timeout=BOUND)
        assert (await first.result(passed["id"], timeout=BOUND))["seen"] == SET


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 5000])
async def test_a_value_that_cannot_be_stored_is_refused_to_the_caller(value: Any) -> None:
    async with Engine("memory://", settings=Settings(), propagate=[tenant]) as engine:
        register(engine)

        token = tenant.set(value)
        for start in (lambda: engine.enqueue("seen"), lambda: engine.start("f")):
            with pytest.raises(InvalidInput, match="context variables"):
                await start()
        tenant.reset(token)


@pytest.mark.parametrize("variables", [["tenant"], [tenant, ContextVar("tenant")], [7]])
def test_propagate_refuses_other_objects_and_repeated_names(variables: list[Any]) -> None:
    with pytest.raises(InvalidInput, match="propagate"):
        Engine("memory://", settings=Settings(), propagate=variables)


async def test_no_baggage_is_stored_without_a_value_or_a_variable() -> None:
    for variables in ((), (tenant,)):
        async with Engine("memory://", settings=Settings(), propagate=variables) as engine:
            task = await engine.enqueue("seen")
            stored = await engine.kernel.store.tasks.find(task.id)
            assert stored is not None
            assert stored.baggage is None


async def test_a_batch_sees_the_context_of_none_of_its_tasks() -> None:
    async with Engine("memory://", settings=Settings(), propagate=[tenant, request_id]) as engine:

        @engine.handler("batch", batch=2, within=BOUND)
        async def batch(payloads: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [{"seen": here()} for _ in payloads]

        tasks = [await with_values(lambda: engine.enqueue("batch")), await engine.enqueue("batch")]
        async with engine.worker():
            assert [(await engine.result(task, timeout=BOUND))["seen"] for task in tasks] == [[None, "none"]] * 2


async def test_sync_functions_see_the_context_of_their_caller() -> None:
    async with Engine("memory://", settings=Settings(), propagate=[tenant, request_id]) as engine:

        @engine.function("sync")
        def function(payload: dict[str, Any], ctx: Any) -> Any:
            return [here(), ctx.step(here), ctx.sleep(0), here()]

        run = await with_values(lambda: engine.start("sync"))
        async with engine.worker():
            assert await run.result(timeout=BOUND) == [SET, SET, None, SET]
