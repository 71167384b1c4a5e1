"""The activity of a run: one word for every kind of wait, the same in lists, filters, counts and `why`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import make_engine, url_of
from tests.functions.driver import function_scene, requeued, until
from tests.sizes import POSTGRES

from treadle import Engine, RetryPolicy
from treadle.engine.operations import Operations
from treadle.model.access import OPEN
from treadle.model.errors import InvalidInput
from treadle.testing import StubExternalSpecialist

HOUR = 3600
LATER = RetryPolicy(retries=1, first_for=600_000)


async def broken() -> None:
    raise ValueError("it broke")


@pytest.fixture(params=["memory", POSTGRES])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with make_engine(url_of(request.param, request, tmp_path)) as opened:
        yield opened


def define(engine: Engine, working: asyncio.Event) -> dict[str, tuple[str, str]]:
    """A function for each kind of wait: its activity, and words of its text."""
    engine.specialist("render", StubExternalSpecialist([], initial_polling_interval_seconds=HOUR))

    async def work() -> None:
        working.set()
        await asyncio.Event().wait()

    waits: dict[str, tuple[Any, str, str]] = {
        "sleeps": (lambda ctx: ctx.sleep(3 * 24 * HOUR), "sleeping", "sleeping until 2"),
        "listens": (lambda ctx: ctx.wait_for("go"), "waiting_for_signal", "the signal go"),
        "listens_for_a_while": (lambda ctx: ctx.wait_for("go", timeout=HOUR), "waiting_for_signal", "the signal go until 2"),
        "asks": (lambda ctx: ctx.approval("May I?"), "waiting_for_approval", "a person: approval "),
        "renders": (lambda ctx: ctx.external("render", {}), "waiting_for_external_job", "external job of render"),
        "calls": (lambda ctx: ctx.call("nobody.Has", {}), "waiting_for_worker", "nobody.Has: waiting for a worker"),
        "retries": (lambda ctx: ctx.step(broken, retry=LATER), "retrying", "retrying broken at 2"),
        "works": (lambda ctx: ctx.step(work), "running", "running works@1"),
        "gathers": (
            lambda ctx: ctx.gather(ctx.sleep(HOUR), ctx.wait_for("stop"), ctx.wait_for("go")),
            "waiting_for_signal",
            "(also 1 sleeping)",
        ),
    }

    def function(name: str, wait: Any) -> None:
        @engine.function(name)
        async def run(payload: Any, ctx: Any) -> None:
            await wait(ctx)

    for name, (wait, _, _) in waits.items():
        function(name, wait)

    @engine.function("starts")
    async def starts(payload: Any, ctx: Any) -> None:
        child = await ctx.start("sleeps", {})
        await child.result()

    return {name: (activity, text) for name, (_, activity, text) in waits.items()} | {
        "starts": ("waiting_for_child", "waiting for the run ")
    }


@pytest.mark.postgres
async def test_every_kind_of_wait_is_shown_filtered_and_counted(engine: Engine) -> None:
    working = asyncio.Event()
    expected = define(engine, working)
    service = Operations(engine, OPEN)
    async with engine.worker():
        ids = {name: (await engine.start_function(name)).id for name in expected}

        async def settled() -> bool:
            runs = (await service.runs.list()).runs
            activity = [run.activity.kind == expected[run.workflow][0] for run in runs if run.activity]
            return len(activity) == len(ids) + 1 and all(activity)  # one of them has started another

        await until(settled)
        await working.wait()
        runs = {run.id: run for run in (await service.runs.list()).runs}
        counts = (await service.runs.counts()).activities
        for name, (activity, text) in expected.items():
            shown = runs[ids[name]].activity
            assert shown is not None
            assert text in shown.text, name
            assert (await service.runs.get(ids[name])).activity == shown
            found = {run.id for run in (await service.runs.list(activity=activity)).runs}
            assert found == {run.id for run in runs.values() if run.activity and run.activity.kind == activity}
            assert (counts[activity], ids[name] in found) == (len(found), True)
            why = await service.system.why(ids[name])
            assert (shown.until is None) == (" until 2" not in shown.text and " at 2" not in shown.text)
            if shown.until is not None:
                assert shown.until.strftime("%Y-%m-%dT%H:%M") in why.text
            if shown.id is not None and activity in ("waiting_for_approval", "waiting_for_child"):
                assert shown.id in why.text
        assert sum(counts.values()) == len(runs)
        gathered = runs[ids["gathers"]].activity
        assert gathered is not None
        assert gathered.counts == {"waiting_for_signal": 2, "sleeping": 1}
        await engine.runs.pause(ids["sleeps"])
        paused = (await service.runs.get(ids["sleeps"])).activity
        assert paused is not None
        assert (paused.kind, paused.text) == ("blocked", "paused")
        assert [run.id for run in (await service.runs.list(activity="blocked")).runs] == [ids["sleeps"]]
        with pytest.raises(InvalidInput, match="Unknown activity 'napping'"):
            await service.runs.list(activity="napping")
        await engine.runs.cancel(ids["works"], force=True)
        assert (await service.runs.get(ids["works"])).activity is None


async def test_a_wait_without_a_time_is_not_shown_as_due() -> None:
    async with function_scene() as scene:

        @scene.engine.function("listens")
        async def listens(payload: Any, ctx: Any) -> None:
            await ctx.wait_for("go", timeout=payload.get("timeout"))

        service = Operations(scene.engine, OPEN)
        process = scene.process()
        for timeout, due in ((None, False), (HOUR, True), (3 * 24 * HOUR, True)):
            run = await scene.engine.start_function("listens", {"timeout": timeout})
            await process.quiet()
            assert await requeued(scene.engine, run.id)
            (task,) = (await service.runs.tasks(run.id)).tasks
            at = task.wake_at
            assert (at is not None) is due
            assert at is None or at.ms == scene.clock.now() + HOUR * 1000 * (timeout or 0) // HOUR
            assert ("next check" in (await service.tasks.get(task.id)).why.text) is due
