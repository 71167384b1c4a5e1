"""Operations of durable functions in asyncio tasks that a framework creates: `ctx.hosted`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.approvals.test_functions import asked
from tests.engines import make_engine
from tests.limits import BOUND

from treadle import Engine
from treadle.kernel.store.queries import TaskFilter
from treadle.model.errors import ApprovalDenied, StepFailed
from treadle.testing import crash_test
from treadle.workers.functions.context import current_function


async def framework(*calls: Any, reverse: bool = False) -> list[Any]:
    """Await calls in tasks, in either order, as a framework might."""
    tasks = [asyncio.create_task(call()) for call in (reversed(calls) if reverse else calls)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return list(reversed(results) if reverse else results)


def test_no_recorded_step_is_repeated_after_any_crash_in_any_task_order() -> None:
    executions = iter(range(1_000_000))

    def setup(engine: Engine, effects: list[Any]) -> None:
        async def effect(what: str) -> str:
            effects.append(what)
            await asyncio.sleep(0)
            return what.upper()

        @engine.handler("remote")
        async def remote(payload: Any) -> Any:
            return {"got": payload["what"]}

        @engine.function("agent")
        async def agent(payload: Any, ctx: Any) -> Any:
            found = [await ctx.hosted("model", ctx.step(effect, "request 1"))]

            def tool(name: str) -> Any:
                async def call() -> Any:
                    said = await ctx.hosted(f"tool {name}", ctx.effect(name, lambda: effect(ctx.dedupe_key and name)))
                    return [said, await ctx.hosted(f"call {name}", ctx.call("remote", {"what": name}))]

                return call

            found += await framework(*(tool(name) for name in "ab"), reverse=next(executions) % 2 == 1)
            found.append(await ctx.hosted("model", ctx.step(effect, "request 2")))
            found.append(await ctx.step(effect, "after"))
            found.append(await ctx.hosted("model", ctx.step(effect, "request 3")))
            return found

    async def start(engine: Engine) -> Any:
        return await engine.start_function("agent")

    report = crash_test(setup, start)
    told = [f"{name.upper()}" for name in "ab"]
    both = ",".join(f'["{each}",{{"got":"{each.lower()}"}}]' for each in told)
    assert report.outcome == f'["REQUEST 1",{both},"REQUEST 2","AFTER","REQUEST 3"]'
    for case in report.cases:  # a crash before a commit repeats what was not recorded yet
        assert not case.lost
        assert case.outcome == report.outcome
        assert "before" in case.crash or len(case.repeated) <= 2, case.text()
    assert report.writes > 8


async def test_a_function_that_waits_in_a_task_is_requeued_and_continues_elsewhere() -> None:
    engine = make_engine("memory://")
    steps: list[str] = []

    async def step(what: str) -> None:
        steps.append(what)

    @engine.function("ask")
    async def ask(payload: Any, ctx: Any) -> Any:
        async def approve(name: str) -> Any:
            try:
                return (await ctx.hosted(f"approve {name}", ctx.approval(f"May I {name}?")))["by"]
            except ApprovalDenied as error:
                return str(error)

        async def work() -> None:
            await ctx.hosted("work", ctx.step(step, "work"))

        await ctx.step(step, "first")
        return (await framework(lambda: approve("go"), lambda: approve("stop"), work))[:2]

    async with engine:
        async with engine.worker(concurrency=1):
            runs = [await engine.start_function("ask") for _ in range(3)]  # each waits; one slot serves them all
            found = await asked(engine, 6)
        for shown in found:
            how = "approve" if "go" in shown.title else "deny"
            await engine.approvals.decide(shown.id, how, actor="ada", reason="because")
        async with engine.worker():
            for run in runs:
                assert await engine.run_result(run, timeout=BOUND) == ["ada", "approval denied by ada: because"]
        assert steps == ["first", "work"] * 3 or sorted(steps) == ["first"] * 3 + ["work"] * 3
        assert (await engine.kernel.verify()).holds


async def test_a_paused_run_pauses_the_tasks_of_a_framework() -> None:
    engine = make_engine("memory://")
    begun, gate = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await gate.wait()

    @engine.function("slow")
    async def work(payload: Any, ctx: Any) -> Any:
        assert current_function() is not None
        await framework(lambda: ctx.hosted("slow", ctx.step(slow)))
        return await framework(lambda: ctx.hosted("then", ctx.step(lambda: 1)))

    async with engine, engine.worker():
        run = await engine.start_function("slow")
        await asyncio.wait_for(begun.wait(), BOUND)
        await engine.runs.pause(run.id)
        gate.set()
        async with asyncio.timeout(BOUND):
            while any(  # noqa: ASYNC110
                task.owner_id for task in await engine.kernel.store.tasks.list_matching(TaskFilter(run_id=run.id), 10)
            ):
                await asyncio.sleep(0.01)
        await engine.runs.resume(run.id)
        assert await engine.run_result(run, timeout=BOUND) == [1]


async def test_a_task_canceled_by_the_framework_is_not_a_failed_step() -> None:
    engine = make_engine("memory://")

    async def cancel(*calls: Any) -> list[Any]:
        tasks = [asyncio.create_task(call()) for call in calls]
        await asyncio.sleep(0.1)  # longer than a moment: the step executes, so the run must not rest
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    @engine.function("cancels")
    async def work(payload: Any, ctx: Any) -> Any:
        never = asyncio.Event()
        ended = await cancel(
            lambda: ctx.hosted("given up", ctx.step(never.wait)), lambda: ctx.hosted("asked in vain", ctx.approval("Really?"))
        )
        await ctx.sleep(0.1)
        return [*(type(each).__name__ for each in ended), *await framework(lambda: ctx.hosted("then", ctx.step(lambda: 1)))]

    async with engine, engine.worker():
        run = await engine.start_function("cancels")
        assert await engine.run_result(run, timeout=BOUND) == ["CancelledError", "CancelledError", 1]


async def test_a_failed_step_is_raised_in_its_task() -> None:
    engine = make_engine("memory://")

    async def fail() -> None:
        assert current_function() is None  # inside a step
        raise ValueError("no")

    @engine.function("fails")
    async def fails(payload: Any, ctx: Any) -> Any:
        (error,) = await framework(lambda: ctx.hosted("fail", ctx.step(fail, retry=1)))
        assert isinstance(error, StepFailed)
        return str(error)

    async with engine, engine.worker():
        assert "no" in await engine.run_result(await engine.start_function("fails"), timeout=BOUND)


def test_current_function_raises_outside_a_function() -> None:
    assert current_function() is None
    with pytest.raises(AttributeError):
        current_function().run_id  # type: ignore[union-attr]  # noqa: B018
