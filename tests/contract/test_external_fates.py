"""External jobs whose workers are lost: polls that kill their workers, and retries of jobs whose fate is unknown (D72)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests.contract.databases import Database, StoreClock
from tests.contract.external import Stage, open_stage

from treadle import ExternalProductionFailure, ExternalProductionHandle, RenderEvent
from treadle.kernel.external.records import read_job
from treadle.kernel.problems import find_problems
from treadle.kernel.queue.decide import TAKEOVER_LIMIT
from treadle.model.names import DEFAULT_LIST
from treadle.model.tasks import Server
from treadle.model.values import decode
from treadle.testing import StubExternalSpecialist

HANDLE = ExternalProductionHandle("job-1", 1)


@pytest.fixture
async def stage(database: Database, clock: StoreClock) -> AsyncIterator[Stage]:
    async with open_stage(database, clock) as made:
        yield made


class Finding(StubExternalSpecialist):
    """A stub whose service finds jobs by token, except for the scripted misses; exceptions are raised."""

    def __init__(self, *args: Any, found: list[Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self.found = found
        self.asked: list[str] = []

    async def find(self, token: str) -> Any:
        self.asked.append(token)
        outcome = self.found.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


async def lose_worker(stage: Stage, task_id: str) -> None:
    """Let a worker take the task and die."""
    task, store = await stage.task(task_id), stage.engine.kernel.store
    await store.tasks.wake(10)
    assert [each.id for each in await store.tasks.claim([task.queue_id], "dead", 1000, 1)] == [task_id]
    await stage.clock.advance(1000)
    await store.tasks.wake(10)


async def serve(stage: Stage) -> None:
    """Register a live worker that has the specialist."""
    server = Server(
        id="01935b8e-7c3a-7000-8000-000000000000",
        name="s",
        host="h",
        pid=1,
        version="1",
        state="running",
        handlers=["render", "render@"],
        task_lists=[DEFAULT_LIST],
    )
    await stage.engine.kernel.store.servers.save(server)


async def reasons(stage: Stage) -> list[str]:
    engine = stage.engine
    kernel = engine.kernel
    status = await kernel.trigger_services.status.read()
    return [each.text for each in find_problems(status) if "poll" in each.code]


async def test_polls_that_lose_their_workers_back_off_and_never_use_up_the_job(stage: Stage) -> None:
    stub = StubExternalSpecialist([HANDLE, RenderEvent({"n": 1})])
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    await stage.clock.advance(1000)
    for _ in range(TAKEOVER_LIMIT):
        await lose_worker(stage, task_id)
    assert await reasons(stage) == []
    for delay in (60, 120, 240):
        await stage.tick()
        assert (stub.polled, (await stage.task(task_id)).state) == ([], "awaiting_external")
        await serve(stage)
        reason = await stage.engine.why(task_id)
        assert reason.code == "next_poll"
        assert "workers in a row were lost while they polled this job" in reason.text
        job = await stage.job(task_id)
        assert "were lost while they polled" in (job.last_error or "")
        assert job.due_at is not None
        assert job.last_polled_at == job.due_at - timedelta(seconds=delay)
        assert await reasons(stage) == ["polls of 1 external job fail: job-1"]
        await stage.check()
        await stage.tick(delay - 1)
        assert stub.polled == []
        await stage.clock.advance(1000)
        await lose_worker(stage, task_id)
    await stage.tick()
    await stage.tick(480)
    assert stub.polled == ["job-1"]
    task, job = await stage.task(task_id), await stage.job(task_id)
    stored = await stage.engine.kernel.store.records.find(job.id)
    assert stored is not None
    assert (task.takeovers, task.error, job.raised_in_row, read_job(stored).record.backs_off) == (0, None, 0, False)
    assert await reasons(stage) == []
    await stage.tick(1)
    assert (await stage.task(task_id)).state == "completed"


async def test_an_operator_can_have_a_job_that_backs_off_polled_now(stage: Stage) -> None:
    stub = StubExternalSpecialist([RenderEvent({"n": 1})])
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    await stage.clock.advance(1000)
    for _ in range(TAKEOVER_LIMIT):
        await lose_worker(stage, task_id)
    await stage.tick()
    assert stub.polled == []
    await stage.engine.kernel.external_jobs.poll_now(task_id, actor="ada")
    await stage.tick()
    assert (await stage.task(task_id)).state == "completed"


@pytest.mark.parametrize("by", ["poll", "callback", "cancel"])
async def test_polls_include_the_one_that_ended_the_job_and_a_completed_job_is_complete(stage: Stage, by: str) -> None:
    stub = StubExternalSpecialist([ExternalProductionHandle("job-1", 1, progress=0.4), RenderEvent({"n": 1})])
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    await stage.tick(1)
    if by == "poll":
        await stage.tick(1)
    elif by == "callback":
        task = await stage.task(task_id)
        await stage.engine.kernel.external_jobs.resolve(stage.engine.kernel.external_jobs.callback_of(task) or "", {"n": 1})
    else:
        await stage.engine.cancel(task_id)
    job = await stage.job(task_id)
    assert job.polls == len(stub.polled) == (2 if by == "poll" else 1)
    assert job.progress == (0.4 if by == "cancel" else 1)
    if row := stage.row():
        assert float(row["progress"]) == job.progress


async def test_why_reports_a_job_that_no_live_server_polls(stage: Stage) -> None:
    stage.engine.specialist("render", StubExternalSpecialist([HANDLE]))
    task_id = await stage.dispatch()
    reason = await stage.engine.why(task_id)
    assert reason.code == "no_worker"
    assert "no live worker has the specialist render to poll it" in reason.text
    await serve(stage)
    assert (await stage.engine.why(task_id)).code == "next_poll"
    await stage.clock.advance(3_600_000)
    await stage.engine.kernel.store.tasks.wake(10)
    assert (await stage.engine.why(task_id)).code == "no_worker"  # its server is lost, and the poll is due


async def test_claim_lists_show_polls_in_progress(stage: Stage) -> None:
    stage.engine.specialist("render", StubExternalSpecialist([HANDLE]))
    task_id = await stage.dispatch()
    await stage.clock.advance(1000)
    store = stage.engine.kernel.store
    await store.tasks.wake(10)
    assert await stage.engine.goals.objectives.claims() == []
    (task,) = await store.tasks.claim([(await stage.task(task_id)).queue_id], "poller", 1000, 1)
    (claim,) = await stage.engine.goals.objectives.claims()
    assert (claim.task_id, claim.owner_id, claim.claim_version) == (task_id, "poller", task.claim_version)


LOST_BY = ("raised", "invalid handle", "unregistered", "unexpected poll")
FOUND = {"handle": [HANDLE], "production": [RenderEvent({"n": 1})], "nothing": [None], "no answer first": [OSError("down"), HANDLE]}


async def lose_job(stage: Stage, stub: Finding, lost_by: str) -> str:
    """Dispatch a job and lose track of it; return its task."""
    stub.start_outcome = {"raised": OSError("reset"), "invalid handle": ExternalProductionHandle("job-1", -1)}.get(lost_by, HANDLE)
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    if lost_by == "unregistered":
        await stage.clock.advance(1000)
        await stage.engine.kernel.store.tasks.wake(10)
        assert await stage.engine.kernel.external_jobs.give_up([(await stage.task(task_id)).queue_id]) == 1
    elif lost_by == "unexpected poll":
        stub.outcomes.insert(0, 7)
        await stage.tick(1)
    assert (await stage.task(task_id)).state == "failed"
    stub.start_outcome = HANDLE
    return task_id


@pytest.mark.parametrize(
    ("lost_by", "found"), [*((each, "handle") for each in LOST_BY), *(("raised", each) for each in FOUND if each != "handle")]
)
async def test_retrying_a_job_with_unknown_outcome_looks_it_up_by_its_old_token(stage: Stage, lost_by: str, found: str) -> None:
    stub = Finding([RenderEvent({"n": 1})], found=list(FOUND[found]))
    task_id = await lose_job(stage, stub, lost_by)
    await stage.engine.retry(task_id)
    for seconds in (0, 30, 1):
        await stage.tick(seconds)
    assert (await stage.task(task_id)).state == "completed"
    old = stub.started[0][1]
    assert set(stub.asked) == {old}
    assert [token for _, token in stub.started[1:]] == ([] if found != "nothing" else [stub.started[-1][1]])
    assert found != "nothing" or stub.started[-1][1] != old


async def test_a_retry_of_a_job_with_a_known_outcome_does_not_look_it_up(stage: Stage) -> None:
    stub = Finding([ExternalProductionFailure("no"), RenderEvent({"n": 1})], found=[])
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    await stage.tick(1)
    await stage.engine.retry(task_id)
    for seconds in (0, 1):
        await stage.tick(seconds)
    assert (await stage.task(task_id)).state == "completed"
    assert (stub.asked, len({token for _, token in stub.started})) == ([], 2)


async def unknown_transitions(stage: Stage, task_id: str) -> list[dict[str, Any]]:
    transitions = await stage.engine.kernel.reads.list_transitions(task_id)
    return [decode(transition.data) for transition in transitions if transition.transition == "tool_call.unknown"]


async def start_and_die(stage: Stage) -> str:
    """Let a worker die while it submits a job."""
    task = await stage.engine.enqueue("render", {})
    store = stage.engine.kernel.store
    (held,) = await store.tasks.claim([(await stage.task(task.id)).queue_id], "dead", 1000, 1)
    await stage.engine.kernel.external_jobs.begin(held, held.claim)
    await stage.clock.advance(1000)
    await store.tasks.wake(10)
    return task.id


ANSWERS = (ExternalProductionFailure("no"), None, {"n": 1}, HANDLE)


@pytest.mark.parametrize("lost_by", ["raised", "invalid handle", "worker", "cancel"])
@pytest.mark.parametrize("found", ["handle", "nothing"])
async def test_a_submission_of_unknown_outcome_is_listed_until_the_service_is_queried(
    stage: Stage, lost_by: str, found: str
) -> None:
    stub = Finding([RenderEvent({"n": 1})], found=list(FOUND[found]))
    if lost_by in ("raised", "invalid handle"):
        task_id = await lose_job(stage, stub, lost_by)
    else:
        stage.engine.specialist("render", stub)
        task_id = await start_and_die(stage)
    if lost_by == "cancel":
        await stage.engine.cancel(task_id)
    (effect,) = (await stage.engine.kernel.effects.list()).effects
    (logged,) = await unknown_transitions(stage, task_id)
    assert (effect.action, effect.attempt, effect.name, effect.task_id) == ("start", 1, "render", task_id)
    assert (logged["dedupe_key"], logged["idempotency_key"]) == (effect.dedupe_key, effect.idempotency_key)
    if stub.started:
        assert effect.dedupe_key == stub.started[0][1]
    if lost_by == "cancel":
        return
    if lost_by != "worker":
        await stage.engine.retry(task_id)
    for seconds in (0, 30, 1):
        await stage.tick(seconds)
    assert (await stage.task(task_id)).state == "completed"
    assert stub.asked == [effect.dedupe_key]
    assert (await stage.engine.kernel.effects.list()).effects == []
    assert await unknown_transitions(stage, task_id) == [logged]


@pytest.mark.parametrize("returned", ANSWERS)
async def test_a_submission_with_a_response_has_a_known_outcome(stage: Stage, returned: Any) -> None:
    stub = StubExternalSpecialist([RenderEvent({"n": 1})])
    stub.start_outcome = returned
    stage.engine.specialist("render", stub)
    task_id = await stage.dispatch()
    await stage.tick(1)
    assert (await stage.engine.kernel.effects.list()).effects == []
    assert await unknown_transitions(stage, task_id) == []


async def test_each_submission_under_one_token_is_an_attempt_of_its_own(stage: Stage) -> None:
    stub = StubExternalSpecialist([RenderEvent({"n": 1})], start_outcome=OSError("reset"))
    stage.engine.specialist("render", stub, idempotent_start=True)
    task_id = await start_and_die(stage)
    await stage.tick()
    effects = (await stage.engine.kernel.effects.list()).effects
    assert {each.attempt for each in effects} == {1, 2}
    assert {each.dedupe_key for each in effects} == {stub.started[0][1]}
    assert len({each.idempotency_key for each in effects}) == 2
    assert len(await unknown_transitions(stage, task_id)) == 2
