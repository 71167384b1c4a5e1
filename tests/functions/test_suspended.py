"""Many suspended functions: nothing of them is in memory but a bounded cache, and all of them wake on time after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.engines import make_engine, url_of
from tests.functions.driver import Process, Scene
from tests.limits import BOUND

from treadle import Engine
from treadle.kernel.store.queries import RunFilter
from treadle.settings import Settings
from treadle.testing import ManualClock

SLEEP = 3600


async def nothing() -> None:
    return None


def open_engine(url: str, clock: ManualClock) -> Engine:
    engine = Engine(url, settings=Settings(), clock=clock)

    @engine.function("sleeper")
    async def sleeper(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.step(nothing)
        await ctx.sleep(SLEEP + payload["n"] % 2)
        return payload["n"]

    return engine


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_suspended_functions_are_rows_and_wake_on_time_after_a_restart(tmp_path: Path, count: int):
    url, clock = f"sqlite:///{tmp_path / 'treadle.db'}", ManualClock()
    async with open_engine(url, clock) as engine:
        ids = [(await engine.start_function("sleeper", {"n": n})).id for n in range(count)]
        process = Process(engine, warm=50)
        await process.quiet()
        assert process.runner.warm == 50
        assert clock.sleeping == 0  # no timer in memory
        begun = clock.now()
        process.die()
        await asyncio.sleep(0)
    clock.advance(SLEEP - 0.001)
    async with open_engine(url, clock) as engine:
        scene = Scene(engine, clock)
        process = scene.process(warm=50)
        assert await process.turn() == 0  # not a millisecond early
        clock.advance(0.001)
        await process.quiet()
        assert (await engine.kernel.store.runs.count(RunFilter(namespace="default")))["completed"] == (count + 1) // 2
        clock.advance(1)
        await process.quiet()
        assert await engine.kernel.store.runs.count(RunFilter(namespace="default")) == {"completed": count}
        assert clock.now() == begun + (SLEEP + 1) * 1000
        assert await engine.run_result(ids[-1]) == count - 1
        scene.close()


@pytest.mark.parametrize("kind", ["postgres"])
async def test_a_restart_on_postgresql_continues_too(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    url = url_of(kind, request, tmp_path)
    for _ in range(2):
        async with make_engine(url) as engine:

            @engine.function("naps")
            async def naps(payload: dict[str, Any], ctx: Any) -> Any:
                await ctx.sleep(0.2)
                return payload["n"]

            started = [await engine.start_function("naps", {"n": n}, idempotency_key=f"k{n}") for n in range(20)]
            async with engine.worker():
                await asyncio.sleep(0)
    async with make_engine(url) as engine:
        engine.function("naps")(naps)
        async with engine.worker():
            assert [await engine.run_result(each, timeout=BOUND) for each in started] == list(range(20))
