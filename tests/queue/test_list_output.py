"""Lists for people: tags of tasks and runs, rates of functions, and the same words for a rate everywhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.commands import Treadle
from tests.engines import SHARED, make_engine, url_of
from tests.functions.driver import requeued, until

from treadle import Engine, FunctionContext
from treadle.interfaces.web import filters


@pytest.mark.postgres
@pytest.mark.parametrize("kind", SHARED)
async def test_the_rates_of_functions_count_whole_runs(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async with make_engine(url_of(kind, request, tmp_path)) as engine:

        @engine.function
        async def naps(ctx: FunctionContext) -> int:
            began = ctx.now()
            await ctx.sleep(0.05)
            return int((ctx.now() - began).total_seconds() * 1000)

        @engine.function
        async def waits(ctx: FunctionContext) -> None:
            await ctx.wait_for("never")

        async with engine.worker():
            slept = await (await engine.start(naps)).result()
            run = await engine.start(waits)
            await until(lambda: requeued(engine, run.id))
            rates = {each.name: each for each in (await engine.kernel.throughput.rates()).rates}
    assert (rates["naps@1"].finished, rates["naps@1"].running) == (1, 0)
    assert (rates["naps@1"].median_for or 0) >= slept, "with the time that it slept"
    assert (rates["waits@1"].started, rates["waits@1"].finished, rates["waits@1"].running) == (1, 0, 1)


async def _tagged(url: str) -> None:
    async with Engine(url) as engine:
        await engine.enqueue("ship", tags={"customer": "acme"})


def test_lists_show_tags_only_where_there_are_some(tmp_path: Path) -> None:
    import asyncio

    treadle = Treadle(tmp_path)
    treadle("enqueue", "plain")
    assert "tags" not in treadle("tasks", "list").out
    asyncio.run(_tagged(f"sqlite:///{tmp_path}/treadle.db"))
    assert "customer=acme" in treadle("tasks", "list", COLUMNS="200").out


def test_a_rate_is_shown_in_the_same_words() -> None:
    queue = SimpleNamespace(rate=0.5, burst=3)
    assert filters.rate(queue) == "30 per minute, bursts of 3"
