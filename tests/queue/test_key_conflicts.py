"""Conflicts of unique keys of tasks: what a new one does about the live one (`on_conflict`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, SHARED, make_engine, url_of
from tests.errors import raises_code
from tests.limits import BOUND

from treadle import Engine, TaskCanceled, TaskSpec
from treadle.kernel.store.queries import TaskFilter
from treadle.model.errors import InvalidInput
from treadle.model.states import SHOWN_LIVE_STATES
from treadle.model.tasks import Task

DAY = 86_400
BIG = "x" * 20_000


@pytest.fixture(params=ALL)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with make_engine(url_of(request.param, request, tmp_path)) as opened:
        yield opened


async def live(engine: Engine) -> list[Task]:
    return await engine.kernel.store.tasks.list_matching(TaskFilter(states=SHOWN_LIVE_STATES, name="index"), 100)


async def claim(engine: Engine) -> Task:
    queues = await engine.kernel.store.tasks.list_queues()
    (task,) = await engine.kernel.store.tasks.claim(list(queues), "worker", 60_000, 1)
    return task


async def test_a_rejected_task_is_not_stored(engine: Engine):
    first = await engine.enqueue("index", unique_key="k")
    with raises_code("unique_key_taken", first.id):
        await engine.enqueue("index", {"big": BIG}, unique_key="k", on_conflict="reject", tags={"a": 1})
    assert [task.id for task in await live(engine)] == [first.id]
    assert (await engine.enqueue("index", unique_key="free", on_conflict="reject")).created


async def test_a_replaced_task_is_canceled_and_its_holder_fenced(engine: Engine):
    first = await engine.enqueue("index", {"n": 1}, unique_key="k")
    held = await claim(engine)
    second = await engine.enqueue("index", {"n": 2}, unique_key="k", on_conflict="replace", actor="ada")
    assert second.created
    with pytest.raises(TaskCanceled, match=second.id):
        await engine.result(first, timeout=BOUND)
    stored = await engine.kernel.reads.get_task(first)
    assert (stored.actor, stored.error_code, stored.claim_version) == ("ada", "replaced", held.claim_version)
    assert [task.id for task in await live(engine)] == [second.id]


async def test_a_debounced_task_has_the_last_payload(engine: Engine):
    first = await engine.enqueue("index", {"n": 1}, unique_key="k", on_conflict="debounce", delay=60, max_wait=100)
    second = await engine.enqueue("index", {"n": 2, "big": BIG}, unique_key="k", on_conflict="debounce", delay=DAY, max_wait=100)
    assert (second.id, second.created) == (first.id, False)
    (task,) = await live(engine)
    assert await engine.kernel.value_store.unpack(task.payload) == {"n": 2, "big": BIG}
    assert task.wake_at is not None
    assert 60_000 < task.wake_at - task.created_at < DAY * 1000


async def test_a_call_during_the_execution_enqueues_another_task(engine: Engine):
    first = await engine.enqueue("index", {"n": 1}, unique_key="k")
    await claim(engine)
    options: Any = {"unique_key": "k", "on_conflict": "debounce", "delay": DAY}
    second = await engine.enqueue("index", {"n": 2}, **options)
    third = await engine.enqueue("index", {"n": 3}, **options)
    assert second.created
    assert (third.id, third.created) == (second.id, False)
    assert {task.id for task in await live(engine)} == {first.id, second.id}


@pytest.mark.parametrize("action", ["replace", "debounce"])
async def test_the_work_of_another_name_or_a_run_is_never_changed(engine: Engine, action: Any):
    @engine.function("wait")
    async def wait(payload: dict[str, Any], ctx: Any) -> Any:
        return None

    await engine.enqueue("other", unique_key="k")
    run = await engine.start("wait", unique_key="k")
    for key in ("k", "run:k"):
        with raises_code("unique_key_taken"):
            await engine.enqueue("index", unique_key=key, on_conflict=action, delay=DAY)
    assert not (await engine.kernel.runs.get_run(run.id)).finished


async def test_an_idempotency_key_decides_first(engine: Engine):
    options: Any = {"unique_key": "k", "idempotency_key": "i"}
    first = await engine.enqueue("index", **options)
    again = await engine.enqueue("index", **options, on_conflict="replace")
    assert (again.id, again.created) == (first.id, False)


async def test_a_conflict_is_decided_in_a_call_of_its_own():
    async with make_engine("memory://") as engine:
        spec = TaskSpec(name="index", unique_key="k", on_conflict="replace")
        with pytest.raises(InvalidInput, match="a call of its own"):
            await engine.enqueue_many([spec, TaskSpec(name="index")])
        assert not await live(engine)


@pytest.mark.parametrize("kind", SHARED)
async def test_concurrent_calls_leave_one_live_task(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    url = url_of(kind, request, tmp_path)
    async with make_engine(url) as one, make_engine(url) as other:
        calls = [
            engine.enqueue("index", {"n": number}, unique_key="k", on_conflict="replace")
            for number in range(10)
            for engine in (one, other)
        ]
        tasks = await asyncio.gather(*calls)
        (last,) = await live(one)
        assert last.id in {task.id for task in tasks}
        assert all(task.created for task in tasks)
