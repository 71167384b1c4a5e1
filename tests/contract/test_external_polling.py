"""The eleven tests that the seed of external services names, on every store, at the store's own time."""

from __future__ import annotations

import asyncio
import importlib
import logging
import pydoc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.databases import Database, StoreClock
from tests.contract.external import SECOND, Stage, open_stage
from tests.limits import BOUND

from treadle import (
    ExternalPollingLoop,
    ExternalProductionFailure,
    ExternalProductionHandle,
    Production,
    RenderEvent,
    RenderSpecialist,
    Specialist,
)
from treadle.api.wire import Instant
from treadle.engine.operations import Operations
from treadle.kernel.external.records import ENTITY, read_job
from treadle.kernel.store.records import RecordFilter
from treadle.model.access import OPEN
from treadle.model.errors import InvalidInput
from treadle.model.external import DISPATCHED, POLLED, RESOLVED, ExternalProductionRecord
from treadle.model.values import decode
from treadle.testing import StubExternalRenderSpecialist


@pytest.fixture
async def stage(database: Database, clock: StoreClock) -> AsyncIterator[Stage]:
    async with open_stage(database, clock) as made:
        yield made


# 5.1 the contract


async def test_specialist_returning_handle_creates_record(stage: Stage) -> None:
    stub = StubExternalRenderSpecialist(external_job_id="farm/7", initial_polling_interval_seconds=30)
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    task, job = await stage.task(task_id), await stage.job(task_id)
    assert (task.state, task.owner_id, task.wake_at) == ("awaiting_external", None, stage.clock.now() + 30 * SECOND)
    record = job
    assert (record.render_job_id, record.declared_render_type_ref) == (task_id, "render")
    assert (record.specialist_ref, record.external_job_id) == ("StubExternalSpecialist", "farm/7")
    assert (record.polling_interval_seconds, record.progress_hint) == (30, None)
    assert (record.dispatched_at, record.last_polled_at, record.completed_at) == (Instant.of(stage.clock.now()), None, None)
    assert "state" not in ExternalProductionRecord.__struct_fields__
    assert [event.kind for event in job.events] == [DISPATCHED]
    assert [transition.transition for transition in await stage.engine.kernel.reads.list_transitions(task_id)] == ["hand_off"]
    (stored,) = await stage.engine.kernel.store.records.list_matching(RecordFilter(ENTITY), 10)
    assert stub.started == [({"shape": 7}, read_job(stored).record.token)]


async def test_specialist_returning_render_event_does_not_create_record(stage: Stage) -> None:
    stage.engine.specialist("render", StubExternalRenderSpecialist(start_outcome=RenderEvent({"url": "a.png"})))
    task_id = await stage.dispatch()
    task = await stage.task(task_id)
    assert (task.state, decode(task.result)) == ("completed", {"url": "a.png"})
    assert await stage.no_record()
    (produced,) = await stage.engine.kernel.store.records.list_matching(RecordFilter("render_event"), 10)
    assert (produced.task_id, decode(produced.document)) == (task_id, {"url": "a.png"})


async def test_specialist_returning_none_does_not_create_record(stage: Stage) -> None:
    class Failing(Specialist):
        async def start(self, payload: dict[str, Any], ctx: Any) -> None:
            return None

    stage.engine.specialist("render", Failing())
    task = await stage.task(await stage.dispatch())
    assert (task.state, task.error_code) == ("failed", "specialist_failed")
    assert await stage.no_record()


# 5.2 polling


async def test_polling_loop_calls_poll_at_interval(stage: Stage) -> None:
    handle = ExternalProductionHandle("job-1", 1)
    stub = StubExternalRenderSpecialist([handle, handle, RenderEvent({"url": "b.png"})])
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    counts = []
    for _ in range(6):
        await stage.tick(0.5)
        counts.append(len(stub.polled))
    assert counts == [0, 1, 1, 2, 2, 3]
    task, job = await stage.task(task_id), await stage.job(task_id)
    assert (task.state, decode(task.result)) == ("completed", {"url": "b.png"})
    assert [event.kind for event in job.events] == [DISPATCHED, POLLED, POLLED, RESOLVED]
    (produced,) = await stage.engine.kernel.store.records.list_matching(RecordFilter("render_event"), 10)
    assert (job.render_event_object_id, job.completed_at) == (produced.id, Instant.of(stage.clock.now()))
    assert [transition.transition for transition in await stage.engine.kernel.reads.list_transitions(task_id)] == [
        "hand_off",
        "succeed",
    ]  # polls leave none


