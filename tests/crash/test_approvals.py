"""Processes die while people are asked and decide: a question is asked once, a decision is taken whole or not at all."""

from __future__ import annotations

import signal
from itertools import product

import pytest
from tests.crash.scene import Scene, until
from tests.limits import BOUND
from tests.sizes import sampled

from treadle.model.values import decode

KILLED = -signal.SIGKILL


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("point", "decision"), sampled([*product(["operate.before_commit", "operate.after_commit"], ["approve", "deny"])])
)
async def test_a_crash_while_deciding_leaves_an_approval_decided_or_pending(scene: Scene, point: str, decision: str) -> None:
    task = await scene.engine.enqueue("ask", {})
    worker = await scene.start_worker()
    await until(lambda: asked(scene), worker)
    decider = scene.start("decider", "--decision", decision, "--crash-at", point)
    assert await decider.ended() == KILLED
    if point == "operate.before_commit":
        (pending,) = (await scene.engine.approvals.list()).approvals
        assert (pending.votes, (await scene.engine.kernel.reads.get_task(task)).state) == ([], "awaiting_approval")
        again = scene.start("decider", "--decision", decision)
        assert await again.ended() == 0
    (ended,) = await scene.finished([task.id])
    (approval,) = (await scene.engine.approvals.list(every=True)).approvals
    if decision == "approve":
        assert (ended.state, approval.state, decode(ended.result)["by"]) == ("completed", "approved", "ada")
    else:
        assert (ended.state, approval.state, ended.error_code) == ("failed", "denied", "approval_denied")
    await scene.check(2)


@pytest.mark.parametrize("point", ["settle.before_commit", "settle.after_commit"])
async def test_a_worker_killed_while_requesting_leaves_at_most_one_approval(scene: Scene, point: str) -> None:
    task = await scene.engine.enqueue("ask", {})
    first = scene.start("worker", "--crash-at", point)
    await scene.died(first)
    before = len((await scene.engine.approvals.list()).approvals)
    assert before == (0 if point == "settle.before_commit" else 1)
    second = await scene.start_worker()
    await until(lambda: asked(scene), second)
    assert len((await scene.engine.approvals.list(every=True)).approvals) == 1
    assert await scene.start("decider").ended() == 0
    (ended,) = await scene.finished([task.id])
    assert decode(ended.result) == {"by": "ada", "pid": second.pid}
    await scene.check(2)


@pytest.mark.parametrize("point", ["settle.before_commit", "settle.after_commit"])
async def test_a_worker_killed_while_requesting_for_a_step_leaves_at_most_one_approval(scene: Scene, point: str) -> None:
    source = 'workflow W() => (by: String) andThen { ok = sys.approval(question = "Go on?") yield W(by = ok.by) }'
    run = await scene.engine.start_run([("w.afl", source)], "W")
    first = scene.start("worker", "--crash-at", point)
    await scene.died(first)
    assert len((await scene.engine.approvals.list()).approvals) == (0 if point == "settle.before_commit" else 1)
    second = await scene.start_worker()
    await until(lambda: asked(scene), second)
    assert len((await scene.engine.approvals.list(every=True)).approvals) == 1
    assert await scene.start("decider").ended() == 0
    assert await scene.engine.run_result(run, timeout=BOUND) == {"by": "ada"}
    assert (await scene.engine.kernel.verify()).holds


async def test_an_approval_that_is_due_expires_after_a_restart(scene: Scene) -> None:
    """All workers are gone when the approval expires; the next one sees to it."""
    task = await scene.engine.enqueue("ask", {"expires": 1})
    first = scene.start("worker", "--crash-at", "settle.after_commit")
    await scene.died(first)
    (pending,) = (await scene.engine.approvals.list()).approvals

    async def over() -> bool:
        return await scene.engine.kernel.store.now() > (pending.expires_at.ms if pending.expires_at else 0)

    await until(over)
    await scene.start_worker()
    (ended,) = await scene.finished([task.id])
    assert (ended.state, ended.error_code) == ("failed", "approval_expired")
    assert (await scene.engine.approvals.get(pending.id)).state == "expired"


@pytest.mark.parametrize("name", ["billing-1", "billing-2"])
async def test_a_restarted_server_immediately_resumes_its_tasks(scene: Scene, name: str) -> None:
    """Its lease would run out long after this test; a worker of another name sees, too, that the process is dead."""
    task = await scene.engine.enqueue("hang_once")
    first = await scene.start_worker("--name", "billing-1")
    await until(lambda: len(scene.effects("start")) == 1, first)
    lease_ends_at = (await scene.engine.kernel.reads.get_task(task)).wake_at
    first.send(signal.SIGKILL)
    await first.ended()
    await scene.start_worker("--name", name)
    (ended,) = await scene.finished([task.id])
    assert (ended.state, ended.attempt, ended.takeovers) == ("completed", 2, 1)
    assert ended.claimed_at < lease_ends_at  # the new worker recovers it, or the lease sidecar of the dead one has freed it
    assert await scene.transitions(task.id) == ["expire", "succeed"]
    await scene.check(1)


async def asked(scene: Scene) -> bool:
    return len((await scene.engine.approvals.list()).approvals) == 1
