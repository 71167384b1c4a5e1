"""The work of `bench.against`, in a process of either revision: uses only names that all revisions have."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from typing import Any

from treadle import Engine, TaskSpec

STEPS = 10


def make_engine(left: list[int], done: asyncio.Event) -> Engine:
    """An engine with a task that counts down, and a function of ten steps."""
    engine = Engine(os.environ["TREADLE_STORE"])

    async def nothing() -> None:
        return None

    @engine.handler("count")
    async def count(payload: dict[str, Any]) -> dict[str, Any]:
        left[0] -= 1
        if not left[0]:
            done.set()
        return payload

    @engine.function("ten")
    async def ten(payload: dict[str, Any], ctx: Any) -> None:
        for _ in range(STEPS):
            await ctx.step(nothing)

    return engine


async def main(size: int) -> None:
    left, done = [0], asyncio.Event()
    async with make_engine(left, done) as engine:
        while await asyncio.to_thread(sys.stdin.readline):
            gc.collect()
            left[0] = size
            done.clear()
            enqueued = Took(size)
            await engine.enqueue_many([TaskSpec(name="count", payload={"n": n}) for n in range(size)])
            figures = {"enqueue_cpu_us": enqueued.cpu_us}
            drained = Took(size)
            async with engine.worker(concurrency=500):
                await done.wait()
                figures |= {"drain_cpu_us": drained.cpu_us, "drain_wall_us": drained.wall_us}
                stepped = Took(size)
                runs = await asyncio.gather(*(engine.start_function("ten") for _ in range(size // STEPS)))
                await asyncio.gather(*(engine.run_result(run, timeout=600) for run in runs))
                figures |= {"step_cpu_us": stepped.cpu_us, "step_wall_us": stepped.wall_us}
            print(json.dumps(figures), flush=True)


class Took:
    """The CPU and wall time of this process since it was made, in microseconds for each of `count` things."""

    def __init__(self, count: int) -> None:
        self._count, self._cpu, self._wall = count, time.process_time(), time.perf_counter()

    @property
    def cpu_us(self) -> float:
        return (time.process_time() - self._cpu) / self._count * 1e6

    @property
    def wall_us(self) -> float:
        return (time.perf_counter() - self._wall) / self._count * 1e6


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
