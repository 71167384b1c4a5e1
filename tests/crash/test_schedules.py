"""Two schedulers in two processes, one of which is killed: each tick fires once."""

from __future__ import annotations

import signal
from datetime import datetime

import pytest
from tests.crash.scene import Scene, until

from treadle.model.values import decode

KILLED = -signal.SIGKILL
SECOND = 1000


async def ticks(scene: Scene) -> list[int]:
    """The ticks for which tasks were made, in order."""
    tasks = await scene.engine.kernel.reads.list_tasks(kind="handler", name="note", limit=1000)
    said = [decode(task.payload)["tick"] for task in tasks]
    return sorted(round(datetime.fromisoformat(text).timestamp() * 1000) for text in said)


async def each_fired_once(scene: Scene, schedule_id: str) -> None:
    """No tick was left out, there is one task for each, and the record says the same."""
    schedule = await scene.engine.schedules.get(schedule_id)
    found = await ticks(scene)
    assert schedule.when.anchor_at is not None
    first = schedule.when.anchor_at.ms
    assert found == [first + number * SECOND for number in range(1, len(found) + 1)]
    assert (schedule.fired, schedule.skipped, schedule.cursor.ms) == (len(found), 0, found[-1])
    assert (await scene.engine.kernel.verify()).problems == ()


@pytest.mark.postgres
@pytest.mark.parametrize("point", ["claim.after", "fire.before_commit", "fire.after_commit"])
async def test_a_killed_scheduler_neither_loses_nor_repeats_a_tick(scene: Scene, point: str) -> None:
    doomed = scene.start("worker", "--crash-at", f"{point}:{6 if point == 'claim.after' else 2}")
    made = await scene.engine.schedules.create("tidy", every=1, task="note", overlap="allow", catch_up="all")
    await scene.died(doomed)
    before = (await scene.engine.schedules.get("tidy")).fired
    other = await scene.start_worker()

    async def went_on() -> bool:
        return (await scene.engine.schedules.get("tidy")).fired >= before + 3

    await until(went_on, doomed, other)
    await scene.engine.schedules.pause("tidy")
    await until(scene.nothing_is_left, other)
    await each_fired_once(scene, made.id)


async def test_two_schedulers_share_the_ticks(scene: Scene) -> None:
    children = [await scene.start_worker(), await scene.start_worker()]
    made = await scene.engine.schedules.create("tidy", every=1, task="note", overlap="allow", catch_up="all")

    async def enough() -> bool:
        return (await scene.engine.schedules.get("tidy")).fired >= 5

    await until(enough, *children)
    await scene.engine.schedules.pause("tidy")
    await until(scene.nothing_is_left, *children)
    await each_fired_once(scene, made.id)


async def test_an_edit_by_a_crashed_operator_is_atomic(scene: Scene) -> None:
    made = await scene.engine.schedules.create("tidy", every=3600, task="note")
    worker = scene.start("scheduler", "--crash-at", "operate.before_commit")
    assert await worker.ended() == KILLED
    assert (await scene.engine.schedules.get("tidy")).version == made.version
    worker = scene.start("scheduler", "--crash-at", "operate.after_commit")
    assert await worker.ended() == KILLED
    edited = await scene.engine.schedules.get("tidy")
    assert (edited.when.every_for, edited.version) == (60 * SECOND, made.version + 1)
    task = await scene.engine.kernel.reads.get_task(edited.task_id or "")
    assert task.wake_at is not None
    assert task.wake_at < edited.updated_at.ms + 3600 * SECOND
    assert (await scene.engine.kernel.reads.get_task(made.task_id or "")).state == "canceled"
    assert (await scene.engine.kernel.verify()).problems == ()
