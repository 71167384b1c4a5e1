"""A process that executes a ten-step function is killed at each of its writes; the next one finishes it, and does nothing twice
but what was in flight."""

from __future__ import annotations

import signal
from collections import Counter
from itertools import product

import pytest
from tests.crash.scene import Scene, until
from tests.limits import BOUND
from tests.sizes import sampled

from treadle import RunCanceled
from treadle.kernel.store.queries import TaskFilter

POINTS = ("function.before_commit", "function.after_commit")
WRITES = 14
"""Commits that the function and its child make, so that each is died at."""
STEPS = [*(f"step{number}" for number in range(4)), "branch0", "branch1", "branch2", "child", "last"]
RESULT = ["step0", "step1", "step2", "step3", "note", "branch0", "branch1", "branch2", "child", "last"]
KILLED = -signal.SIGKILL


@pytest.mark.postgres
@pytest.mark.parametrize(("point", "number", "name"), sampled([*product(POINTS, range(1, WRITES + 1), ["ten", "ten_sync"])]))
async def test_a_function_has_the_same_result_after_a_kill_at_any_write(scene: Scene, point: str, number: int, name: str) -> None:
    starter = scene.start("function_starter", "--name", name)
    run_id = (await starter.told("started"))["id"]
    assert await starter.ended() == 0
    first = scene.start("worker", "--crash-at", f"{point}:{number}")

    async def over() -> bool:
        return first.exit_code is not None or (await scene.engine.kernel.runs.get_run(run_id)).finished

    await until(over, first)
    if number <= 10 or first.exit_code is not None:  # writes that are made together are fewer
        await scene.died(first)
    await scene.start_worker()
    assert await scene.engine.run_result(run_id, timeout=BOUND) == RESULT
    counts = Counter(what for what, *_ in scene.effects() if what != "note")
    assert set(counts) == set(STEPS)
    again = [what for what, count in counts.items() if count > 1]
    in_flight = 3 if set(again) <= {"branch0", "branch1", "branch2"} else 1
    assert len(again) <= in_flight, counts
    assert max(counts.values()) <= 2
    report = await scene.engine.kernel.verify()
    assert report.problems == ()


@pytest.mark.parametrize("point", POINTS)
async def test_a_starter_that_dies_and_starts_again_starts_one_run(scene: Scene, point: str) -> None:
    first = scene.start("function_starter", "--crash-at", point)
    assert await first.ended() == KILLED
    again = scene.start("function_starter")
    told = await again.told("started")
    assert await again.ended() == 0
    assert told["created"] == (point == POINTS[0])
    await scene.start_worker()
    assert await scene.engine.run_result(told["id"], timeout=BOUND) == RESULT
    assert [run.id for run in await scene.engine.kernel.run_reads.list_runs(workflow="ten")] == [told["id"]]


@pytest.mark.parametrize(
    ("event", "crash", "name"),
    sampled([*product(["answer", "cancel"], ["function.before_commit:3", "function.after_commit:4"], ["race", "race_sync"])]),
)
async def test_a_winner_and_a_cleanup_survive_the_death_of_their_process(scene: Scene, event: str, crash: str, name: str) -> None:
    started = await scene.engine.start_function(name, version=1)
    first = scene.start("worker", "--crash-at", crash)

    async def waits() -> bool:
        task = await scene.engine.kernel.functions.own_task(started.id)
        return task is not None and task.owner_id is None and task.wake_at is not None

    await until(waits, first)
    if event == "cancel":
        run = await scene.engine.runs.cancel(started.id, reason="sold out")
        assert run.state == "running"
    else:
        await scene.engine.signal(started, "answer")
    await scene.died(first)
    last = await scene.start_worker()
    if event == "cancel":
        with pytest.raises(RunCanceled, match="sold out"):
            await scene.engine.run_result(started, timeout=BOUND)
    else:
        assert await scene.engine.run_result(started, timeout=BOUND) == "answer"
    counts = Counter(what for what, *_ in scene.effects())
    assert set(counts) == {"reserve", "release", *(["after"] if event == "answer" else [])}
    assert counts["reserve"] == 1
    assert sum(counts.values()) <= len(counts) + 1, counts

    async def job_is_canceled() -> bool:
        return [each.state for each in await scene.engine.kernel.store.tasks.list_matching(TaskFilter(name="nobody"), 10)] == [
            "canceled"
        ]

    await until(job_is_canceled, last)
    assert (await scene.engine.kernel.verify()).problems == ()


CONFLICT_POINTS = (*POINTS, "operate.before_commit", "operate.after_commit")


@pytest.mark.postgres
@pytest.mark.parametrize(("action", "point"), sampled([*product(("replace", "debounce"), CONFLICT_POINTS)]))
async def test_a_start_that_dies_while_it_meets_a_live_run_leaves_one_live_run(scene: Scene, action: str, point: str) -> None:
    starter = scene.start("function_starter", "--on-conflict", action)
    first_id = (await starter.told("started"))["id"]
    assert await starter.ended() == 0
    second = scene.start("function_starter", "--on-conflict", action, "--crash-at", point)
    assert await second.ended() == KILLED

    async def live() -> tuple[str, int]:
        runs = [run for run in await scene.engine.kernel.run_reads.list_runs(workflow="ten") if not run.finished]
        assert len(runs) == 1
        task = await scene.engine.kernel.functions.own_task(runs[0].id)
        assert task is not None
        assert (task.unique_key, task.payload) == ("run:only", runs[0].inputs)
        return runs[0].id, (await scene.engine.kernel.runs.inputs(runs[0]))["by"]

    run_id, by = await live()
    committed = point == "operate.after_commit"
    assert by == (second.pid if committed else starter.pid)
    assert (run_id == first_id) == (action == "debounce" or not committed)
    again = scene.start("function_starter", "--on-conflict", action)
    assert (await again.told("started"))["created"] == (action == "replace")
    assert await again.ended() == 0
    assert (await live())[1] == again.pid
    assert (await scene.engine.kernel.verify()).problems == ()