async def test_the_events_of_a_job_are_transitions_of_its_record(stage: Stage) -> None:
    handle = ExternalProductionHandle("job-1", 1)
    further, broken = ExternalProductionHandle("job-1", 1, "halfway"), ConnectionError("no route")
    outcomes = [handle, handle, further, further, broken, broken, ExternalProductionFailure("out of filament", "no_filament")]
    stage.engine.specialist("render", StubExternalRenderSpecialist(outcomes))
    task_id = await stage.dispatch()
    for _ in outcomes:
        await stage.tick(1)
    page = await Operations(stage.engine, OPEN).events.list(entity="external_production_record")
    assert [(event.transition, event.from_state, event.to_state, event.data) for event in page.events] == [
        (DISPATCHED, "live", "live", None),
        (POLLED, "live", "live", {"poll": 1}),
        (POLLED, "live", "live", {"poll": 3}),
        (POLLED, "live", "live", {"poll": 5}),
        (RESOLVED, "live", "ended", {"poll": 7, "error_code": "no_filament"}),
    ]
    job = await stage.job(task_id)
    assert {event.entity_id for event in page.events} == {job.id}
    only_polls = await Operations(stage.engine, OPEN).events.list(transition=POLLED)
    assert [event.seq for event in only_polls.events] == [event.seq for event in page.events[1:4]]


@pytest.mark.parametrize("tick_seconds", [None, 0.25])
async def test_the_tick_of_a_loop_can_be_set_as_the_document_does(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tick_seconds: float | None
) -> None:
    module = importlib.import_module(ExternalPollingLoop.__module__)
    monkeypatch.setattr(module, "LOOP_TICK_SECONDS", 0.1)
    loop = ExternalPollingLoop(stage.engine, tick_seconds=tick_seconds)
    await loop.start()
    try:
        assert loop._host is not None
        assert loop._host._options.poll_every == (tick_seconds or 0.1)
    finally:
        await loop.stop()


class Base(RenderSpecialist):
    """A render specialist that calls the methods of its base class."""

    async def produce_render(self, **given: Any) -> Any:
        with pytest.raises(NotImplementedError, match="produce_render"):
            await super().produce_render(**given)
        return ExternalProductionHandle("job-1", 1)

    async def poll_external_work(self, *, render_job_id: str, engagement_id: str | None, external_job_id: str, db: Any) -> Any:
        with pytest.raises(NotImplementedError, match="Specialist does not support external polling"):
            await super().poll_external_work(
                render_job_id=render_job_id, engagement_id=engagement_id, external_job_id=external_job_id, db=db
            )
        return RenderEvent({"url": external_job_id})


async def test_a_render_specialist_calls_the_methods_of_its_base(stage: Stage) -> None:
    class Named(Base):
        async def produce_render(
            self, *, job_id: Any, engagement_id: Any, confirmed_shape_event_ref: Any, triggered_by: Any, trigger: Any, db: Any
        ) -> Any:
            return await super().produce_render(
                job_id=job_id,
                engagement_id=engagement_id,
                confirmed_shape_event_ref=confirmed_shape_event_ref,
                triggered_by=triggered_by,
                trigger=trigger,
                db=db,
            )

    stage.engine.specialist("render", Named())
    task_id = await stage.dispatch()
    await stage.tick(1)
    assert decode((await stage.task(task_id)).result) == {"url": "job-1"}
    assert "IDEMPOTENCE CONTRACT" in (RenderSpecialist.poll_external_work.__doc__ or "")
    assert "produce_render" in pydoc.plain(pydoc.render_doc(RenderSpecialist))


