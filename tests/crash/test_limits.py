"""Limits across processes: never more live holders than a limit allows, none starves, a crashed one's place comes back."""

from __future__ import annotations

import asyncio
import signal

import pytest
from tests.crash.scene import Child, Scene, until
from tests.limits import BOUND

from treadle import TaskSpec

LIMIT = 3
PROCESSES, WORKERS = 4, 2


async def fill(scene: Scene, count: int, seconds: float) -> list[str]:
    spec = TaskSpec(name="hold", payload={"seconds": seconds}, limit_key="customer:42", limit=LIMIT)
    return [task.id for task in await scene.engine.enqueue_many([spec] * count)]


def most_at_once(scene: Scene) -> int:
    """The most tasks that were begun and not ended at one time; one whose worker died goes on being held."""
    live: set[str] = set()
    most = 0
    for what, task_id, _, _ in scene.effects():
        if what == "begin":
            live.add(task_id)
        else:
            live.discard(task_id)
        most = max(most, len(live))
    return most


async def start(scene: Scene) -> list[Child]:
    """Eight claimers in four processes."""
    children = [scene.start("worker", "--workers", WORKERS, "--concurrency", 4) for _ in range(PROCESSES)]
    await asyncio.gather(*[child.told("ready", WORKERS) for child in children])
    return children


@pytest.mark.postgres
@pytest.mark.parametrize(
    "count", [400, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])], ids=["small", "soak"]
)
async def test_eight_claimers_in_four_processes_never_hold_more_than_the_limit(scene: Scene, count: int) -> None:
    task_ids = await fill(scene, count, 0.001)
    children = await start(scene)
    await until(scene.nothing_is_left, *children, bound=BOUND + count / 10)
    assert most_at_once(scene) == LIMIT
    ended = [task_id for what, task_id, _, _ in scene.effects() if what == "end"]
    assert sorted(ended) == sorted(task_ids)
    await scene.check(count)


async def test_the_slot_of_a_crashed_holder_is_freed_with_its_lease(scene: Scene) -> None:
    task_ids = await fill(scene, 30, 0.0)
    slow = await scene.engine.enqueue("hold", {"seconds": 3600}, limit_key="customer:42", priority=-1, unique_key="slow")
    doomed = await scene.start_worker()
    await until(lambda: any(task_id == slow.id for _, task_id, _, _ in scene.effects("begin")), doomed)
    doomed.send(signal.SIGKILL)
    await scene.died(doomed)
    children = await start(scene)
    await scene.finished(task_ids)
    await until(lambda: [task_id for _, task_id, _, _ in scene.effects("begin")].count(slow.id) == 2, *children)
    assert most_at_once(scene) <= LIMIT
    assert await scene.transitions(slow.id) == ["expire"]
    assert await scene.engine.kernel.store.operators.list_admitted("default", "customer:42", 10) == [slow.id]
    await scene.engine.cancel(slow)
    await scene.check(31)
