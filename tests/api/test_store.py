"""Calls about the store, on an engine and over HTTP."""

from __future__ import annotations

import pytest
from tests.api.conftest import Scene

from treadle.engine.operations import Operations
from treadle.model.access import Access, Scope
from treadle.model.errors import Forbidden, InvalidInput, Refused

DAY = 86_400


async def finish(scene: Scene, count: int) -> list[str]:
    """Tasks that have completed."""
    made = [(await scene.api.tasks.enqueue("greet", {"name": str(n)})).id for n in range(count)]
    async with scene.engine.worker():
        for task_id in made:
            await scene.api.tasks.result(task_id, wait_for=30)
    return made


async def test_the_store_reports_its_kind_and_health(scene: Scene):
    await finish(scene, 2)
    await scene.api.tasks.enqueue("nobody.Does")
    info = await scene.api.store.info()
    assert (info.described["kind"], info.finished["completed"]) == ("sqlite", 2)
    assert ("nobody.Does", 1) in [(queue.name, queue.ready) for queue in info.queues]
    assert {finding.name for finding in info.health.findings} >= {"wake lag", "free space"}


async def test_the_log_is_checked_page_by_page_to_the_end(scene: Scene):
    await finish(scene, 5)
    checked, after, calls = 0, None, 0
    while True:
        page = await scene.api.store.verify(after=after, limit=2)
        assert (page.holds, page.problems) == (True, [])
        checked, after, calls = checked + page.checked, page.next_after, calls + 1
        if after is None:
            break
    assert checked == (await scene.engine.kernel.verify()).checked >= 5
    assert calls > 3
    for wrong in ("nowhere", "external:nobody", "other:", "x:01935b8e-7c3a-7000-8000-000000000000"):
        with pytest.raises(InvalidInput):
            await scene.api.store.verify(after=wrong)


async def test_rules_of_lists_are_shown_and_set(scene: Scene):
    before = await scene.api.store.keeps()
    assert (before.keep_completed_for, before.lists) == (30 * DAY * 1000, [])
    rule = await scene.api.store.keep("default", completed=60)
    assert (rule.keep_completed_for, rule.keep_failed_for) == (60_000, 90 * DAY * 1000)
    assert (await scene.api.store.keeps()).lists == [rule]


async def test_a_prune_pass_runs_in_steps_after_a_dry_run(scene: Scene):
    made = await finish(scene, 3)
    dry = await scene.api.store.prune(older_than=0, dry_run=True)
    assert (dry.trees, dry.tasks, dry.dry_run) == (3, 3, True)
    assert (await scene.api.store.prune(dry_run=True, after="tidy")).next_after is None
    assert (await scene.api.store.prune_tree(made[0])).trees == 1
    trees, after = 0, None
    while True:
        step = await scene.api.store.prune(older_than=0, after=after)
        trees, after = trees + step.trees, step.next_after
        if after is None:
            break
    assert trees == 2
    assert (await scene.api.tasks.list()).tasks == []


async def test_invalid_arguments_are_rejected(scene: Scene):
    made = await scene.api.tasks.enqueue("greet")
    with pytest.raises(Refused):
        await scene.api.store.prune_tree(made.id)
    for after in ("", "-1", "run:x", "99999999999999999999", "anything"):
        with pytest.raises(InvalidInput):
            await scene.api.store.prune(after=after)
    with pytest.raises(InvalidInput):
        await scene.api.store.verify(limit=1001)


async def test_only_admins_change_retention(scene: Scene):
    store = Operations(scene.engine, Access("ada", frozenset(Scope) - {Scope.ADMIN})).store
    for refused in (store.prune(dry_run=True), store.keep("default"), store.verify(), store.prune_tree("x")):
        with pytest.raises(Forbidden):
            await refused


async def test_store_calls_are_timed_from_the_first_request_for_their_times(scene: Scene):
    assert (await scene.api.store.calls()).operations == []
    async with scene.engine.worker():
        await scene.engine.result(await scene.engine.enqueue("greet", {"name": "Ada"}))
    timed = {each.operation: each for each in (await scene.api.store.calls()).operations}
    assert timed["commit"].calls > 0
    assert timed["commit"].longest_for >= timed["commit"].mean_for > 0
    assert timed["commit"].longest_at is not None