async def test_a_render_specialist_without_polling_fails_its_handle(stage: Stage) -> None:
    class Unpolled(RenderSpecialist):
        async def produce_render(
            self, *, job_id: Any, engagement_id: Any, confirmed_shape_event_ref: Any, triggered_by: Any, trigger: Any, db: Any
        ) -> Any:
            return ExternalProductionHandle("job-1", 1)

    stage.engine.specialist("render", Unpolled())
    task = await stage.task(await stage.dispatch())
    assert (task.state, task.error_code) == ("failed", "poll_not_supported")
    with pytest.raises(InvalidInput, match="produce_render"):
        stage.engine.specialist("nothing", RenderSpecialist())


async def test_a_specialist_sets_tags_when_it_starts_polls_and_produces(stage: Stage) -> None:
    outcomes = [ExternalProductionHandle("job-1", 1), RenderEvent({"url": "b.png"})]

    class Tagging(Specialist):
        def start(self, payload: dict[str, Any], ctx: Any) -> Any:
            ctx.tag(stage="started")
            return outcomes[0]

        def poll(self, external_job_id: str, ctx: Any) -> Any:
            ctx.tag(stage=f"polled {len(outcomes)}")
            return outcomes.pop(0)

    stage.engine.specialist("render", Tagging())
    task_id = await stage.dispatch()
    for expected in ("started", "polled 2", "polled 1"):
        assert await stage.engine.kernel.store.search.list_tags([task_id]) == {task_id: {"stage": f"s{expected}"}}
        await stage.tick(1)


async def test_specialist_can_update_polling_interval(stage: Stage) -> None:
    outcomes = [ExternalProductionHandle("job-1", 2), ExternalProductionHandle("job-1", 10), RenderEvent()]
    stub = StubExternalRenderSpecialist(outcomes, initial_polling_interval_seconds=1)
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    await stage.tick(1)
    assert (await stage.task(task_id)).wake_at == stage.clock.now() + 2 * SECOND
    await stage.tick(2)
    assert (await stage.job(task_id)).polling_interval_seconds == 10
    assert (await stage.task(task_id)).wake_at == stage.clock.now() + 10 * SECOND
    await stage.tick(9.999)
    assert len(stub.polled) == 2
    await stage.tick(0.001)
    assert len(stub.polled) == 3
    assert (await stage.task(task_id)).state == "completed"


