"""How many workers a list could use, from what each store tells: depth, age, service time, rules and servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.dispatch.scenes import Scene
from tests.engines import ALL

from treadle import Engine, TaskSpec
from treadle.kernel.store.units import Finish, Unit
from treadle.model.errors import InvalidInput, InvalidName, InvalidPolicy
from treadle.model.tasks import Server


@pytest.fixture(params=ALL)
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(request.param, request, tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def engine(scene: Scene) -> Engine:
    return await scene.open_engine()


async def do(scene: Scene, engine: Engine, name: str, seconds: float, **options: Any) -> None:
    """One task of that name, which takes so long."""
    await engine.enqueue(name, priority=-10, **options)
    queues = [queue_id for queue_id, queue in (await engine.kernel.store.tasks.list_queues()).items() if queue.name == name]
    (task,) = await engine.kernel.store.tasks.claim(queues, "somebody", 600_000, 1)
    scene.advance(seconds)
    await engine.kernel.store.commit([Unit(task.claim, Finish("succeed", "completed", result="{}"))])


def server(server_id: str, handlers: list[str], concurrency: int) -> Server:
    return Server(
        id=server_id,
        name=server_id,
        host="h",
        pid=1,
        version="1",
        state="running",
        handlers=handlers,
        task_lists=["default"],
        concurrency=concurrency,
    )


@pytest.mark.postgres
async def test_an_empty_queue_needs_no_workers(engine):
    found = await engine.kernel.reads.desired_workers()
    assert (found.desired, found.workers, found.concurrency, found.ready) == (0, 0, 1, 0)
    assert (await engine.kernel.reads.desired_workers("never-seen", minimum=1)).desired == 1


async def test_queues_of_a_list_are_weighed_by_how_long_their_tasks_take(scene, engine):
    await do(scene, engine, "quick", 1)
    await do(scene, engine, "slow", 20)
    await engine.enqueue_many([TaskSpec(name="quick") for _ in range(30)] + [TaskSpec(name="slow") for _ in range(3)])
    found = await engine.kernel.reads.desired_workers()
    assert (found.desired, found.ready, found.service_for) == (1 + 2, 33, (30 * 1_000 + 3 * 20_000) / 33)
    assert (await engine.kernel.reads.desired_workers(name="slow")).desired == 2
    assert (await engine.kernel.reads.desired_workers(name="slow", target_latency=60)).desired == 1
    scene.advance(29)
    assert (await engine.kernel.reads.desired_workers(name="slow")).desired == 3  # late: one each
    assert (await engine.kernel.reads.desired_workers(name="slow", maximum=2)).desired == 2


async def test_a_discarded_dead_letter_is_not_a_service_time(scene, engine):
    await do(scene, engine, "quick", 1)
    await engine.enqueue("quick")
    queues = [queue_id for queue_id, queue in (await engine.kernel.store.tasks.list_queues()).items() if queue.name == "quick"]
    (task,) = await engine.kernel.store.tasks.claim(queues, "somebody", 600_000, 1)
    scene.advance(1)
    await engine.kernel.store.commit([Unit(task.claim, Finish("fail", "failed", error="{}", error_code="x"))])
    scene.advance(262)
    assert (await engine.kernel.dead_letters.discard(everything=True)).done == 1
    await engine.enqueue("quick")
    assert (await engine.kernel.reads.desired_workers()).service_for == 1000


async def test_no_workers_are_requested_for_delayed_limited_or_paused_tasks(scene, engine):
    await do(scene, engine, "work", 10)
    await do(scene, engine, "limited", 10, limit_key="k", limit=2)
    await engine.enqueue_many([TaskSpec(name="work", delay=60) for _ in range(9)])
    assert (await engine.kernel.reads.desired_workers(name="work")).desired == 0  # asleep
    await engine.enqueue_many([TaskSpec(name="limited", limit_key="k") for _ in range(9)])
    scene.advance(25)
    assert (await engine.kernel.reads.desired_workers(name="limited")).ready == 2  # the rest is held back by the limit
    await engine.kernel.lists.limit_rate("default", "limited", 0.1)
    assert (await engine.kernel.reads.desired_workers(name="limited")).desired == 1  # one starts in ten seconds, and takes ten
    await engine.kernel.lists.pause("default")
    assert (await engine.kernel.reads.desired_workers()).ready == 0


async def test_the_slots_per_worker_are_those_of_live_servers(scene, engine):
    await do(scene, engine, "work", 30)
    await engine.enqueue_many([TaskSpec(name="work") for _ in range(10)])
    await engine.kernel.store.servers.save(server("a", ["work"], 4))
    await engine.kernel.store.servers.save(server("b", ["work"], 6))
    await engine.kernel.store.servers.save(server("c", ["something.else"], 100))
    found = await engine.kernel.reads.desired_workers()
    assert (found.workers, found.concurrency, found.desired) == (2, 5, 2)
    assert (await engine.kernel.reads.desired_workers(concurrency=2)).desired == 5
    scene.advance(31)  # three beats missed: they are lost
    assert (await engine.kernel.reads.desired_workers()).workers == 0


async def test_bad_input_is_refused(engine):
    for bad in ({"target_latency": 0}, {"concurrency": 0}):
        with pytest.raises(InvalidPolicy):
            await engine.kernel.reads.desired_workers(**bad)
    with pytest.raises(InvalidInput):
        await engine.kernel.reads.desired_workers(minimum=3, maximum=2)
    with pytest.raises(InvalidName):
        await engine.kernel.reads.desired_workers("no list")
