"""A reader over SSE follows a stream across its own lost connections and across a worker that is killed while it writes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import product
from typing import Any

import httpx
import pytest
from tests.crash.scene import Scene, until
from tests.limits import BOUND
from tests.sizes import sampled

from treadle import Context, Engine
from treadle.interfaces.http.server import HttpOptions, HttpServer
from treadle.settings import Settings

COUNT = 3
WRITES = 2 * COUNT
"""Commits that the reader makes at least: it reads, and does something, once for each entry."""


async def follow(http: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    """All messages until the end; the connection is dropped after every second one, and resumed."""
    found: list[dict[str, Any]] = []
    while True:
        headers = {"Last-Event-ID": str(found[-1]["offset"])} if found else {}
        before = len(found)
        async with http.stream("GET", path, headers=headers) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line == "event: end":
                    return found
                if line.startswith("data: "):
                    found.append(json.loads(line.removeprefix("data: ")))
                    if len(found) == before + 2:
                        break


@pytest.mark.postgres
@pytest.mark.parametrize(
    "point", sampled(["stream.before_commit:2", "stream.after_commit:2", "handler.after", "settle.before_commit"])
)
async def test_a_reader_sees_every_entry_of_the_final_attempt_once_and_a_notice(scene: Scene, point: str) -> None:
    options = HttpOptions(port=0, open_access=True)
    async with HttpServer(scene.engine, options) as server, httpx.AsyncClient(base_url=server.url, timeout=BOUND) as http:
        task = await scene.engine.enqueue("speak", {"count": COUNT})
        reading = asyncio.create_task(follow(http, f"/v1/runs/{task.id}/streams/tokens/follow"))
        await scene.died(scene.start("worker", "--crash-at", point))
        await scene.start_worker()
        messages = await asyncio.wait_for(reading, BOUND)
    assert [each["offset"] for each in messages] == list(range(len(messages)))
    (notice,) = [each for each in messages if each["kind"] != "entry"]
    assert (notice["kind"], notice["generation"], notice["value"]) == ("abandoned", 2, {"generation": 1, "since": 0})
    abandoned, final = messages[: notice["offset"]], messages[notice["offset"] + 1 :]
    assert [each["value"] for each in final] == [*([2, number] for number in range(COUNT)), [2, "end"]]
    acknowledged = [what for what, _, attempt, _ in scene.effects() if attempt == 1]
    assert [f"stored-{each['value'][1]}" for each in abandoned][: len(acknowledged)] == acknowledged
    assert {each["generation"] for each in abandoned} <= {1}
    await scene.check(1)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("point", "number"), sampled([*product(["function.before_commit", "function.after_commit"], range(1, WRITES + 1))])
)
async def test_a_function_reads_every_entry_once_after_a_kill_at_any_write(scene: Scene, point: str, number: int) -> None:
    engine = Engine(scene.url, settings=Settings())

    @engine.handler("utter")
    async def utter(payload: dict[str, Any], ctx: Context) -> None:
        """Write an entry when the one before it was heard, so that the reader waits for each."""
        for number in range(COUNT):
            ctx.stream("tokens").write(number)
            await ctx.stream("tokens").flush()
            await until(lambda heard=f"heard{number}": bool(scene.effects(heard)))

    async with engine, engine.worker():
        run = await scene.engine.start("listen", {"task": (await engine.enqueue("utter")).id}, version=1)
        await scene.died(scene.start("worker", "--crash-at", f"{point}:{number}"))
        await scene.start_worker()
        assert await scene.engine.result(run, timeout=BOUND) == [f"heard{number}" for number in range(COUNT)]
    counts = Counter(what for what, *_ in scene.effects())
    assert counts.total() <= COUNT + 1
