"""PostgreSQL stops and starts again under load: workers wait and recover, nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.private_server import PrivateServer, private_server
from tests.crash.scene import Scene, until

from treadle.model.errors import StoreError
from treadle.model.names import UPKEEP


@pytest.fixture
def server() -> Iterator[PrivateServer]:
    with private_server() as made:
        yield made


async def test_workers_survive_a_database_outage_without_losing_work(server: PrivateServer, tmp_path: Path) -> None:
    scene = Scene(server.url, tmp_path)
    accepted: list[str] = []
    refused = 0
    enough = asyncio.Event()

    async def keep_enqueueing() -> None:
        nonlocal refused
        while not enough.is_set():
            try:
                accepted.append((await scene.engine.enqueue("work")).id)
            except StoreError:
                refused += 1
            await asyncio.sleep(0.002)

    try:
        async with scene.engine:
            workers = [await scene.start_worker("--lease", 3, "--concurrency", 20) for _ in range(2)]
            producers = [asyncio.ensure_future(keep_enqueueing()) for _ in range(4)]
            for outage, mode in enumerate(("fast", "immediate"), start=1):
                before = len(scene.effects())
                await until(lambda before=before: len(scene.effects()) > before + 100, *workers)
                await asyncio.to_thread(server.stop, mode)
                for worker in workers:
                    await worker.told("StoreTrouble", outage)
                await asyncio.to_thread(server.start)
            before = len(scene.effects())
            await until(lambda: len(scene.effects()) > before + 100, *workers)
            enough.set()
            await asyncio.gather(*producers)
            await until(scene.nothing_is_left, *workers)
            everything = await scene.finished(accepted)
            report = await scene.engine.kernel.verify()
    finally:
        enough.set()
        scene.destroy()
    assert [worker.exit_code for worker in workers] == [-9, -9]  # still at work when the test ended them
    assert report.problems == ()
    # A caller who was refused does not know whether its task is there; those who were answered do.
    # The others are the engine's own, which prune and roll up metrics.
    assert len(accepted) <= report.checked - len(UPKEEP) <= len(accepted) + refused
    assert {task.state for task in everything} == {"completed"}
    effects = Counter(task_id for _, task_id, _, _ in scene.effects())
    assert set(accepted) <= set(effects)
