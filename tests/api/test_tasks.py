"""Calls about tasks, on an engine and over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.api.conftest import Scene

from treadle.api.tasks import TaskRequest
from treadle.model.access import OPEN
from treadle.model.errors import IllegalTransition, InvalidInput, InvalidName, TaskNotFound

NOBODY = "01935b8e-7c3a-7000-8000-000000000000"


async def test_a_task_is_enqueued_done_and_shown(scene: Scene):
    made = await scene.api.tasks.enqueue("greet", {"name": "Ada"}, priority=3)
    async with scene.engine.worker():
        ended = await scene.api.tasks.result(made.id, wait_for=30)
    assert (ended.state, ended.finished, ended.result) == ("completed", True, {"hello": "Ada"})
    shown = await scene.api.tasks.get(made.id)
    assert (shown.payload, shown.result, shown.priority) == ({"name": "Ada"}, {"hello": "Ada"}, 3)
    assert [transition.to_state for transition in shown.transitions] == ["completed"]


async def test_a_failed_task_shows_its_error_and_can_be_retried(scene: Scene):
    made = await scene.api.tasks.enqueue("fail")
    async with scene.engine.worker():
        ended = await scene.api.tasks.result(made.id, wait_for=30)
        assert (ended.state, ended.error["message"]) == ("failed", "no luck")
    again = await scene.api.tasks.retry(made.id, payload={"n": 1})
    assert (again.state, again.failures, again.attempt) == ("pending", 0, 2)
    assert (await scene.api.tasks.get(made.id)).payload == {"n": 1}


async def test_the_result_of_an_unfinished_task_is_not_finished(scene: Scene):
    made = await scene.api.tasks.enqueue("nobody.Does")
    ended = await scene.api.tasks.result(made.id)
    assert (ended.finished, ended.state, ended.result) == (False, "pending", None)
    assert (await scene.api.tasks.why(made.id)).code == "no_worker"


async def test_the_same_key_makes_one_task(scene: Scene):
    first = await scene.api.tasks.enqueue("greet", {"name": "Ada"}, idempotency_key="k")
    second = await scene.api.tasks.enqueue("greet", {"name": "Ada"}, idempotency_key="k")
    assert (first.created, second.created, second.id) == (True, False, first.id)


async def test_a_batch_of_tasks_is_stored_completely_or_not_at_all(scene: Scene):
    made = await scene.api.tasks.enqueue_many([TaskRequest("greet", {"n": n}, task_list="bulk") for n in range(3)])
    page = await scene.api.tasks.list(task_list="bulk")
    assert {task.id for task in page.tasks} == {task.id for task in made.tasks}
    with pytest.raises(InvalidName):
        await scene.api.tasks.enqueue_many([TaskRequest("greet", task_list="other"), TaskRequest("not a name")])
    assert (await scene.api.tasks.list(task_list="other")).tasks == []


OPTIONS = {
    "delay": 60.0,
    "at": datetime(2040, 1, 1, tzinfo=UTC),
    "priority": 7,
    "task_list": "bulk",
    "unique_key": "one",
    "on_conflict": "replace",
    "max_wait": 9.0,
    "idempotency_key": "same",
    "limit_key": "disk",
    "limit": 3,
    "retry": 4,
    "timeout": 5.0,
    "progress_every": 6.0,
    "deadline": 8.0,
    "trace_id": "a" * 32,
    "scope": "here",
    "fairness_key": "ann",
    "tags": {"city": "Delft"},
}

NEEDED: dict[str, dict[str, Any]] = {
    "limit": {"limit_key": "disk"},
    "on_conflict": {"unique_key": "two"},
    "max_wait": {"unique_key": "three", "on_conflict": "debounce", "delay": 5.0},
}
"""Options that an option needs."""


async def test_every_option_of_one_task_is_an_option_of_many(scene: Scene):
    assert {"name", "payload", *OPTIONS} == set(TaskRequest.__struct_fields__)
    store, own = scene.engine.kernel.store, {"id", "root_id", "created_at", "due_at", "wake_at", "deadline_at", "blocked_by"}
    for name, value in OPTIONS.items():
        given: dict[str, Any] = {name: value} | NEEDED.get(name, {})
        plain = await store.tasks.find((await scene.api.tasks.enqueue("greet", {"n": 1})).id)
        one = await store.tasks.find((await scene.api.tasks.enqueue("greet", {"n": 1}, **given)).id)
        for key in ("unique_key", "idempotency_key"):
            given = given | {key: f"another {name}"} if key in given else given
        (made,) = (await scene.api.tasks.enqueue_many([TaskRequest("greet", {"n": 1}, **given)])).tasks
        many = await store.tasks.find(made.id)
        assert plain is not None
        assert one is not None
        assert many is not None
        kept = [each for each in one.__struct_fields__ if each not in own | {"unique_key"}]
        assert [getattr(many, each) for each in kept] == [getattr(one, each) for each in kept], name
        if name in ("delay", "at", "deadline"):
            at = {"deadline": "deadline_at"}.get(name, "wake_at")
            assert abs(getattr(many, at) - getattr(one, at)) < 50_000, name
        elif name not in ("idempotency_key", "tags", "limit"):
            assert any(getattr(many, each) != getattr(plain, each) for each in (*kept, "unique_key")), name
    assert [(each.key, each.max_running) for each in await store.operators.list_limits("default")] == [("disk", 3)]
    request = TaskRequest("greet", idempotency_key="again")
    first, second = [(await scene.api.tasks.enqueue_many([request])).tasks[0] for _ in range(2)]
    assert (second.id, second.created) == (first.id, False)
    assert len((await scene.api.tasks.list(where='tag.city = "Delft"')).tasks) == 2


async def test_pages_follow_one_another(scene: Scene):
    made = [(await scene.api.tasks.enqueue("greet", {"n": n})).id for n in range(5)]
    first = await scene.api.tasks.list(state=["pending"], limit=3)
    rest = await scene.api.tasks.list(state=["pending"], limit=3, before=first.next_before)
    assert [task.id for task in (*first.tasks, *rest.tasks)] == made[::-1]
    assert rest.next_before is None


async def test_operators_pause_resume_and_cancel(scene: Scene):
    task_id = (await scene.api.tasks.enqueue("greet")).id
    assert (await scene.api.tasks.pause(task_id)).state == "paused"
    assert (await scene.api.tasks.resume(task_id)).state == "pending"
    ended = await scene.api.tasks.cancel(task_id, reason="not now")
    assert (ended.state, ended.actor) == ("canceled", "local")
    with pytest.raises(IllegalTransition):
        await scene.api.tasks.pause(task_id)


async def test_errors_are_the_same_on_both_sides(scene: Scene):
    with pytest.raises(TaskNotFound, match=NOBODY):
        await scene.api.tasks.get(NOBODY)
    with pytest.raises(InvalidInput, match="no-id"):
        await scene.api.tasks.get("no-id")
    with pytest.raises(InvalidInput, match="limit"):
        await scene.api.tasks.list(limit=5000)


async def test_a_task_may_be_delayed_to_an_instant(scene: Scene):
    made = await scene.api.tasks.enqueue("greet", at=datetime(2099, 1, 15, 9, tzinfo=timezone(timedelta(hours=1))))
    task = await scene.api.tasks.get(made.id)
    assert task.wake_at is not None
    # the store is told how long from now, so that what passes on the way to it is added
    assert timedelta(0) <= task.wake_at - datetime(2099, 1, 15, 8, tzinfo=UTC) < timedelta(minutes=1)


async def test_instants_are_the_same_on_both_sides(scene: Scene):
    made = await scene.api.tasks.enqueue("greet")
    task = (await scene.api.tasks.list()).tasks[0]
    stored = await scene.engine.kernel.reads.get_task(made.id)
    assert task.created_at.ms == stored.created_at
    assert (await scene.api.system.time()).now.ms >= stored.created_at


async def test_reading_one_task_reads_its_row_once(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    made = await scene.api.tasks.enqueue("greet", {"name": "Ada"})
    store, read = scene.engine.kernel.store, []
    monkeypatch.setattr(store.tasks, "find", lambda task_id, find=store.tasks.find: (read.append(task_id), find(task_id))[1])
    for call in (scene.api.tasks.get, scene.api.tasks.why, scene.api.tasks.result):
        read.clear()
        await call(made.id)
        assert read == [made.id]


async def test_a_task_shows_the_caller_that_enqueued_it(scene: Scene):
    one = await scene.api.tasks.enqueue("greet", {"name": "Ada"})
    (many,) = (await scene.api.tasks.enqueue_many([TaskRequest("greet")])).tasks
    of_python = await scene.engine.enqueue("greet")
    of_program = await scene.engine.enqueue("greet", actor="shop")
    shown = {task.id: task.created_by for task in (await scene.api.tasks.list()).tasks}
    assert shown == {one.id: OPEN.actor, many.id: OPEN.actor, of_python.id: "python", of_program.id: "shop"}
    assert (await scene.api.tasks.get(one.id)).created_by == OPEN.actor
    assert (await scene.api.traces.get(one.id)).created_by == OPEN.actor
