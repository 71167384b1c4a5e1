"""A wait sends progress notifications; canceling it ends the wait and not the run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from mcp import Client
from tests.limits import BOUND
from tests.mcp.test_tools import SHOP
from tests.mcp.transports import in_request_context, over_http, serving, shop_engine, told

from treadle import Engine


class Heard:
    """The notifications of one call."""

    def __init__(self) -> None:
        self.first = anyio.Event()
        self.all: list[tuple[float, float | None, str | None]] = []

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.all.append((progress, total, message))
        self.first.set()


async def start(client: Client) -> str:
    run = told(await client.call_tool("afl_execute_workflow", {"source": SHOP, "inputs": {"count": 1}, "wait_for": 0}))
    return str(run["run_id"])


@asynccontextmanager
async def client_of(engine: Engine, way: str) -> AsyncIterator[Client]:
    if way == "here":
        async with in_request_context(engine) as client:
            yield client
        return
    async with serving(engine) as server, over_http(server.url, mode=way) as client:
        yield client


@pytest.mark.parametrize("way", ["here", "auto", "legacy"])
async def test_a_canceled_wait_leaves_the_run_as_it_is(way: str) -> None:
    engine = shop_engine()
    async with engine, client_of(engine, way) as client:
        run_id, heard = await start(client), Heard()
        with anyio.fail_after(BOUND):
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    await client.call_tool("run_outputs", {"run_id": run_id, "wait_for": 50}, progress_callback=heard)

                group.start_soon(wait)
                await heard.first.wait()
                group.cancel_scope.cancel()
        assert heard.all[0] == (0.0, 50.0, "shop.Buy: shop.Price: waiting for a worker")
        assert (await engine.kernel.runs.get_run(run_id)).state == "running"
        async with engine.worker():
            ended = told(await client.call_tool("run_outputs", {"run_id": run_id, "wait_for": 30}))
        assert ended["outputs"] == {"total": 10.0}
