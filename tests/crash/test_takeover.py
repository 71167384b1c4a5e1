"""Work of a killed process restarts elsewhere before its lease could have expired, at the default lease of a minute."""

from __future__ import annotations

import os
import signal

import pytest
from tests.crash.scene import Child, Scene, until
from tests.crash.test_lease_keeper import keepers_of

from treadle.kernel.queue.why import shown_server_state
from treadle.kernel.store.queries import TaskFilter

LEASE = 60


def stop_keeping(child: Child) -> None:
    """Kill the lease keeper of the process, with the process, as the end of a container does."""
    keepers = [int(pid) for pid in keepers_of(child.pid)]
    child.send(signal.SIGKILL)
    for pid in keepers:
        os.kill(pid, signal.SIGKILL)


async def leases_end_at(scene: Scene) -> int:
    held = await scene.engine.kernel.store.list_tasks(TaskFilter(held=True), 100)
    return min(task.wake_at or 0 for task in held)


@pytest.mark.parametrize("keeper", ["keeper lives", "keeper dies"])
async def test_work_of_a_killed_worker_restarts_before_its_lease_expires(scene: Scene, keeper: str) -> None:
    first = await scene.start_worker("--lease", LEASE)
    task = await scene.engine.enqueue("hang_once")
    await until(lambda: len(scene.effects("start")) == 1, first)
    second = await scene.start_worker("--lease", LEASE)
    ends_at = await leases_end_at(scene)
    if keeper == "keeper dies":
        stop_keeping(first)
    else:
        first.send(signal.SIGKILL)
    (ended,) = await scene.finished([task.id])
    assert await scene.engine.kernel.store.now() < ends_at
    assert (ended.state, ended.attempt, ended.takeovers) == ("completed", 2, 1)
    assert [pid for _, _, _, pid in scene.effects("end")] == [second.pid]
    (dead,) = [each for each in await scene.engine.kernel.store.list_servers() if each.pid == first.pid]
    now = await scene.engine.kernel.store.now()
    assert (dead.evidence, shown_server_state(dead, now), dead.running) == ("process", "lost", 0)
    assert await scene.moves(task.id) == ["expire", "succeed"]
    await scene.check(1)


async def test_a_worker_that_starts_after_the_only_one_was_killed_takes_over_before_the_lease_expires(scene: Scene) -> None:
    first = await scene.start_worker("--lease", LEASE)
    task = await scene.engine.enqueue("hang_once")
    await until(lambda: len(scene.effects("start")) == 1, first)
    ends_at = await leases_end_at(scene)
    stop_keeping(first)
    await first.ended()
    second = await scene.start_worker("--lease", LEASE)
    (ended,) = await scene.finished([task.id])
    assert await scene.engine.kernel.store.now() < ends_at
    assert (ended.state, ended.attempt) == ("completed", 2)
    assert second.exit_code is None
