"""Functions after a takeover, a cancel or a retry: the number of their steps, their log lines, and signals of a wrong type."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines import make_engine
from tests.functions.driver import LEASE_FOR, Died, function_scene, requeued, until
from tests.limits import BOUND

from treadle import Canceled, Engine, FunctionContext, RunCanceled, RunFailed
from treadle.kernel.functions.steps import HIDDEN
from treadle.model.errors import IllegalTransition


@pytest.mark.parametrize("after", [False, True])
async def test_the_number_of_steps_equals_the_recorded_steps_after_any_crash(after: bool):
    for dies_at in range(1, 9):
        async with function_scene() as scene:

            @scene.engine.function("count")
            async def count(payload: dict[str, Any], ctx: Any) -> None:
                for number in range(3):
                    await ctx.step(lambda n: n, number)
                    ctx.publish("number", number)
                await ctx.wait_for("go")
                await ctx.step(lambda: None)
                await ctx.sleep(1)

            run = await scene.engine.start_function("count")
            await scene.engine.signal(run.id, "go", idempotency_key="k")
            dying = scene.process(dies_at=dies_at, after=after)
            try:
                await dying.quiet()
            except Died:
                dying.die()
            process = scene.process()
            for _ in range(3):
                scene.clock.advance(LEASE_FOR / 1000)
                await process.quiet()
            found = await scene.engine.kernel.runs.get_run(run.id)
            recorded = await scene.engine.kernel.functions.recorded(run.id)
            assert (found.state, found.steps) == ("completed", sum(each.kind not in HIDDEN for each in recorded)), dies_at


async def test_log_lines_of_a_cleanup_are_kept_once():
    async with make_engine("memory://") as engine:

        @engine.function("book")
        async def book(payload: dict[str, Any], ctx: Any) -> None:
            ctx.log("booked")
            try:
                await ctx.wait_for("paid")
            except Canceled:
                ctx.log("releasing")
                raise

        async with engine.worker():
            run = await engine.start_function("book")
            await until(lambda: requeued(engine, run.id))
            await engine.runs.cancel(run.id, reason="sold out")
            with pytest.raises(RunCanceled):
                await engine.run_result(run, timeout=BOUND)
        lines = [line.message for _, line in await engine.kernel.run_reads.page_lines(run.id, 1000)]
    assert [line for line in lines if line in ("booked", "releasing")] == ["booked", "releasing"]


@pytest.mark.parametrize("way", ["alone", "gather", "first"])
async def test_a_retry_waits_for_another_signal_after_one_of_a_wrong_type(way: str):
    async with make_engine("memory://") as engine:

        @engine.function("waits")
        async def waits(payload: dict[str, Any], ctx: Any) -> Any:
            wait = ctx.wait_for("go", type=int)
            if way == "alone":
                return await wait
            return (await ctx.gather(wait))[0] if way == "gather" else (await ctx.first(go=wait, late=ctx.sleep(9999))).value

        async with engine.worker():
            run = await engine.start_function("waits")
            await engine.signal(run.id, "go", "one")
            with pytest.raises(RunFailed, match=f"`treadle runs retry {run.id}` waits for it again"):
                await engine.run_result(run, timeout=BOUND)
            await engine.runs.retry(run.id)
            await until(lambda: requeued(engine, run.id))
            await engine.signal(run.id, "go", 1)
            assert await engine.run_result(run, timeout=BOUND) == 1


def test_handles_send_signals_and_an_ended_run_refuses_an_update_by_its_name():
    engine = Engine("memory://")

    @engine.function
    async def waits(ctx: FunctionContext) -> list[int]:
        return [await ctx.wait_for("go", type=int), await ctx.wait_for("go", type=int)]

    with engine.blocking() as blocking:

        async def result() -> list[int]:
            async with engine.worker():
                return await run.handle.result(timeout=BOUND)

        run = blocking.start(waits)
        assert run.signal("go", 1, idempotency_key="k")
        assert not run.signal("go", 1, idempotency_key="k")
        assert blocking.run(run.handle.signal("go", 2))
        assert blocking.run(result()) == [1, 2]
        with pytest.raises(IllegalTransition, match="update is not possible"):
            run.update("go", 3)
        with pytest.raises(IllegalTransition, match="signal is not possible"):
            run.signal("go", 3)
