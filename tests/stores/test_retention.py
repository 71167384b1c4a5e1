"""Retention as part of a running engine: one task per namespace prunes, and comes again; files give their space back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.limits import BOUND

from treadle import Engine, TaskSpec
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.retention import DAY_FOR, FIRST_PRUNE_FOR, PRUNE_EVERY_FOR
from treadle.model.errors import Unsupported
from treadle.model.names import ENGINE_LIST, PRUNE
from treadle.settings import Settings
from treadle.testing import ManualClock

DAY = DAY_FOR / 1000


async def pruner(engine: Engine) -> Any:
    (task,) = await engine.kernel.store.tasks.list_matching(TaskFilter(kind=PRUNE), 10)
    return task


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ALL)
async def test_any_number_of_workers_keeps_one_prune_task(request, tmp_path, kind):
    engine = make_engine(url_of(kind, request, tmp_path))
    async with engine:
        async with engine.worker(), engine.worker(task_lists=("gpu",)):
            pass
        async with engine.worker(task_lists=("other",)):
            task = await pruner(engine)
    assert (task.unique_key, task.task_list, task.owner_id) == (PRUNE, ENGINE_LIST, None)


async def test_the_task_prunes_and_waits_for_an_hour(tmp_path):
    clock = ManualClock()
    engine = Engine(f"sqlite:///{tmp_path / 't.db'}", settings=Settings(), clock=clock)

    @engine.handler("work")
    async def work(payload: Any) -> None: ...

    async with engine, asyncio.timeout(BOUND):
        done = await engine.enqueue("work")
        async with engine.worker(task_lists=("default",)):
            await engine.result(done)
            clock.advance(30 * DAY)
            while (task := await pruner(engine)).version == 0:
                clock.advance(1)
                await asyncio.sleep(0.01)
        assert await engine.kernel.store.tasks.find(done.id) is None
        (transition,) = await engine.kernel.store.log.list_transitions(task.id)
    assert (transition.transition, task.wake_at - transition.at) == ("wait", PRUNE_EVERY_FOR)
    assert FIRST_PRUNE_FOR < PRUNE_EVERY_FOR


async def test_retention_rules_are_read_from_the_settings(tmp_path):
    clock = ManualClock()
    settings = Settings(keep_completed=60, keep_failed=120)
    engine = Engine("memory://", settings=settings, clock=clock)
    async with engine:
        task = await engine.enqueue("work")
        await engine.cancel(task)
        clock.advance(59)
        assert (await engine.kernel.retention.prune()).trees == 0
        clock.advance(1)
        assert (await engine.kernel.retention.prune()).trees == 1


async def test_a_sqlite_file_shrinks_after_pruning(tmp_path):
    path = tmp_path / "t.db"
    clock = ManualClock()
    engine = Engine(f"sqlite:///{path}", settings=Settings(), clock=clock)
    async with engine:
        await fill(engine, 3000)
        clock.advance(31 * DAY)
        before = (await engine.kernel.store.health.describe())["page_count"]
        report = await engine.kernel.retention.prune()
        after = await engine.kernel.store.health.describe()
    assert (report.trees, report.freed > 0) == (3000, True)
    assert after["page_count"] < before / 2
    assert path.stat().st_size < 4096 * before / 2


async def test_a_file_that_cannot_shrink_in_steps_is_rewritten_on_demand(tmp_path):
    path = tmp_path / "t.db"
    make_old_file(path)
    clock = ManualClock()
    engine = Engine(f"sqlite:///{path}", settings=Settings(), clock=clock)
    async with engine:
        await fill(engine, 2000)
        clock.advance(31 * DAY)
        assert (await engine.kernel.retention.prune()).freed == 0
        assert await engine.kernel.store.retention.compact(whole=True) > 1_000_000
        await fill(engine, 2000)
        clock.advance(31 * DAY)
        assert (await engine.kernel.retention.prune()).freed > 0
        assert (await engine.kernel.verify()).problems == ()


async def test_a_file_is_compacted_in_short_steps_between_other_writes(tmp_path):
    path = tmp_path / "t.db"
    clock = ManualClock()
    engine = Engine(f"sqlite:///{path}", settings=Settings(), clock=clock)
    async with engine:
        await fill(engine, 3000)
        clock.advance(31 * DAY)
        await engine.kernel.retention.prune()
        store, steps = engine.kernel.store, []
        assert (await store.health.check()).free_bytes
        while freed := await store.retention.compact(tight=True):
            steps.append(freed)
            await engine.enqueue("work")
        assert len(steps) > 1
        assert max(steps) <= 512 * 4096  # 500 pages, and a page of pointers
        assert (await store.health.check()).free_bytes == 0
        assert (await engine.kernel.verify()).problems == ()


async def test_a_file_that_cannot_shrink_in_steps_is_reported(tmp_path):
    path = tmp_path / "t.db"
    make_old_file(path)
    async with Engine(f"sqlite:///{path}", settings=Settings(), clock=ManualClock()) as engine:
        with pytest.raises(Unsupported, match="prune --compact"):
            await engine.kernel.store.retention.compact(tight=True)
        assert await engine.kernel.store.retention.compact() == 0


async def fill(engine: Engine, count: int) -> None:
    """That many canceled tasks of some kilobytes each."""
    tasks = await engine.enqueue_many([TaskSpec(name="work", payload={"text": "x" * 3000}) for _ in range(count)])
    await asyncio.gather(*[engine.cancel(task) for task in tasks])


def make_old_file(path: Path) -> None:
    """A file as it was made before files could shrink."""
    import apsw

    connection = apsw.Connection(str(path))
    connection.execute("pragma auto_vacuum = none; create table old (a); drop table old")
    connection.close()
