"""An open engine that the directory placed follows its namespace to another store; one with a URL does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.interfaces.test_namespace_moves import PAIRS, Scene, make_scene
from tests.limits import BOUND

from treadle import Engine
from treadle.kernel.queue.service import TaskSpec
from treadle.model.errors import NamespaceMoved, TaskNotFound
from treadle.settings import Settings, read_directory
from treadle.stores.postgres.connection.address import parse_address


@pytest.fixture(params=PAIRS, ids=lambda pair: " to ".join(pair))
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return await make_scene(request, tmp_path, *request.param)


def placed(scene: Scene) -> Engine:
    """An engine without a URL, with the settings of a process with a directory."""
    store = read_directory(scene.path).namespaces["red"]
    return Engine(settings=Settings(store=store, namespace="red", directory=str(scene.path)))


async def test_a_refused_call_is_repeated_once_on_the_new_store(scene: Scene):
    async with placed(scene) as engine:
        before = await engine.enqueue("work", {"text": "a"}, delay=3600)
        await scene.mover().move(scene.target)
        many = await asyncio.gather(*(engine.enqueue("work", {"n": number}) for number in range(5)))
        assert all(each.created for each in many)
        assert engine.kernel.settings.store == scene.target
        assert len(await engine.enqueue_many(TaskSpec(name="work") for _ in range(3))) == 3
        await engine.cancel(before.id)
        handle = await engine.start("ask", {})
        assert await engine.signal(handle.id, "go", 1)
    assert not engine.kernel.is_open
    async with scene.engine() as there:
        tasks = await there.kernel.reads.list_tasks(states=("pending",))
        assert {each.id for each in many} <= {task.id for task in tasks}


async def test_calls_in_a_transaction_of_the_caller_do_not_follow(request: pytest.FixtureRequest, tmp_path: Path):
    scene = await make_scene(request, tmp_path, "postgres", "sqlite")
    address = parse_address(scene.source)
    connection = await asyncpg.connect(address.dsn)
    async with placed(scene) as engine:
        await scene.mover().move(scene.target)
        transaction = connection.transaction()
        await transaction.start()
        with pytest.raises(NamespaceMoved):
            await engine.within(connection).enqueue("work")
        await transaction.rollback()
        assert engine.kernel.settings.store == scene.source
    await connection.close()


async def test_a_read_of_work_that_is_not_there_any_more_follows(scene: Scene):
    async with placed(scene) as engine:
        task = await engine.enqueue("work", {"text": "a"})
        await scene.mover().move(scene.target)
        assert (await engine.get_task(task.id)).id == task.id
        with pytest.raises(TaskNotFound):
            await engine.get_task("0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77")


async def test_a_caller_that_waits_for_a_result_waits_on_the_new_store(scene: Scene):
    async with placed(scene) as engine:
        task = await engine.enqueue("work", {"text": "abc"})
        waiting = asyncio.create_task(engine.result(task.id, timeout=BOUND))
        await asyncio.sleep(0)
        await scene.mover().move(scene.target)
        await engine.enqueue("work", delay=3600)
        async with scene.engine() as there, there.worker():
            assert await waiting == {"size": 3}


async def test_a_canceled_caller_stays_canceled(scene: Scene):
    async with placed(scene) as engine:
        task = await engine.enqueue("work", delay=3600)
        waiting = asyncio.create_task(engine.result(task.id))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_engines_with_a_url_or_a_worker_do_not_follow(scene: Scene):
    async def refused(engine: Any) -> None:
        with pytest.raises(NamespaceMoved, match="nothing was written"):
            await engine.enqueue("work")

    async with scene.engine() as own, placed(scene) as working, working.worker():
        await scene.mover().move(scene.target)
        await refused(own)
        await refused(working)
    async with placed(scene) as engine:
        assert (await engine.enqueue("work")).created


async def test_a_store_that_cannot_be_opened_leaves_the_engine_as_it_was(scene: Scene, tmp_path: Path):
    async with placed(scene) as engine:
        await scene.mover().move(scene.target)
        text = scene.path.read_text()
        scene.path.write_text('[namespaces]\nred = "sqlite:////nowhere/at/all.db"\n')
        with pytest.raises(Exception, match="nowhere"):
            await engine.enqueue("work")
        scene.path.write_text(text)
        assert (await engine.enqueue("work")).created
