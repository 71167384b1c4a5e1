"""`after`, `failFast` and `collectErrors` hold across the death of a worker."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.crash.scene import Scene, until
from tests.crash.test_runs import finish
from tests.limits import BOUND

from treadle.model.errors import RunFailed

FLOW = """
namespace crash {
    event facet note(n: Long) => (pid: Long)
    event facet hang_once(n: Long) => (pid: Long)
    facet Odd(n: Long) => (n: Long) andThen {
        noted = note(n = $.n)
        sys.assert($.n % 2 == 1) after noted
        yield Odd(n = $.n)
    }
    workflow Ordered() => (done: Boolean) andThen {
        first = hang_once(n = 1)
        second = note(n = 2) after first
        third = note(n = 3) after second, first
        yield Ordered(done = true)
    }
    workflow Collected(items: [Long]) => (done: [Long] = [], failed: [Json] = [])
    andThen foreach item in $.items collectErrors(failed) {
        odd = Odd(n = item)
        yield Collected(done = [odd.n])
    }
    workflow Strict(items: [Long]) => (done: [Long] = []) andThen foreach item in $.items failFast {
        odd = Odd(n = item)
        later = note(n = odd.n)
        yield Strict(done = [odd.n])
    }
}
"""
SOURCES = [("crash.afl", FLOW)]


@pytest.fixture
async def on_sqlite(tmp_path: Path):
    scene = Scene(f"sqlite:///{tmp_path / 'treadle.db'}", tmp_path)
    try:
        async with scene.engine:
            yield scene
    finally:
        scene.destroy()


async def test_a_step_after_another_waits_for_it_although_its_worker_is_killed(on_sqlite: Scene) -> None:
    scene = on_sqlite
    run = await scene.engine.start_run(SOURCES, "crash.Ordered")
    first = await scene.start_worker()
    await until(lambda: bool(scene.effects("start")), first)
    assert scene.effects("note") == []
    first.send(signal.SIGKILL)
    await scene.died(first)
    await scene.start_worker()
    assert await finish(scene, run.id) == {"done": True}
    assert [what for what, *_ in scene.effects() if what in ("start", "note")] == ["start", "start", "note", "note"]


@pytest.mark.postgres
@pytest.mark.parametrize("point", ["advance.before_commit:2", "advance.after_commit:3"])
async def test_errors_are_collected_once_although_a_worker_is_killed(scene: Scene, point: str) -> None:
    run = await scene.engine.start_run(SOURCES, "crash.Collected", {"items": [1, 2, 3, 4]})
    first = scene.start("worker", "--concurrency", 1, "--crash-at", point)
    await scene.died(first)
    await scene.start_worker()
    outputs = await finish(scene, run.id)
    assert outputs["done"] == [1, 3]
    assert [(each["index"], each["item"], each["error_type"]) for each in outputs["failed"]] == [
        (1, 2, "assertion_failed"),
        (3, 4, "assertion_failed"),
    ]


async def test_a_loop_that_fails_fast_fails_although_a_worker_is_killed(on_sqlite: Scene) -> None:
    scene = on_sqlite
    run = await scene.engine.start_run(SOURCES, "crash.Strict", {"items": [2, 1, 3]})
    first = scene.start("worker", "--concurrency", 1, "--crash-at", "advance.after_commit:2")
    await scene.died(first)
    await scene.start_worker()
    with pytest.raises(RunFailed, match="assert"):
        await scene.engine.run_result(run.id, timeout=BOUND)
    await until(scene.nothing_is_left)
    assert (await scene.engine.kernel.verify()).problems == ()
