"""Runs and real processes: two work on one run, and whoever dies at whatever commit, others bring it to its end."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.crash.scene import Scene, until
from tests.limits import BOUND

from treadle.kernel.store.queries import TaskFilter

KILLED = -signal.SIGKILL

FLOW = """
namespace crash {
    event facet note(n: Long) => (pid: Long, seen: Long = 0)
    event facet late_once(n: Long) => (pid: Long)
    event facet gated(n: Long) => (pid: Long)
    facet Pair(n: Long) => (n: Long) andThen {
        a = note(n = $.n)
        b = note(n = $.n + 100) andThen { yield note(seen = a.pid) }
        yield Pair(n = $.n + 0 * a.pid + 0 * b.seen)
    }
    workflow All(items: Json) => (done: Json) andThen foreach item in $.items {
        p = Pair(n = $.item)
        yield All(done = [p.n])
    }
    workflow Wide(items: Json) => (count: Long) andThen foreach item in $.items {
        a = gated(n = $.item)
        yield Wide(count = $.item)
    }
    workflow Late() => (n: Long) andThen {
        l = late_once(n = 1)
        c = note(n = l.pid)
        yield Late(n = 7 + 0 * c.pid)
    }
}
"""
SOURCES = [("crash.afl", FLOW)]


async def finish(scene: Scene, run_id: str) -> dict[str, Any]:
    """The outputs, once nothing of the run is left."""
    outputs = await scene.engine.run_result(run_id, timeout=BOUND)
    await until(scene.nothing_is_left)
    assert await scene.engine.kernel.store.runs.list_steps(run_id, None, 10, with_inbox=True) == []
    assert (await scene.engine.kernel.verify()).problems == ()
    return outputs


@pytest.mark.postgres
async def test_two_processes_do_a_foreach_once(scene: Scene) -> None:
    workers = [await scene.start_worker("--concurrency", 20) for _ in range(2)]
    run = await scene.engine.start_run(SOURCES, "crash.Wide", {"items": list(range(300))})
    await until(lambda: len(scene.effects("gated")) == 40, *workers)  # as many as both can have
    assert {pid for _, _, _, pid in scene.effects("gated")} == {worker.pid for worker in workers}
    scene.go.touch()
    assert await finish(scene, run.id) == {"count": 299}
    done = Counter(task_id for _, task_id, _, _ in scene.effects("gated"))
    assert (len(done), set(done.values())) == (300, {1})


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("point", ["advance.before_commit", "advance.after_commit"])
async def test_a_worker_killed_at_any_commit_of_a_run_changes_no_outcome(tmp_path: Path, point: str, count: int) -> None:
    scene = Scene(f"sqlite:///{tmp_path / 'treadle.db'}", tmp_path)
    try:
        async with scene.engine:
            run = await scene.engine.start_run(SOURCES, "crash.All", {"items": [1, 2, 3, 4]})
            first = scene.start("worker", "--concurrency", 1, "--crash-at", f"{point}:{count}")
            await scene.died(first)
            await scene.start_worker()
            assert await finish(scene, run.id) == {"done": [1, 2, 3, 4]}
            assert len(scene.effects("note")) == 8 + (point == "advance.before_commit")
    finally:
        scene.destroy()


@pytest.mark.parametrize("point", ["advance.before_commit", "advance.after_commit"])
async def test_a_start_repeated_after_a_crash_is_one_run(scene: Scene, tmp_path: Path, point: str) -> None:
    (tmp_path / "flow.afl").write_text(FLOW)
    options = ("--flow", tmp_path / "flow.afl", "--workflow", "crash.All", "--inputs", json.dumps({"items": [1, 2]}))
    first = scene.start("starter", *options, "--crash-at", point)
    assert await first.ended() == KILLED
    there = await scene.engine.kernel.run_reads.list_runs()
    assert len(there) == (1 if point == "advance.after_commit" else 0)
    again = scene.start("starter", *options)
    assert await again.ended() == 0
    started = await again.told("started")
    assert started["created"] is (point == "advance.before_commit")
    await scene.start_worker()
    assert await finish(scene, started["id"]) == {"done": [1, 2]}
    assert len(await scene.engine.kernel.run_reads.list_runs()) == 1


@pytest.mark.parametrize("point", ["leave.before_commit", "leave.after_commit"])
async def test_a_worker_that_dies_leaving_a_result_of_a_paused_run(scene: Scene, point: str) -> None:
    run = await scene.engine.start_run(SOURCES, "crash.Late")
    first = await scene.start_worker("--crash-at", point)
    await until(lambda: bool(scene.effects("start")), first)
    await scene.engine.runs.pause(run.id)
    scene.go.touch()
    await scene.died(first)
    left = await scene.engine.kernel.store.runs.list_steps(run.id, None, 10, with_inbox=True)
    assert len(left) == (1 if point == "leave.after_commit" else 0)
    await scene.start_worker()
    await scene.engine.runs.resume(run.id)
    assert await finish(scene, run.id) == {"n": 7}
    assert len(scene.effects("end")) == (1 if point == "leave.after_commit" else 2)


async def test_a_run_completes_although_its_workers_are_killed_repeatedly(scene: Scene) -> None:
    run = await scene.engine.start_run(SOURCES, "crash.All", {"items": list(range(20))})
    for point in ("advance.after_commit:3", "advance.before_commit:4"):
        worker = scene.start("worker", "--concurrency", 2, "--crash-at", point)
        await scene.died(worker)
    await scene.start_worker()
    assert await finish(scene, run.id) == {"done": list(range(20))}
    ended = await scene.engine.kernel.store.tasks.list_matching(TaskFilter(states=("completed",), run_id=run.id), 1000)
    assert len([task for task in ended if task.name == "crash.note"]) == 40
