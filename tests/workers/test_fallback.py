"""The handler of names that no live worker serves: `@engine.handler("*")`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, make_engine, url_of
from tests.errors import raises_code
from tests.limits import BOUND

from treadle import Engine

Engines = tuple[Engine, Engine]


@pytest.fixture(params=SHARED)
async def engines(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engines]:
    """An engine with a fallback, and another one with a handler."""
    url = url_of(request.param, request, tmp_path)
    async with make_engine(url) as one, make_engine(url) as other:

        @one.handler("own")
        async def own(payload: dict[str, Any]) -> dict[str, Any]:
            return {"by": "own"}

        @one.handler("*")
        async def fallback(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
            return {"by": "fallback", "name": ctx.task_name}

        @other.handler("known")
        async def known(payload: dict[str, Any]) -> dict[str, Any]:
            return {"by": "known"}

        yield one, other


async def result_of(engine: Engine, name: str) -> Any:
    return await engine.result(await engine.enqueue(name), timeout=BOUND)


async def test_a_name_that_nobody_serves_reaches_the_fallback(engines: Engines):
    one, _ = engines
    waiting = await one.enqueue("early")
    async with one.worker():
        assert await one.result(waiting, timeout=BOUND) == {"by": "fallback", "name": "early"}
        assert await result_of(one, "billing.Unknown") == {"by": "fallback", "name": "billing.Unknown"}
        assert await result_of(one, "own") == {"by": "own"}


async def test_a_name_that_another_live_worker_serves_does_not_reach_it(engines: Engines):
    one, other = engines
    async with other.worker(), one.worker():
        for _ in range(5):
            assert await result_of(one, "known") == {"by": "known"}
        assert await result_of(other, "unknown") == {"by": "fallback", "name": "unknown"}
    async with one.worker():
        assert await result_of(one, "known") == {"by": "fallback", "name": "known"}


async def test_a_worker_without_a_fallback_leaves_unknown_names_alone(engines: Engines):
    _, other = engines
    async with other.worker() as host:
        task = await other.enqueue("unknown")
        await host.worker.drained()
        assert (await other.kernel.reads.get_task(task)).state == "pending"


async def test_there_is_one_fallback(engines: Engines):
    with raises_code("handler_exists"):
        engines[0].handler("*")(result_of)
