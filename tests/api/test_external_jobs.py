"""Calls about external jobs, on an engine and over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.conftest import Scene
from tests.errors import raises_code

from treadle import ExternalPollingLoop, ExternalProductionHandle
from treadle.model.errors import InvalidInput

NOBODY = "01935b8e-7c3a-7000-8000-000000000000"


class Farm:
    """A service that says that it is done when it is asked for the second time."""

    def __init__(self) -> None:
        self.polls = 0

    async def start(self, payload: Any) -> Any:
        return ExternalProductionHandle("farm/7", 3600, "queued", 0.25)

    async def poll(self, external_job_id: str) -> Any:
        self.polls += 1
        return {"url": "a.png"} if self.polls == 2 else ExternalProductionHandle(external_job_id, 3600, "half", 0.5)


async def dispatch(scene: Scene, count: int = 1) -> tuple[ExternalPollingLoop, list[str]]:
    """Tasks whose jobs are at their service."""
    scene.engine.specialist("render", Farm())
    loop = ExternalPollingLoop(scene.engine)
    tasks = [await scene.engine.enqueue("render") for _ in range(count)]
    await loop.tick()
    return loop, [task.id for task in tasks]


async def test_a_job_is_listed_and_shown_with_its_events_and_wait_reason(scene: Scene):
    _, (task_id,) = await dispatch(scene)
    (listed,) = (await scene.api.external_jobs.list()).jobs
    assert (listed.state, listed.external_job_id, listed.progress, listed.render_job_id) == (
        "awaiting_external",
        "farm/7",
        0.25,
        task_id,
    )
    assert listed.due_at is not None
    assert listed.due_at.ms - listed.dispatched_at.ms == 3_600_000
    shown = await scene.api.external_jobs.get(task_id)
    assert (shown.id, shown.why.code) == (listed.id, "no_worker")  # no server is registered
    assert [event.kind for event in shown.events] == ["external_production_dispatched"]
    with raises_code("external_job_not_found"):
        await scene.api.external_jobs.get(NOBODY)


async def test_a_reader_does_not_learn_the_key_that_signs_callbacks(scene: Scene):
    _, (task_id,) = await dispatch(scene)
    shown = await scene.api.tasks.get(task_id)
    assert set(shown.checkpoint["@external"]) == {"token", "version", "record_id", "calls"}


async def test_a_job_that_is_made_due_is_polled_immediately(scene: Scene):
    loop, (task_id,) = await dispatch(scene)
    await loop.tick()
    assert (await scene.api.external_jobs.get(task_id)).polls == 0
    await scene.api.external_jobs.poll_now(task_id)
    await loop.tick()
    half = await scene.api.external_jobs.get(task_id)
    assert (half.polls, half.progress_hint) == (1, "half")
    await scene.api.external_jobs.poll_now(task_id)
    await loop.tick()
    ended = await scene.api.external_jobs.get(task_id)
    assert (ended.state, [event.number for event in ended.events]) == ("completed", [0, 1, 2])
    with raises_code("external_already_resolved"):
        await scene.api.external_jobs.poll_now(task_id)


async def test_a_canceled_job_has_ended(scene: Scene):
    _, (task_id,) = await dispatch(scene)
    done = await scene.api.external_jobs.cancel(task_id, reason="enough")
    assert (done.state, done.error_code) == ("canceled", "canceled")
    assert (await scene.api.external_jobs.list()).jobs == []
    assert [job.id for job in (await scene.api.external_jobs.list(every=True)).jobs] == [done.id]
    assert (await scene.api.tasks.get(task_id)).actor == "local"
    with raises_code("external_already_resolved"):
        await scene.api.external_jobs.cancel(task_id)


async def test_records_are_rebuilt_page_by_page(scene: Scene):
    await dispatch(scene, 3)
    first = await scene.api.external_jobs.rebuild(limit=2)
    rest = await scene.api.external_jobs.rebuild(limit=2, before=first.next_before)
    assert (first.records, first.changed, rest.records, rest.next_before) == (2, 0, 1, None)
    with pytest.raises(InvalidInput, match="limit"):
        await scene.api.external_jobs.rebuild(limit=0)
