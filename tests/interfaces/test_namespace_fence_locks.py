"""The fence of a moved namespace among the changes of others on PostgreSQL: it waits for them, and gives up without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.interfaces.test_namespace_moves import Scene, make_scene, verify
from tests.limits import BOUND

from treadle.engine.wiring import namespace_move
from treadle.engine.wiring.namespace_move import NamespaceMove
from treadle.kernel.store.system import SystemClock
from treadle.model.errors import NamespaceMoved, Refused, StoreBusy
from treadle.settings import read_directory
from treadle.stores.postgres.connection.address import parse_address

FENCES = """
select (select count(*) from moved_namespaces)
  + (select count(*) from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
     where t.tgname like 'moved%' and c.relnamespace = current_schema()::regnamespace)
"""
WAITING = """
select exists (
  select from pg_locks as l join pg_class as c on c.oid = l.relation
  where not l.granted and c.relnamespace = current_schema()::regnamespace
)
"""


@pytest.fixture
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return await make_scene(request, tmp_path, "postgres", "sqlite")


@pytest.fixture
async def connections(scene: Scene) -> AsyncIterator[list[Any]]:
    """Two connections of others to the source."""
    address = parse_address(scene.source)
    made = [await asyncpg.connect(address.dsn, server_settings={"search_path": address.schema}) for _ in range(2)]
    yield made
    for each in made:
        await each.close()


async def test_a_fence_that_meets_a_long_change_is_refused_and_leaves_nothing(scene: Scene, connections: list[Any]):
    writer, observer = connections
    async with scene.engine("blue") as engine:
        async with writer.transaction():
            await writer.execute("update lanes set tokens_at = tokens_at")
            with pytest.raises(StoreBusy, match="nothing was written"):
                await engine.kernel.store.fence_namespace("red", scene.target)
            assert await observer.fetchval(FENCES) == 0
        await engine.kernel.store.fence_namespace("red", scene.target)
        assert await observer.fetchval(FENCES) > 0
        async with writer.transaction():
            await writer.execute("update lanes set tokens_at = tokens_at")
            with pytest.raises(StoreBusy, match="nothing was written"):
                await engine.kernel.store.unfence_namespace("red")
        await engine.kernel.store.unfence_namespace("red")
        assert await observer.fetchval(FENCES) == 0


async def test_no_trigger_is_disabled_because_it_would_lock_rows_all_the_same(scene: Scene, connections: list[Any]):
    disabled = (
        "select count(*) from pg_trigger as t join pg_class as c on c.oid = t.tgrelid "
        "where t.tgenabled = 'D' and c.relnamespace = current_schema()::regnamespace"
    )
    _, observer = connections
    async with scene.engine("blue") as engine:
        assert await observer.fetchval(disabled) == 0
        await engine.kernel.store.fence_namespace("red", scene.target)
        assert await observer.fetchval(disabled) == 0
        await engine.kernel.store.unfence_namespace("red")
        assert await observer.fetchval(disabled) == 0


async def test_a_writer_never_fails_because_it_and_the_fence_wait_for_each_other(scene: Scene, connections: list[Any]):
    writer, observer = connections
    async with scene.engine("blue") as engine, writer.transaction():
        await writer.execute("update lists set paused = paused")
        fence = asyncio.create_task(engine.kernel.store.fence_namespace("red", scene.target))
        while not (fence.done() or await observer.fetchval(WAITING)):
            pass
        await writer.execute("update runs set version = version", timeout=BOUND)
        with pytest.raises(StoreBusy):
            await fence


class Holding:
    """A change of another namespace that is in progress when the copy has been verified, and ends when the move waits for it."""

    def __init__(self, scene: Scene, writer: Any, *, ends: bool = True) -> None:
        self.transaction, self.writer, self.ends = writer.transaction(), writer, ends
        self.lines: list[str] = []
        self.ending: list[asyncio.Task[None]] = []
        self.mover = NamespaceMove(scene.path, "red", SystemClock(), verify=self.verify, progress=self.note)

    async def verify(self, url: str, namespace: str) -> list[str]:
        await self.transaction.start()
        await self.writer.execute("update lanes set backlog_limit = 777 where namespace = 'blue'")
        return await verify(url, namespace)

    def note(self, line: str) -> None:
        if line == "waiting for changes by others" and line not in self.lines and self.ends:
            self.ending.append(asyncio.create_task(self.transaction.commit()))
        self.lines.append(line)


async def test_a_move_waits_for_changes_of_other_namespaces(scene: Scene, connections: list[Any]):
    before = await scene.digest(scene.source)
    holding = Holding(scene, connections[0])
    await holding.mover.move(scene.target)
    assert len(holding.ending) == 1
    assert (await scene.digest(scene.target)).differences(before) == []
    assert await connections[1].fetchval("select min(backlog_limit) from lanes where namespace = 'blue'") == 777


async def test_a_move_that_cannot_fence_gives_up_and_is_undone(
    scene: Scene, connections: list[Any], monkeypatch: pytest.MonkeyPatch
):
    before = await scene.digest(scene.source)
    monkeypatch.setattr(namespace_move, "_FENCE_FOR", 0.0)
    holding = Holding(scene, connections[0], ends=False)
    with pytest.raises(Refused, match="fence of the namespace red"):
        await holding.mover.move(scene.target)
    assert await connections[1].fetchval(FENCES) == 0
    assert read_directory(scene.path).namespaces["red"] == scene.source
    assert (await scene.digest(scene.target)).rows == {}
    await holding.transaction.rollback()
    assert (await scene.digest(scene.source)).differences(before) == []
    async with scene.engine() as engine:
        assert (await engine.enqueue("work")).created
    await scene.mover().move(scene.target)
    assert read_directory(scene.path).namespaces["red"] == scene.target


async def test_a_move_beside_workers_of_another_namespace_disturbs_none_of_them(scene: Scene):
    async with scene.engine("blue") as other, other.worker(), other.worker():
        moving = asyncio.create_task(scene.mover().move(scene.target))
        tasks = []
        while not moving.done():
            tasks += [await other.enqueue("work", {"text": "ab"}) for _ in range(10)]
            await other.result(tasks[-1], timeout=BOUND)
        await moving
        for task in tasks:
            assert await other.result(task, timeout=BOUND) == {"size": 2}
            assert (await other.get_task(task.id)).attempt == 1
    async with scene.engine("red") as engine:
        assert (await engine.enqueue("work")).created
    old = scene.engine("blue")
    async with old:
        with pytest.raises(NamespaceMoved):
            await old.kernel.store.set_list("red", "default", paused=False, accepting=True)
