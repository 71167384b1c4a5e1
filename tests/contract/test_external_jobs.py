"""External jobs beyond the seed's eleven tests, on every store: cancel, callbacks, lost jobs, deadlines, bad input, rebuilding."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.databases import Database, SqliteMemory, StoreClock
from tests.contract.external import SECOND, Stage, open_stage
from tests.errors import raises_code

from treadle import (
    ExternalJobLost,
    ExternalProductionFailure,
    ExternalProductionHandle,
    Production,
    RenderEvent,
    Specialist,
    TreadleError,
    UnexpectedSpecialistResultError,
)
from treadle.api.external_jobs import ExternalJobsRebuilt
from treadle.kernel.external.decide import GRACE_FOR
from treadle.kernel.external.service import RAISES_IN_ROW
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.records import ChangeRecord, RecordFilter
from treadle.kernel.store.units import Unit
from treadle.kernel.telemetry.events import PollsFailing
from treadle.model.errors import CallbackRefused, InvalidInput, Refused
from treadle.model.external import DISPATCHED, POLLED, RESOLVED, RING
from treadle.model.names import ENGINE_LIST, EXTERNAL_CANCEL
from treadle.model.tasks import Server
from treadle.model.values import decode, encode
from treadle.testing import StubExternalSpecialist

HANDLE = ExternalProductionHandle("job-1", 1)


@pytest.fixture
async def stage(database: Database, clock: StoreClock) -> AsyncIterator[Stage]:
    async with open_stage(database, clock) as made:
        yield made


class Listening(StubExternalSpecialist):
    """A stub that keeps the tokens it was given."""

    async def start(self, payload: dict[str, Any], ctx: Any) -> Any:
        self.callback_token = ctx.callback_token
        return await super().start(payload, ctx)


async def test_a_canceled_job_is_resolved_and_a_separate_task_notifies_its_service(stage: Stage) -> None:
    stub = StubExternalSpecialist()
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    done = await stage.engine.kernel.external_jobs.cancel(task_id, actor="ada", reason="not wanted")
    assert (done.state, done.error_code) == ("canceled", "canceled")
    assert (await stage.task(task_id)).state == "canceled"
    assert stub.canceled == []
    await stage.tick()
    assert stub.canceled == ["job-1"]
    (told,) = await stage.engine.kernel.store.tasks.list_matching(TaskFilter(kind=EXTERNAL_CANCEL, task_list=ENGINE_LIST), 10)
    assert (told.state, decode(told.result)) == ("completed", {"canceled": True, "external_job_id": "job-1"})
    with raises_code("external_already_resolved"):
        await stage.engine.kernel.external_jobs.cancel(task_id, actor="ada")


async def test_notifying_a_service_of_a_cancellation_is_retried(stage: Stage) -> None:
    class Away(StubExternalSpecialist):
        down = True

        async def cancel(self, external_job_id: str) -> None:
            if self.down:
                raise ConnectionError("away")
            self.canceled.append(external_job_id)

    away = Away()
    stage.engine.specialist("render", away)
    task_id = await stage.dispatch()
    await stage.engine.cancel(task_id)
    await stage.tick()
    (waiting,) = await stage.engine.kernel.store.tasks.list_matching(TaskFilter(kind=EXTERNAL_CANCEL), 10)
    assert (waiting.state, waiting.failures) == ("pending", 1)
    away.down = False
    await stage.tick(5)
    assert away.canceled == ["job-1"]


async def test_a_job_that_was_being_submitted_when_its_task_was_canceled_is_found_and_canceled(stage: Stage) -> None:
    class Submitting(StubExternalSpecialist):
        async def start(self, payload: dict[str, Any], ctx: Any) -> Any:
            await stage.engine.cancel(ctx.task_id)
            return await super().start(payload, ctx)

        async def find(self, token: str) -> Any:
            return HANDLE if token == self.started[0][1] else None

    stub = Submitting()
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    assert (await stage.task(task_id)).state == "canceled"
    assert await stage.no_record()
    await stage.tick()
    assert stub.canceled == ["job-1"]


async def test_a_callback_resolves_immediately_and_only_once(stage: Stage) -> None:
    stub = Listening()
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    external_jobs = stage.engine.kernel.external_jobs
    progressed = await external_jobs.resolve(stub.callback_token, ExternalProductionHandle("job-1", 60, "half", 0.5))
    assert (progressed.progress_hint, progressed.polls) == ("half", 1)
    assert (await stage.task(task_id)).wake_at == stage.clock.now() + 60 * SECOND
    done = await external_jobs.resolve(stub.callback_token, {"url": "x.png"})
    task = await stage.task(task_id)
    assert (done.state, task.state, decode(task.result), task.actor) == ("completed", "completed", {"url": "x.png"}, "callback")
    assert await stage.kinds(task_id) == [DISPATCHED, POLLED, RESOLVED]
    with raises_code("external_already_resolved"):
        await external_jobs.resolve(stub.callback_token, {"url": "y.png"})


async def test_a_callback_with_another_token_is_refused_without_effect(stage: Stage) -> None:
    stub = Listening()
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    for wrong in ("", "nonsense", stub.callback_token[:-1] + "0", f"{task_id}.", stub.started[0][1]):
        with pytest.raises(CallbackRefused):
            await stage.engine.kernel.external_jobs.resolve(str(wrong)[:-1] + "x", {"url": "x.png"})
    assert (await stage.task(task_id)).state == "awaiting_external"
    with pytest.raises(InvalidInput, match="callback carries"):
        await stage.engine.kernel.external_jobs.resolve(stub.callback_token, "done")  # type: ignore[arg-type]
    failed = await stage.engine.kernel.external_jobs.resolve(stub.callback_token, ExternalProductionFailure("melted"))
    assert (failed.state, failed.failure_detail, failed.error_code) == ("failed", "melted", None)
    assert (await stage.task(task_id)).error_code == "external_production_failed"


async def test_a_job_that_the_service_does_not_know_any_more_is_lost(stage: Stage) -> None:
    stage.engine.specialist("render", StubExternalSpecialist([ExternalJobLost("gone")]))
    task_id = await stage.dispatch()
    await stage.tick(1)
    assert (await stage.task(task_id)).error_code == "external_job_lost"
    assert (await stage.job(task_id)).error_code == "external_job_lost"


async def test_a_poll_of_another_type_fails_the_job(stage: Stage) -> None:
    stage.engine.specialist("render", StubExternalSpecialist([42]))
    task_id = await stage.dispatch()
    await stage.tick(1)
    task, job = await stage.task(task_id), await stage.job(task_id)
    assert (task.error_code, job.error_code) == ("poll_returned_unexpected_type", "poll_returned_unexpected_type")
    assert "unexpected type int" in (job.failure_detail or "")


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (42, "unexpected_result"),
        (ExternalProductionHandle("", 1), "empty_external_job_id"),
        (ExternalProductionHandle("a", 0), "invalid_polling_interval"),
        (ExternalProductionHandle("a", 86_401), "invalid_polling_interval"),
        (ExternalProductionHandle("a", True), "invalid_polling_interval"),
        (ExternalProductionHandle("a", 1, "x" * 4097), "progress_hint_too_long"),
        (ExternalProductionHandle("a", 1, progress=2), "invalid_progress"),
        (ExternalProductionFailure("no", "quota"), "quota"),
        (ExternalProductionFailure("no"), "external_production_failed"),
        (RuntimeError("boom"), "specialist_raised"),
    ],
)
async def test_an_invalid_or_failing_start_is_final_and_has_a_code(stage: Stage, outcome: Any, code: str) -> None:
    stage.engine.specialist("render", StubExternalSpecialist(start_outcome=outcome))
    task = await stage.task(await stage.dispatch(retry=3))
    assert (task.state, task.error_code, task.failures) == ("failed", code, 0)
    assert await stage.no_record()
    if code == "specialist_raised":
        assert decode(task.error)["message"] == "specialist raised: boom"


async def test_a_handle_needs_a_poll(stage: Stage) -> None:
    class Deaf(Specialist):
        async def start(self, payload: dict[str, Any]) -> ExternalProductionHandle:
            return HANDLE

    @stage.engine.handler("plain")
    async def plain() -> ExternalProductionHandle:
        return HANDLE

    stage.engine.specialist("render", Deaf)
    for name in ("render", "plain"):
        assert (await stage.task(await stage.dispatch(name))).error_code == "poll_not_supported"


async def test_an_invalid_handle_from_a_poll_counts_as_a_failed_poll(stage: Stage) -> None:
    stage.engine.specialist("render", StubExternalSpecialist([ExternalProductionHandle("a", -1), RenderEvent({"n": 1})]))
    task_id = await stage.dispatch()
    await stage.tick(1)
    record = await stage.job(task_id)
    assert (record.raised, record.polling_interval_seconds) == (1, 1)
    assert (record.last_error or "").startswith("invalid_polling_interval")
    await stage.tick(1)
    assert (await stage.task(task_id)).state == "completed"


async def test_a_job_past_its_deadline_fails(stage: Stage) -> None:
    stage.engine.specialist("render", StubExternalSpecialist([HANDLE] * 9, initial_polling_interval_seconds=100), deadline=5)
    task_id = await stage.dispatch()
    assert (await stage.task(task_id)).wake_at == stage.clock.now() + 5 * SECOND
    await stage.tick(5)
    assert (await stage.task(task_id)).error_code == "deadline_exceeded"
    assert (await stage.job(task_id)).error_code == "deadline_exceeded"


async def test_a_task_past_its_own_deadline_ends_its_job_too(stage: Stage) -> None:
    stage.engine.specialist("render", StubExternalSpecialist([HANDLE] * 9, initial_polling_interval_seconds=100))
    task_id = await stage.dispatch(deadline=7)
    assert (await stage.task(task_id)).wake_at == stage.clock.now() + 7 * SECOND
    await stage.tick(7)
    assert (await stage.task(task_id)).error_code == "deadline_exceeded"
    assert (await stage.job(task_id)).error_code == "deadline_exceeded"


async def test_repeated_poll_errors_are_reported(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(stage.engine.kernel.external_jobs, "_emit", said.append)
    stage.engine.specialist("render", StubExternalSpecialist([OSError("no")] * RAISES_IN_ROW))
    task_id = await stage.dispatch()
    for _ in range(RAISES_IN_ROW):
        await stage.tick(1)
    assert [event.in_row for event in said if isinstance(event, PollsFailing)] == [RAISES_IN_ROW]
    assert f"the last {RAISES_IN_ROW} raised" in (await stage.engine.why(task_id)).text


async def test_a_job_polled_for_long_costs_constant_space(stage: Stage) -> None:
    stage.engine.specialist("render", StubExternalSpecialist([HANDLE] * 40))
    task_id = await stage.dispatch()
    for _ in range(40):
        await stage.tick(1)
    job = await stage.job(task_id)
    assert job.polls == 40
    assert [event.number for event in job.events] == [0, *range(25, 41)]
    assert len(job.events) == RING + 1
    assert [transition.transition for transition in await stage.engine.kernel.reads.list_transitions(task_id)] == ["hand_off"]


async def test_records_are_rebuilt_from_their_events(stage: Stage) -> None:
    stage.engine.specialist("render", StubExternalSpecialist([ExternalProductionHandle("job-1", 1, "half")]))
    task_id = await stage.dispatch()
    await stage.tick(1)
    (stored,) = await stage.engine.kernel.store.records.list_matching(RecordFilter("external_production_record"), 10)
    wrong = encode(decode(stored.document) | {"progress_hint": "nonsense", "polls": 7})
    await stage.engine.kernel.store.commit([Unit(rows=(ChangeRecord(stored.id, stored.version, wrong),))])
    (problem,) = (await stage.engine.kernel.verify()).problems
    assert "differs from its events" in problem
    assert await stage.engine.kernel.external_upkeep.rebuild_page() == ExternalJobsRebuilt(records=1, changed=1, next_before=None)
    assert (await stage.job(task_id)).progress_hint == "half"
    assert await stage.engine.kernel.external_upkeep.rebuild_page() == ExternalJobsRebuilt(records=1, changed=0, next_before=None)


async def test_poll_now_makes_a_job_due(stage: Stage) -> None:
    stub = StubExternalSpecialist([RenderEvent({"n": 1})], initial_polling_interval_seconds=3600)
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    await stage.tick(1)
    assert stub.polled == []
    await stage.engine.kernel.external_jobs.poll_now(task_id, actor="ada")
    await stage.tick()
    assert (await stage.task(task_id)).state == "completed"
    with raises_code("external_already_resolved"):
        await stage.engine.kernel.external_jobs.poll_now(task_id, actor="ada")
    with raises_code("external_job_not_found"):
        await stage.engine.kernel.external_jobs.get("00000000-0000-7000-8000-000000000000")


async def test_an_operators_retry_submits_under_another_token(stage: Stage) -> None:
    stub = StubExternalSpecialist([ExternalProductionFailure("no"), RenderEvent({"n": 1})])
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    await stage.tick(1)
    await stage.engine.retry(task_id)
    await stage.tick()
    await stage.tick(1)
    assert (await stage.task(task_id)).state == "completed"
    assert len({token for _, token in stub.started}) == 2
    assert [job.state for job in (await stage.engine.kernel.external_jobs.list(every=True)).jobs] == ["completed", "failed"]


async def test_specialists_are_found_by_scope_and_name(stage: Stage) -> None:
    ours, theirs = StubExternalSpecialist(), StubExternalSpecialist()
    stage.engine.specialist("render", ours, scope="acme")
    stage.engine.specialist("render", theirs)
    with raises_code("handler_exists"):
        stage.engine.specialist("render", ours, scope="acme")
    task_id = await stage.dispatch(scope="acme")
    await stage.dispatch(scope="umbrella")
    assert (len(ours.started), len(theirs.started)) == (1, 1)
    assert (await stage.job(task_id)).scope == "acme"


async def test_the_seeds_method_names_and_arguments_are_accepted(stage: Stage) -> None:
    seen: list[dict[str, Any]] = []

    class Seed:
        async def produce_render(
            self, *, job_id: str, engagement_id: str, confirmed_shape_event_ref: Any, triggered_by: Any, trigger: Any, db: Any
        ) -> ExternalProductionHandle:
            seen.append({"job_id": job_id, "engagement_id": engagement_id, "trigger": trigger})
            return HANDLE

        async def poll_external_work(self, *, render_job_id: str, engagement_id: str, external_job_id: str, db: Any) -> Any:
            seen.append({"render_job_id": render_job_id, "external_job_id": external_job_id})
            return db.append_produced(RenderEvent({"url": "s.png"}))

    stage.engine.specialist("render", Seed(), scope="acme")
    task_id = await stage.dispatch(scope="acme")
    await stage.tick(1)
    assert seen == [
        {"job_id": task_id, "engagement_id": "acme", "trigger": None},
        {"render_job_id": task_id, "external_job_id": "job-1"},
    ]
    assert (await stage.task(task_id)).state == "completed"

    class Odd:
        def start(self, *, weather: str) -> None: ...

    with pytest.raises(InvalidInput, match="weather"):
        stage.engine.specialist("odd", Odd())


async def test_sync_specialists_run_in_threads_and_a_dict_is_a_production(stage: Stage) -> None:
    class Sync:
        def start(self, payload: dict[str, Any]) -> ExternalProductionHandle:
            return HANDLE

        def poll(self, external_job_id: str) -> dict[str, Any]:
            return {"job": external_job_id}

    stage.engine.specialist("render", Sync)
    task_id = await stage.dispatch()
    await stage.tick(1)
    task = await stage.task(task_id)
    assert decode(task.result) == {"job": "job-1"}
    (produced,) = await stage.engine.kernel.store.records.list_matching(RecordFilter("render_event"), 10)
    assert produced.id == (await stage.job(task_id)).render_event_object_id


async def test_appended_records_are_dropped_with_a_lost_claim(stage: Stage) -> None:
    class Fenced(StubExternalSpecialist):
        async def poll(self, external_job_id: str, ctx: Any) -> Production:
            made = ctx.append_produced({"n": 1})
            await stage.engine.cancel(ctx.task_id)
            return made

    stage.engine.specialist("render", Fenced())
    task_id = await stage.dispatch()
    await stage.tick(1)
    assert (await stage.task(task_id)).state == "canceled"
    assert await stage.engine.kernel.store.records.list_matching(RecordFilter("render_event"), 10) == []


async def test_jobs_without_a_specialist_survive_the_grace_period_of_a_restart(stage: Stage) -> None:
    def server(name: str, *handlers: str) -> Server:
        server_id = stage.engine.kernel.ids.new_id()
        return Server(
            id=server_id, name=name, host="h", pid=1, version="1", state="stopped", handlers=list(handlers), task_lists=["default"]
        )

    for each in (server("a", "render", "render@"), server("b", "other")):
        await stage.engine.kernel.store.servers.save(each)
    task = await stage.engine.enqueue("render")
    await stage.engine.kernel.external_jobs.append_dispatched(task.id, HANDLE)
    await stage.tick(2)
    assert (await stage.task(task.id)).state == "awaiting_external"
    assert (await stage.engine.why(task.id)).code == "no_worker"
    await stage.tick(GRACE_FOR / 1000)
    assert (await stage.task(task.id)).error_code == "specialist_unregistered"


async def test_a_handler_of_the_same_name_never_replaces_a_specialist(stage: Stage) -> None:
    called = []

    @stage.engine.handler("render")
    async def render(payload: Any) -> None:
        called.append(payload)

    task = await stage.engine.enqueue("render")
    await stage.engine.kernel.external_jobs.append_dispatched(task.id, HANDLE)
    await stage.tick(1)
    assert called == []
    assert (await stage.task(task.id)).error_code == "specialist_unregistered"


async def test_jobs_are_pruned_with_their_task(stage: Stage) -> None:
    stage.engine.specialist("render", StubExternalSpecialist([RenderEvent({"n": 1})]))
    await stage.dispatch()
    await stage.tick(1)
    await stage.clock.advance(60 * SECOND)
    report = await stage.engine.kernel.retention.prune(older_than=1)
    assert (report.tasks, report.records) == (1, 2)
    assert await stage.no_record()


async def test_direct_dispatch_requires_a_pending_task(stage: Stage) -> None:
    stage.engine.specialist("render", StubExternalSpecialist())
    task_id = await stage.dispatch()
    with pytest.raises(Refused):
        await stage.engine.kernel.external_jobs.append_dispatched(task_id, HANDLE)


async def test_the_view_has_the_columns_of_the_seed(stage: Stage) -> None:
    if isinstance(stage.database, SqliteMemory):
        pytest.skip("its tables cannot be looked at")
    stage.engine.specialist("render", StubExternalSpecialist())
    await stage.dispatch()
    row = stage.row()
    columns = "render_job_id declared_render_type_ref specialist_ref external_job_id polling_interval_seconds progress_hint"
    columns += " dispatched_at last_polled_at completed_at render_event_object_id failure_detail error_code"
    assert set(columns.split()) <= set(row)
    assert row["due_at"] == stage.clock.now() + SECOND


def test_the_error_of_unexpected_results_is_both() -> None:
    assert issubclass(UnexpectedSpecialistResultError, ValueError)
    assert issubclass(UnexpectedSpecialistResultError, TreadleError)


def test_the_idempotence_contract_is_in_the_docstring_of_poll() -> None:
    said = Specialist.poll.__doc__ or ""
    assert "IDEMPOTENCE CONTRACT" in said
    assert "asked the same question twice" in " ".join(said.split())
