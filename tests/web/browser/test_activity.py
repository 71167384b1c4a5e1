"""Activities of runs in a browser: lists, filters with counts, the step in progress, and takeovers."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.functions.driver import until
from tests.web.browser.conftest import IN_BROWSER, Screen

from treadle.engine.operations import Operations
from treadle.model.access import OPEN

pytestmark = IN_BROWSER


async def test_runs_show_their_activity_and_are_filtered_and_counted_by_it(screen: Screen) -> None:
    engine, release, began = screen.engine, asyncio.Event(), asyncio.Event()

    async def crunch() -> str:
        began.set()
        await release.wait()
        return "done"

    @engine.function("sleeper")
    async def sleeper(payload: Any, ctx: Any) -> None:
        await ctx.sleep(3 * 86400)

    @engine.function("asker")
    async def asker(payload: Any, ctx: Any) -> None:
        await ctx.approval("May I?")

    @engine.function("listener")
    async def listener(payload: Any, ctx: Any) -> None:
        await ctx.wait_for("go")

    @engine.function("cruncher")
    async def cruncher(payload: Any, ctx: Any) -> Any:
        return await ctx.step(crunch)

    service = Operations(engine, OPEN)
    lost = await _lose(screen)
    async with engine.worker():
        for name in ("sleeper", "sleeper", "asker", "listener"):
            await engine.start_function(name)
        await began.wait()

        async def noted() -> bool:
            return [step.state for step in (await service.steps.list(lost)).steps] == ["running"]

        async def settled() -> bool:
            counts = (await service.runs.counts()).activities
            return {name: count for name, count in counts.items() if count} == {
                "running": 1,
                "sleeping": 2,
                "waiting_for_approval": 1,
                "waiting_for_signal": 1,
            }

        await until(settled)
        await until(noted)
        await screen.go("/runs")
        await screen.sees("waiting for a person", "nav[aria-label='By activity']")
        await screen.sees("in 3 d")
        await screen.sees("go", "tbody")
        await screen.page.get_by_role("link", name="sleeping 2").click()
        await screen.page.wait_for_url("**activity=sleeping**")
        assert await screen.page.locator("tbody tr").count() == 2
        await screen.go(f"/runs/{lost}?view=steps")
        await screen.page.locator(".tree a[data-pick]").first.click()
        await screen.sees("attempt 1 on worker", "#step")
        await screen.sees("Takeovers")
        await screen.sees("a-lost-worker")
        release.set()
        await engine.run_result(lost)
    await screen.page.locator("main .facts").get_by_text("took").first.wait_for()


async def _lose(screen: Screen) -> str:
    """A run whose first worker vanished."""
    store = screen.engine.kernel.store
    run = await screen.engine.start_function("cruncher")
    queues = [queue_id for queue_id, queue in (await store.tasks.list_queues()).items() if queue.kind == "function"]
    await store.tasks.claim(queues, "a-lost-worker", 60_000, 1)
    await store.tasks.expire_leases_of(["a-lost-worker"])
    await store.tasks.wake(10)
    return run.id