async def test_progress_hint_propagates_through_record(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    outcomes = [
        ExternalProductionHandle("job-1", 1, "frame 1 of 2", 0.5),
        ExternalProductionHandle("job-1", 1, "frame 2 of 2", 1),
    ]
    stage.engine.specialist("render", StubExternalRenderSpecialist(outcomes))
    task_id = await stage.dispatch()
    with caplog.at_level(logging.INFO, "treadle"):
        for said in outcomes:
            await stage.tick(1)
            job = await stage.job(task_id)
            assert (job.progress_hint, job.progress) == (said.progress_hint, said.progress)
            assert job.events[-1].payload["progress_hint"] == said.progress_hint
            assert said.progress_hint in caplog.text
            if row := stage.row():
                assert (row["progress_hint"], row["progress"], row["last_polled_at"]) == (
                    said.progress_hint,
                    said.progress,
                    stage.clock.now(),
                )


# 5.3 failures


async def test_specialist_failure_marks_job_failed(stage: Stage) -> None:
    stub = StubExternalRenderSpecialist([ExternalProductionFailure("out of filament", "no_filament")])
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch(retry=3)  # a failure of the service is retried by no policy (D31)
    await stage.tick(1)
    task, job = await stage.task(task_id), await stage.job(task_id)
    assert (task.state, task.error_code, decode(task.error)["message"]) == ("failed", "no_filament", "out of filament")
    assert (job.failure_detail, job.error_code) == ("out of filament", "no_filament")
    assert job.events[-1].kind == RESOLVED
    assert job.events[-1].payload["failure_detail"] == "out of filament"
    if row := stage.row():
        assert (row["failure_detail"], row["error_code"], row["due_at"]) == ("out of filament", "no_filament", None)
        assert row["completed_at"] == stage.clock.now()


async def test_specialist_unregistered_marks_job_failed(stage: Stage) -> None:
    stage.engine.specialist("other", StubExternalRenderSpecialist())
    task = await stage.engine.enqueue("render")
    await stage.engine.kernel.external_jobs.append_dispatched(task.id, ExternalProductionHandle("job-1", 1))
    await stage.tick(0.5)
    assert (await stage.task(task.id)).state == "awaiting_external"  # it is not due
    await stage.tick(0.5)
    ended, job = await stage.task(task.id), await stage.job(task.id)
    assert (ended.state, ended.error_code) == ("failed", "specialist_unregistered")
    assert (job.state, job.error_code) == ("failed", "specialist_unregistered")


async def test_poll_raising_does_not_terminate_loop(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stub = StubExternalRenderSpecialist([ConnectionError("no route to the farm"), RenderEvent({"url": "c.png"})])
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    await stage.tick(1)
    task, job = await stage.task(task_id), await stage.job(task_id)
    assert "external_polling_loop.poll_raised" in caplog.text
    assert [(record.levelname) for record in caplog.records if "poll_raised" in record.message] == ["WARNING"]
    assert (task.state, task.failures) == ("awaiting_external", 0)
    assert (job.last_polled_at, job.raised, job.raised_in_row) == (Instant.of(stage.clock.now()), 1, 1)
    assert [event.kind for event in job.events] == [DISPATCHED, POLLED]
    assert "no route to the farm" in (await stage.engine.why(task_id)).text
    await stage.tick(1)
    assert (await stage.task(task_id)).state == "completed"
    assert (await stage.job(task_id)).raised_in_row == 0


# 5.4 restarts


async def test_loop_resumes_in_flight_polls_after_restart(stage: Stage) -> None:
    task = await stage.engine.enqueue("render")
    await stage.engine.kernel.external_jobs.append_dispatched(task.id, ExternalProductionHandle("job-9", 5))
    assert await stage.kinds(task.id) == [DISPATCHED]
    assert (await stage.task(task.id)).wake_at == stage.clock.now() + 5 * SECOND
    stub = StubExternalRenderSpecialist([RenderEvent({"url": "d.png"})])
    stage.engine.specialist("render", stub)
    stage.loop = ExternalPollingLoop(stage.engine)
    await stage.tick(5)
    assert stub.polled == ["job-9"]
    assert stub.started == []
    ended = await stage.task(task.id)
    assert (ended.state, decode(ended.result)) == ("completed", {"url": "d.png"})
    assert await stage.kinds(task.id) == [DISPATCHED, RESOLVED]


# 5.5 concurrency


async def test_concurrent_polls_for_different_specialists(stage: Stage) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    class Slow(Specialist):
        async def start(self, payload: dict[str, Any]) -> ExternalProductionHandle:
            return ExternalProductionHandle("slow", 1)

        async def poll(self, external_job_id: str) -> Production:
            begun.set()
            await may_end.wait()
            return Production({"slow": True})

    still = ExternalProductionHandle("fast", 1, "on it")
    stage.engine.specialist("slow", Slow())
    for name in ("fast1", "fast2"):
        stage.engine.specialist(name, StubExternalRenderSpecialist([still]))
    tasks = {name: (await stage.engine.enqueue(name)).id for name in ("slow", "fast1", "fast2")}
    await stage.loop.tick()
    await stage.clock.advance(SECOND)
    ticking = asyncio.ensure_future(stage.loop.tick())
    async with asyncio.timeout(BOUND):
        await begun.wait()
        fast, told = (tasks["fast1"], tasks["fast2"]), [[DISPATCHED, POLLED]] * 2
        while [await stage.kinds(task_id) for task_id in fast] != told:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not ticking.done()
        assert await stage.kinds(tasks["slow"]) == [DISPATCHED]
        may_end.set()
        await ticking
    assert (await stage.task(tasks["slow"])).state == "completed"
    assert await stage.kinds(tasks["slow"]) == [DISPATCHED, RESOLVED]
