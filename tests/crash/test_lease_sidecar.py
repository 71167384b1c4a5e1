"""Leases of a process that cannot renew them: its interpreter is busy, or it was killed before its handlers started."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.scene import Scene, until

from treadle import TaskSpec
from treadle.kernel.problems import find_problems

LEASE = 15
"""Seconds: long enough for a sidecar that must load the store on a very busy machine."""


def sidecars_of(pid: int) -> list[str]:
    """The lease sidecars of the process, which name it in their last argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sidecar.process" in b" ".join(words) and str(pid).encode() in words:
            found.append(path.parent.name)
    return found


@pytest.mark.postgres
async def test_tasks_of_a_killed_worker_that_had_not_started_are_released_without_a_takeover(scene: Scene) -> None:
    tasks = [task.id for task in await scene.engine.enqueue_many([TaskSpec(name="die")] * 10)]
    first = scene.start("worker")
    await first.ended()
    await until(lambda: not sidecars_of(first.pid))  # it never outlives its worker by more than seconds
    await scene.died(first)
    (started,) = {task_id for _, task_id, _, _ in scene.effects("begin")}
    scene.go.touch()
    second = await scene.start_worker()
    ended = {task.id: task for task in await scene.finished(tasks)}
    assert {(task.takeovers, task.attempt) for task in ended.values() if task.id != started} == {(0, 1)}
    assert (ended[started].takeovers, ended[started].attempt) == (1, 2)
    assert [await scene.transitions(task_id) for task_id in tasks if task_id != started] == [["release", "succeed"]] * 9
    assert second.exit_code is None
    await scene.check(10)


async def test_a_handler_that_holds_the_interpreter_past_the_lease_costs_no_task_its_lease(scene: Scene) -> None:
    first = await scene.start_worker("--lease", LEASE)
    others = [await scene.engine.enqueue("hold", {"seconds": LEASE}) for _ in range(8)]
    await until(lambda: len(scene.effects("begin")) == 8, first)
    freezing = await scene.engine.enqueue("freeze", {"seconds": 2.5 * LEASE})
    await until(lambda: len(scene.effects("begin")) == 9, first)
    second = await scene.start_worker("--lease", LEASE)  # it would take over
    ended = await scene.finished([task.id for task in (*others, freezing)])
    assert [(task.state, task.attempt, task.takeovers) for task in ended] == [("completed", 1, 0)] * 9
    assert {pid for _, _, _, pid in scene.effects()} == {first.pid}
    assert len(scene.effects()) == 18
    assert second.exit_code is None
    held = await first.told("InterpreterHeld")
    assert (held["handler"], held["kept"]) == ("freeze", 9)

    async def status_names_it() -> bool:
        engine = scene.engine
        found = await engine.kernel.trigger_services.status.read()
        return any("handler freeze held" in problem.text for problem in find_problems(found))

    await until(status_names_it, first)
