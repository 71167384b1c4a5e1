"""A worker that is killed while it rolls up metrics: another one goes on, and every task counts once."""

from __future__ import annotations

import signal

import pytest
from msgspec.structs import replace
from tests.crash.scene import Scene, until

from treadle.kernel.store.metrics import HOUR, MINUTE, MetricFilter
from treadle.kernel.store.units import Unit

TASKS = 7


@pytest.mark.postgres
@pytest.mark.parametrize("point", ["metrics.before_commit", "metrics.after_commit"])
async def test_a_killed_roll_up_neither_loses_nor_repeats_a_task(scene: Scene, point: str) -> None:
    kernel = scene.engine.kernel
    first = await scene.start_worker()
    tasks = [await scene.engine.enqueue("note", {"tick": "x"}) for _ in range(TASKS)]
    await scene.finished([task.id for task in tasks])
    first.send(signal.SIGKILL)
    await scene.died(first)

    await kernel.committer.submit(Unit(tasks=(replace(kernel.metrics.task(kernel.ids.new_id()), unique_key=None, delay=0),)))
    doomed = scene.start("worker", "--crash-at", f"{point}:1")
    await scene.died(doomed)
    other = await scene.start_worker()

    async def is_counted() -> bool:
        depths = await kernel.store.tasks.list_depths()
        return not any(depth.queue.kind == "engine.metrics" and depth.running + depth.ready for depth in depths)

    await until(is_counted, other)
    now = await kernel.store.now()
    points, counted_at = await kernel.metrics.read(MetricFilter("default", now - HOUR, now + MINUTE, MINUTE, HOUR, "handler"))
    assert sum(counts.completed for (_, name), counts in points.items() if name == "note") == TASKS
    assert counted_at >= now
    assert (await kernel.verify()).problems == ()
