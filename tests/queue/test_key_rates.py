"""Rates of limit keys that handlers and steps of durable functions share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.engines import make_engine, url_of
from tests.functions.driver import Died, Scene, function_scene
from tests.limits import BOUND
from tests.sizes import POSTGRES

from treadle import Engine
from treadle.kernel.store.queries import RunFilter
from treadle.model.errors import InvalidPolicy
from treadle.model.names import HANDLER
from treadle.settings import Settings
from treadle.testing import ManualClock

KEY = "stripe"


def check_starts(starts: Sequence[int], rate: float, burst: int) -> None:
    """Check that no span of time has more starts than the burst and the rate allow."""
    for first, began_at in enumerate(starts):
        for last in range(first, len(starts)):
            assert last - first + 1 <= burst + rate * (starts[last] - began_at) / 1000 + 0.001


def define(scene: Scene, starts: list[int]) -> None:
    clock, engine = scene.clock, scene.engine

    async def charge(n: int) -> int:
        starts.append(clock.now())
        return n

    @engine.function("pay")
    async def pay(payload: dict[str, Any], ctx: Any) -> Any:
        first = await ctx.step(charge, 1, limit_key=KEY)
        both = await ctx.gather(*[ctx.step(charge, n, limit_key=KEY) for n in (2, 3)], ctx.step(plain))
        await ctx.sleep(0.1)
        return [first, *both]


async def plain() -> str:
    return "plain"


async def until_ended(scene: Scene, process: Any, starts: list[int], steps: int = 500) -> None:
    """Let time pass and execute every function and handler that is ready, until none is live."""
    for _ in range(steps):
        await process.quiet()
        for task in await process.claim(HANDLER):
            starts.append(scene.clock.now())
            await process.settle(task)
        counts = await scene.engine.kernel.store.runs.count(RunFilter(namespace="default"))
        if set(counts) == {"completed"} and not await scene.engine.kernel.store.tasks.list_depths():
            return
        scene.clock.advance(0.05)
    raise AssertionError(f"not all runs ended: {counts}")


async def test_steps_and_tasks_share_the_rate_of_a_key():
    starts: list[int] = []
    async with function_scene() as scene:
        define(scene, starts)
        await scene.engine.kernel.lists.limit_key_rate(KEY, "4/s", 2)
        runs = [await scene.engine.start_function("pay", {}) for _ in range(3)]
        for _ in range(4):
            await scene.engine.enqueue("mail", limit_key=KEY)
        process = scene.process()
        await until_ended(scene, process, starts)
        assert [await scene.engine.run_result(run.id) for run in runs] == [[1, 2, 3, "plain"]] * 3
        assert len(starts) == 13
        check_starts(sorted(starts), 4, 2)
        assert sorted(starts)[-1] - min(starts) <= 4_000  # no token was wasted on waiting
        (limit,) = (await scene.engine.kernel.lists.limits()).limits
        assert (limit.admitted, limit.waiting) == (0, 0)


async def test_a_step_waiting_for_a_rate_limit_occupies_no_worker_and_explains_its_wait():
    starts: list[int] = []
    async with function_scene() as scene:
        define(scene, starts)
        await scene.engine.kernel.lists.limit_key_rate(KEY, "1/min", 1)
        first = await scene.engine.start_function("pay", {})
        second = await scene.engine.start_function("pay", {})
        process = scene.process()
        await process.quiet()
        assert len(starts) == 1
        for run in (first, second):
            (task,) = await process.live(run.id)
            assert (task.owner_id, task.limit_key) == (None, KEY)
            reason = await scene.engine.why(run.id)
            assert KEY in reason.text
            assert "1 per minute, bursts of 1" in reason.text
            assert "the next start is expected at" in reason.text
        await scene.engine.kernel.lists.limit_key_rate(KEY, None)
        await process.quiet()
        assert len(starts) == 6


@pytest.mark.parametrize("after", [False, True])
async def test_a_death_at_any_commit_neither_loses_nor_keeps_a_slot(after: bool):
    for dies_at in range(1, 30):
        starts: list[int] = []
        async with function_scene() as scene:
            define(scene, starts)
            await scene.engine.kernel.lists.limit_key(KEY, 1)
            await scene.engine.kernel.lists.limit_key_rate(KEY, 20, 1)
            run = await scene.engine.start_function("pay", {})
            process = scene.process(dies_at=dies_at, after=after)
            died = False
            try:
                await until_ended(scene, process, starts)
            except Died:
                died = True
                process.die()
                scene.clock.advance(61)
                await until_ended(scene, scene.process(), starts)
            assert await scene.engine.run_result(run.id) == [1, 2, 3, "plain"]
            check_starts(starts, 20, 1)
            (limit,) = (await scene.engine.kernel.lists.limits()).limits
            assert (limit.admitted, limit.waiting) == (0, 0)
        if not died:
            return
    raise AssertionError("the run has more commits than expected")


async def test_a_failed_attempt_gives_its_slot_back_and_the_next_takes_another():
    starts: list[int] = []
    async with function_scene() as scene:

        async def flaky() -> str:
            starts.append(scene.clock.now())
            if len(starts) < 3:
                raise OSError("not yet")
            return "done"

        @scene.engine.function("flaky")
        async def run_flaky(payload: dict[str, Any], ctx: Any) -> Any:
            return await ctx.effect("call", flaky, retry=5, limit_key=KEY)

        await scene.engine.kernel.lists.limit_key_rate(KEY, 0.1, 1)
        run = await scene.engine.start_function("flaky", {})
        await until_ended(scene, scene.process(), starts, 2000)
        assert await scene.engine.run_result(run.id) == "done"
        check_starts(starts, 0.1, 1)
        assert len(starts) == 3


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["memory", POSTGRES])
async def test_handlers_declare_the_key_that_they_share(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    async with make_engine(url_of(kind, request, tmp_path)) as engine:
        done: list[str] = []

        @engine.handler("charge", limit_key=KEY)
        @engine.handler("refund", limit_key=KEY)
        async def call(payload: dict[str, Any], ctx: Any) -> None:
            done.append(payload["name"])

        await engine.kernel.lists.limit_key_rate(KEY, 0.0001, 3)
        tasks = [await engine.enqueue(name, {"name": name}) for name in ("charge", "refund") * 3]
        async with engine.worker():
            async with asyncio.timeout(BOUND):
                states = [""]
                while states.count("completed") < 3:
                    await asyncio.sleep(0.01)
                    states = [(await engine.kernel.reads.get_task(task.id)).shown_state for task in tasks]
            assert sorted(states) == ["completed"] * 3 + ["pending"] * 3
            assert len(done) == 3
            waiting = next(task for task, state in zip(tasks, states, strict=True) if state == "pending")
            reason = await engine.why(waiting.id)
            assert (reason.code, KEY in reason.text) == ("rate", True)
            await engine.kernel.lists.limit_key_rate(KEY, "1000/s")
            for task in tasks:
                await engine.result(task, timeout=BOUND)
        with pytest.raises(InvalidPolicy, match="--key stripe"):
            await engine.kernel.lists.limit_handler("charge", 2)


@pytest.mark.parametrize(
    ("rate", "per_second"), [("10/s", 10), ("90/min", 1.5), ("36/hour", 0.01), ("1/day", 1 / 86_400), ("2.5", 2.5), (3, 3)]
)
async def test_a_rate_is_a_number_or_a_text_with_a_unit(rate: Any, per_second: float):
    async with Engine("memory://", settings=Settings(), clock=ManualClock()) as engine:
        await engine.kernel.lists.limit_key_rate(KEY, rate)
        (limit,) = (await engine.kernel.lists.limits()).limits
        assert limit.rate == pytest.approx(per_second)


@pytest.mark.parametrize("rate", ["fast", "10/week", "10/", "/s", "nan", "inf", 0, -1, "1e-9", True])
async def test_a_rate_that_cannot_be_read_is_refused(rate: Any):
    async with Engine("memory://", settings=Settings(), clock=ManualClock()) as engine:
        with pytest.raises(InvalidPolicy):
            await engine.kernel.lists.limit_key_rate(KEY, rate)
        assert (await engine.kernel.lists.limits()).limits == []
