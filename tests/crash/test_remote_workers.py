"""A process that remote workers come to dies in the middle of their words: nothing is lost, nothing is done twice."""

from __future__ import annotations

import signal

import pytest
from tests.crash.scene import Scene

from treadle.model.values import decode

KILLED = -signal.SIGKILL


@pytest.mark.postgres
@pytest.mark.parametrize("point", ["claim.after", "settle.before_commit", "settle.after_commit"])
async def test_a_task_with_an_undelivered_or_unsettled_claim_is_done_by_another_worker(scene: Scene, point: str) -> None:
    doomed = scene.start("gateway", "--lease", 1, "--crash-at", point)
    await doomed.told("waiting")
    task_id = (await scene.engine.enqueue("note")).id
    assert await doomed.ended() == KILLED
    assert doomed.events("completed") == []
    owner_id = doomed.events("waiting")[0]["worker_id"]
    task = await scene.engine.kernel.reads.get_task(task_id)
    assert (task.owner_id, task.claim_version) == (owner_id, 1)
    assert task.finished == (point == "settle.after_commit")
    other = scene.start("gateway", "--lease", 10)
    (finished,) = await scene.finished([task_id])
    if point == "settle.after_commit":  # it says so again, through another process, and is told that it is done
        await scene.engine.kernel.remote_workers.complete(owner_id, task_id, 1, {"pid": 0})
        assert decode(finished.result) == {"pid": doomed.pid}
        assert await scene.transitions(task_id) == ["succeed"]
    else:
        assert decode(finished.result) == {"pid": other.pid}
        assert (finished.claim_version, finished.takeovers) == (2, 1)
        assert await scene.transitions(task_id) == ["expire", "succeed"]
    await scene.check(1)
