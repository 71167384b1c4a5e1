"""How the system is, on an engine and over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.api.conftest import Scene

from treadle.model.errors import TreadleError


async def test_an_idle_system_has_no_problems(scene: Scene):
    status = await scene.api.system.status()
    assert (status.health, status.reasons, status.store.kind) == ("ok", [], "memory")
    assert (status.tasks.ready, status.runs, status.dead_letters, status.servers) == (0, {}, 0, {})


async def test_internal_engine_tasks_are_not_counted_as_waiting(scene: Scene):
    async with scene.engine.worker():
        await scene.engine.schedules.create("nightly", cron="0 3 * * *", task="greet")
        status = await scene.api.system.status()
    assert (status.tasks.waiting, status.tasks.blocked, status.engine_tasks >= 2) == (0, 0, True)


async def test_pending_work_is_counted_and_unserved_tasks_are_problems(scene: Scene):
    await scene.api.tasks.enqueue("nobody.Does")
    await scene.api.tasks.enqueue("greet", {"name": "Ada"}, delay=3600)
    await scene.engine.schedules.create("nightly", cron="0 3 * * *", task="greet")
    failed = await scene.api.tasks.enqueue("fail")
    async with scene.engine.worker(name="mill"):
        await scene.api.tasks.result(failed.id, wait_for=30)
        status = await scene.api.system.status()
    assert (status.health, status.dead_letters, status.live_servers, status.servers) == ("degraded", 1, 1, {"running": 1})
    assert [each.text for each in status.problems] == [
        "no live worker for 1 ready task: nobody.Does in list default",
        "1 dead letter",
    ]
    assert (status.tasks.ready, status.tasks.oldest_due_at is not None) == (1, True)
    assert status.tasks.waiting == 1
    assert [each.schedule for each in status.next_firings] == ["nightly"]
    assert status.next_firings[0].at > status.now


async def test_why_accepts_a_schedule_or_watcher_by_name_and_by_id(scene: Scene, tmp_path: Path):
    schedule = await scene.engine.schedules.create("nightly", cron="0 3 * * *", task="greet")
    watcher = await scene.engine.watchers.create("inbox", directory=str(tmp_path), task="greet")
    for name, made in (("nightly", schedule), ("inbox", watcher)):
        by_name = await scene.api.system.why(name)
        assert by_name == await scene.api.system.why(made.id) == await scene.api.system.why(made.task_id or "")
    await scene.engine.schedules.pause("nightly")
    paused = await scene.api.system.why("nightly")
    assert (paused.code, paused.text) == ("paused", "the schedule is paused; resume it with `treadle schedules resume nightly`")
    with pytest.raises(TreadleError, match="nobody"):
        await scene.api.system.why("nobody")
