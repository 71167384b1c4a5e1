"""A process dies at each named point; others finish its work: nothing is lost, nothing is completed twice."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from itertools import product

import pytest
from tests.crash.scene import Scene
from tests.crash.test_effects import EFFECT_POINTS
from tests.crash.test_external import EXTERNAL_POINTS
from tests.limits import BOUND
from tests.sizes import sampled

from treadle import TaskSpec
from treadle.kernel.store.process import POINTS
from treadle.model.values import decode

ENQUEUE_POINTS = ("enqueue.before_commit", "enqueue.after_commit")
WORKER_POINTS = ("claim.after", "handler.before", "handler.after", "settle.before_commit", "settle.after_commit", "wake.after")
ADVANCE_POINTS = ("advance.before_commit", "advance.after_commit")
OPERATOR_POINTS = ("operate.before_commit", "operate.after_commit")

KILLED = -signal.SIGKILL


def test_every_failpoint_is_tested() -> None:
    """`leave.*` is passed only when two advance one run at once, or while it is paused: see the tests of runs. `fire.*`,
    `look.*` and `alert.*` are those of schedules, watchers and alerts, `function.*` those of functions, `thread.*` those of
    LangGraph's checkpoints, `transition.*` those of namespaces, `metrics.*` those of roll-ups (`test_metrics.py`),
    `partitions.*` those of PostgreSQL's roles: see their tests.
    """
    here = {*ENQUEUE_POINTS, *WORKER_POINTS, *ADVANCE_POINTS, *OPERATOR_POINTS, *EFFECT_POINTS, *EXTERNAL_POINTS}
    assert here >= {
        point
        for point in POINTS
        if not point.startswith(
            ("leave.", "fire.", "look.", "alert.", "function.", "thread.", "stream.", "transition.", "partitions.", "metrics.")
        )
    }


@pytest.mark.postgres
@pytest.mark.parametrize("point", ENQUEUE_POINTS)
async def test_an_enqueuer_that_is_killed_and_restarted_stores_each_task_once(scene: Scene, point: str) -> None:
    first = scene.start("enqueuer", "--count", 5, "--crash-at", f"{point}:3")
    assert await first.ended() == KILLED
    told = [event["id"] for event in first.events("enqueued")]
    assert len(told) == 2
    stored = [task.id for task in await scene.engine.kernel.reads.list_tasks(kind="handler")]
    assert len(stored) == (2 if point == "enqueue.before_commit" else 3)
    assert set(told) <= set(stored)
    again = scene.start("enqueuer", "--count", 5)
    assert await again.ended() == 0
    ids = [event["id"] for event in again.events("enqueued")]
    assert set(stored) <= set(ids)
    await scene.start_worker()
    tasks = await scene.finished(ids)
    assert {task.state for task in tasks} == {"completed"}
    assert Counter(task_id for _, task_id, _, _ in scene.effects()) == Counter(ids)
    await scene.check(5)


@pytest.mark.postgres
@pytest.mark.parametrize(("action", "point"), sampled([*product(("replace", "debounce"), (*ENQUEUE_POINTS, *OPERATOR_POINTS))]))
async def test_an_enqueuer_that_dies_while_it_meets_a_live_task_leaves_one_live_task(scene: Scene, action: str, point: str) -> None:
    first = scene.start("enqueuer", "--on-conflict", action)
    first_id = (await first.told("enqueued"))["id"]
    assert await first.ended() == 0
    second = scene.start("enqueuer", "--on-conflict", action, "--crash-at", point)
    assert await second.ended() == KILLED

    async def live() -> tuple[str, int]:
        tasks = await scene.engine.kernel.reads.list_tasks(kind="handler")
        assert {task.error_code for task in tasks if task.finished} <= ({"replaced"} if action == "replace" else set())
        (task,) = [task for task in tasks if not task.finished]
        assert task.unique_key == "only"
        return task.id, decode(task.payload)["by"]

    task_id, by = await live()
    committed = point == "operate.after_commit"
    assert by == (second.pid if committed else first.pid)
    assert (task_id == first_id) == (action == "debounce" or not committed)
    again = scene.start("enqueuer", "--on-conflict", action)
    assert (await again.told("enqueued"))["created"] == (action == "replace")
    assert await again.ended() == 0
    assert (await live())[1] == again.pid
    assert (await scene.engine.kernel.verify()).problems == ()


@pytest.mark.parametrize(
    ("name", "point"), [*sampled([*product(["note"], WORKER_POINTS)]), *sampled([*product(["note_batch"], WORKER_POINTS[1:])])]
)
async def test_the_work_of_a_worker_that_dies_is_finished_by_another(scene: Scene, name: str, point: str) -> None:
    delay, size = (0.05, 60) if point == "wake.after" else (None, 8)  # something to wake, and more than is done before it dies
    ids = [task.id for task in await scene.engine.enqueue_many([TaskSpec(name=name, delay=delay) for _ in range(size)])]
    count = 1 if point in ("claim.after", "wake.after") else 3
    first = scene.start("worker", "--concurrency", 4, "--crash-at", f"{point}:{count}")
    await scene.died(first)
    second = await scene.start_worker()
    tasks = await scene.finished(ids)
    assert {task.state for task in tasks} == {"completed"}
    by = Counter(pid for _, _, _, pid in scene.effects())
    assert by[second.pid] > 0
    assert {task_id for _, task_id, _, _ in scene.effects()} == set(ids)
    histories = await asyncio.gather(*(scene.transitions(task.id) for task in tasks))
    for task, transitions in zip(tasks, histories, strict=True):
        # The lease sidecar releases what had not started, unless the test ends the lease before.
        assert transitions in (["expire"] * task.takeovers + ["succeed"], ["release", "succeed"])
        assert task.claim_version == len(transitions)
    taken_over = sum("expire" in transitions for transitions in histories)
    if point == "settle.after_commit":
        assert sum(decode(task.result)["pid"] == first.pid for task in tasks) >= count
    elif point != "wake.after":
        assert any(transitions[0] != "succeed" for transitions in histories)
    # At least once: only what was under way when the first died may have happened twice.
    assert len(scene.effects()) <= len(ids) + taken_over
    await scene.check(size)


FLOW = """
namespace crash {
    event facet note(n: Long) => (pid: Long)

    workflow Three() => (last: Long) andThen {
        a = note(n = 1)
        b = note(n = a.pid)
        c = note(n = b.pid)
        yield Three(last = c.pid)
    }
}
"""


@pytest.mark.parametrize(("point", "count"), sampled([*product(ADVANCE_POINTS, (1, 3))]))
async def test_a_run_continues_on_another_worker_after_a_crash_while_advancing(scene: Scene, point: str, count: int) -> None:
    run = await scene.engine.start_run([("crash.afl", FLOW)], "crash.Three")
    first = scene.start("worker", "--crash-at", f"{point}:{count}")
    await scene.died(first)
    second = await scene.start_worker()
    outputs = await scene.engine.run_result(run, timeout=BOUND)
    done_by_first = count - (point == "advance.before_commit")
    assert outputs == {"last": first.pid if done_by_first == 3 else second.pid}
    # Each step once, and the one in hand when the first died once more if its end was not stored.
    assert len(scene.effects("note")) == 3 + (point == "advance.before_commit")
    assert (await scene.engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("point", OPERATOR_POINTS)
async def test_a_cancel_by_a_crashed_operator_is_atomic(scene: Scene, point: str) -> None:
    task = await scene.engine.enqueue("note")
    operator = scene.start("operator", "--task", task.id, "--crash-at", point)
    assert await operator.ended() == KILLED
    await scene.start_worker()
    (ended,) = await scene.finished([task.id])
    assert ended.state == ("completed" if point == "operate.before_commit" else "canceled")
    assert len(scene.effects()) == (1 if point == "operate.before_commit" else 0)
    await scene.check(1)
