"""Remote workers: what they claim is theirs alone for as long as they show that they live, and every word is fenced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.contract.databases import Database, StoreClock
from tests.contract.protocol import Bench, open_bench
from tests.errors import raises_code
from tests.limits import BOUND

from treadle import ApprovalRequest, ExternalPollingLoop, ExternalProductionHandle, RetryPolicy, TaskFailed
from treadle.api.wire import Instant
from treadle.kernel.remote_workers.held_work import HandedOut
from treadle.model.errors import ClaimLost, InvalidInput, TaskNotFound, TreadleError
from treadle.model.external import InvalidHandle
from treadle.model.tasks import Task
from treadle.model.values import decode
from treadle.testing import StubExternalRenderSpecialist


@pytest.fixture
async def bench(database: Database, clock: StoreClock) -> AsyncIterator[Bench]:
    async with open_bench(database, clock) as made:
        yield made


# claiming and completing


async def test_a_claimed_task_is_completed_with_its_result(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job", {"n": 1}, trace_id="t-1", deadline=3600)
    claimed = await bench.one(worker_id)
    assert (claimed.task.id, claimed.payload, claimed.claim_version, claimed.attempt) == (task_id, {"n": 1}, 1, 1)
    assert (claimed.lease_expires_at, claimed.lease_for, claimed.trace_id) == (bench.now() + 60_000, 60_000, "t-1")
    assert (claimed.deadline_at, claimed.checkpoint, claimed.approval_decision) == (bench.now() + 3_600_000, None, None)
    await bench.workers.complete(worker_id, task_id, 1, {"n": 2})
    assert await bench.engine.result(task_id) == {"n": 2}


async def test_big_payloads_are_opened(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    await bench.put("job", {"text": "x" * 50_000})
    assert (await bench.one(worker_id)).payload == {"text": "x" * 50_000}


@pytest.mark.parametrize("through", ["the same process", "another process"])
async def test_a_completion_reads_the_task_only_in_another_process(
    bench: Bench, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_id, task_id = await bench.worker("job"), await bench.put("job")
    await bench.one(worker_id)
    if through == "another process":
        bench.workers._handed_out = HandedOut()
    store, reads = bench.engine.kernel.store, list[str]()
    find_task = store.tasks.find

    async def counted(read_id: str) -> Task | None:
        reads.append(read_id)
        return await find_task(read_id)

    monkeypatch.setattr(store.tasks, "find", counted)
    await bench.workers.complete(worker_id, task_id, 1, {"n": 2})
    assert reads == ([] if through == "the same process" else [task_id])
    monkeypatch.undo()
    assert await bench.engine.result(task_id) == {"n": 2}


async def test_a_refused_result_can_be_resent(bench: Bench) -> None:
    worker_id, task_id = await bench.worker("job"), await bench.put("job")
    await bench.one(worker_id)
    with pytest.raises(TreadleError):
        await bench.workers.complete(worker_id, task_id, 1, {"n": object()})  # type: ignore[dict-item]
    await bench.workers.complete(worker_id, task_id, 1, {"n": 2})
    assert await bench.engine.result(task_id) == {"n": 2}


async def test_a_repeated_request_is_executed_once_and_gets_the_first_response(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job")
    claimed = await bench.one(worker_id)
    said = (worker_id, task_id, claimed.claim_version)
    await asyncio.gather(*(bench.workers.complete(*said, {"n": 1}) for _ in range(3)))
    await bench.workers.complete(*said, {"n": 2})
    assert await bench.engine.result(task_id) == {"n": 1}
    assert await bench.transitions(task_id) == ["succeed"]
    with pytest.raises(ClaimLost):
        await bench.workers.fail(*said, "too late to fail")


async def test_a_worker_that_was_too_slow_cannot_complete_and_the_result_of_the_other_stands(bench: Bench) -> None:
    slow, fast = await bench.worker("job"), await bench.worker("job")
    task_id = await bench.put("job")
    first = await bench.one(slow)
    await bench.pass_(60)
    second = await bench.one(fast)
    assert (second.task.id, second.claim_version, second.attempt, second.task.takeovers) == (task_id, 2, 2, 1)
    with pytest.raises(ClaimLost):
        await bench.workers.complete(slow, task_id, first.claim_version, {"by": "slow"})
    await bench.workers.complete(fast, task_id, second.claim_version, {"by": "fast"})
    with pytest.raises(ClaimLost):
        await bench.workers.complete(slow, task_id, first.claim_version, {"by": "slow"})
    assert await bench.engine.result(task_id) == {"by": "fast"}


async def test_a_claim_is_identified_by_worker_and_version(bench: Bench) -> None:
    one, other = await bench.worker("job"), await bench.worker("job")
    task_id = await bench.put("job")
    await bench.one(one)
    for said in ((other, task_id, 1), (one, task_id, 2)):
        for word in (bench.workers.complete(*said), bench.workers.release(*said), bench.workers.heartbeat(*said)):
            with pytest.raises(ClaimLost):
                await word
    with pytest.raises(TaskNotFound):
        await bench.workers.complete(one, one, 1)
    assert (await bench.task(task_id)).owner_id == one


# leases


async def test_heartbeats_keep_a_claim_and_silence_loses_it(bench: Bench) -> None:
    worker_id, other = await bench.worker("job"), await bench.worker("job")
    task_id = await bench.put("job")
    await bench.one(worker_id)
    for _ in range(5):
        await bench.pass_(40)
        assert await bench.workers.claim(other) == []
        held = await bench.workers.heartbeat(worker_id, task_id, 1)
        assert (held.state, held.lease_expires_at, held.lease_for) == ("held", Instant.of(bench.now() + 60_000), 60_000)
    await bench.pass_(60)
    assert (await bench.one(other)).claim_version == 2
    with pytest.raises(ClaimLost):
        await bench.workers.heartbeat(worker_id, task_id, 1)


async def test_a_lease_has_the_requested_duration(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job")
    assert (await bench.one(worker_id, lease_for=30)).lease_for == 30_000
    assert (await bench.workers.heartbeat(worker_id, task_id, 1, lease_for=90)).lease_for == 90_000
    assert (await bench.task(task_id)).wake_at == bench.now() + 90_000


@pytest.mark.parametrize("bound", ["deadline", "timeout", "progress_every"])
async def test_a_lease_never_reaches_past_the_bounds_of_the_task(bench: Bench, bound: str) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job", **{bound: 50})
    until_at = bench.now() + 50_000
    assert (await bench.one(worker_id)).lease_expires_at == until_at
    await bench.pass_(20)
    held = await bench.workers.heartbeat(worker_id, task_id, 1)
    assert (held.lease_expires_at, held.lease_for) == (Instant.of(until_at), 30_000)
    await bench.pass_(30)
    other = await bench.worker("job")
    again = await bench.workers.claim(other)
    assert [each.claim_version for each in again] == ([] if bound == "deadline" else [2])
    assert (await bench.task(task_id)).state == ("failed" if bound == "deadline" else "pending")


async def test_progress_moves_the_progress_deadline(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job", progress_every=50)
    await bench.one(worker_id)
    await bench.pass_(40)
    held = await bench.workers.progress(worker_id, task_id, 1, 0.5, "half")
    assert held.lease_expires_at == Instant.of(bench.now() + 50_000)
    assert decode((await bench.task(task_id)).progress) == {"fraction": 0.5, "message": "half"}


async def test_the_next_heartbeat_reports_a_canceled_task(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job")
    await bench.one(worker_id)
    await bench.engine.cancel(task_id)
    held = await bench.workers.heartbeat(worker_id, task_id, 1)
    assert (held.state, held.cancel_requested, held.lease_expires_at) == ("canceled", True, None)
    with pytest.raises(ClaimLost):
        await bench.workers.complete(worker_id, task_id, 1)


async def test_a_task_that_is_released_again_waits_a_second(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job")
    await bench.one(worker_id)
    await bench.workers.release(worker_id, task_id, 1)
    await bench.one(worker_id)
    await bench.workers.release(worker_id, task_id, 2)
    assert await bench.workers.claim(worker_id) == []


async def test_a_heartbeat_renews_all_claims_and_reports_the_state_of_each(bench: Bench) -> None:
    worker_id, other = await bench.worker("job"), await bench.worker("job")
    ids = [await bench.put("job") for _ in range(4)]
    await bench.workers.claim(worker_id, limit=4)
    await bench.workers.complete(worker_id, ids[1], 1)
    await bench.engine.cancel(ids[2])
    await bench.workers.release(worker_id, ids[3], 1)
    await bench.one(other)
    await bench.pass_(40)
    beaten = await bench.workers.beat(worker_id, claims=[(each, 1) for each in ids])
    assert [each.state for each in beaten.claims] == ["held", "lost", "canceled", "lost"]
    assert (await bench.task(ids[0])).wake_at == bench.now() + 60_000
    assert (beaten.worker_id, beaten.claims[0].lease_expires_at) == (worker_id, Instant.of(bench.now() + 60_000))
    server = await bench.engine.kernel.reads.get_server(worker_id)
    assert (server.running, server.heartbeat_at) == (4, bench.now())


# other ends


async def test_a_failure_is_retried_by_the_policy_of_the_task(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job", retry=RetryPolicy(retries=1, first_for=5000))
    await bench.one(worker_id)
    for _ in range(2):
        await bench.workers.fail(worker_id, task_id, 1, "no luck", "unlucky", kind="Luck")
    task = await bench.task(task_id)
    assert (task.state, task.failures, task.attempt, task.wake_at) == ("pending", 1, 2, bench.now() + 5000)
    await bench.pass_(5)
    again = await bench.one(worker_id)
    await bench.workers.fail(worker_id, task_id, again.claim_version, "no luck", "unlucky")
    await bench.workers.fail(worker_id, task_id, 1, "no luck", "unlucky")  # the first one once more, very late
    task = await bench.task(task_id)
    assert (task.state, task.error_code, await bench.transitions(task_id)) == ("failed", "unlucky", ["retry", "fail"])


@pytest.mark.parametrize("kind", ["ValueError", "builtins.ValueError"])
async def test_the_policy_selects_by_the_reported_class(bench: Bench, kind: str) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job", retry=RetryPolicy.of(3, first=5, never=(ValueError,)))
    await bench.one(worker_id)
    await bench.workers.fail(worker_id, task_id, 1, "busy", kind="ConnectionError")
    assert (await bench.task(task_id)).state == "pending"
    await bench.pass_(5)
    again = await bench.one(worker_id)
    await bench.workers.fail(worker_id, task_id, again.claim_version, "bad", kind=kind)
    with pytest.raises(TaskFailed, match="not retried: ValueError is in never") as failed:
        await bench.engine.result(task_id)
    assert isinstance(failed.value, ValueError) is ("." in kind)


async def test_a_failure_that_no_retry_can_help_is_final_and_after_wins_over_backoff(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    final = await bench.put("job", retry=3)
    await bench.one(worker_id)
    await bench.workers.fail(worker_id, final, 1, "broken", retryable=False)
    assert (await bench.task(final)).state == "failed"
    later = await bench.put("job", retry=3)
    await bench.one(worker_id)
    await bench.workers.fail(worker_id, later, 1, "busy", after=77)
    assert (await bench.task(later)).wake_at == bench.now() + 77_000


async def test_a_task_that_waits_is_due_again_with_its_checkpoint(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job")
    await bench.one(worker_id)
    for _ in range(2):
        await bench.workers.wait(worker_id, task_id, 1, 30, checkpoint={"page": 2})
    assert await bench.workers.claim(worker_id) == []
    await bench.pass_(30)
    again = await bench.one(worker_id)
    assert (again.checkpoint, again.attempt, again.claim_version) == ({"page": 2}, 1, 2)


async def test_partial_results_are_merged_and_passed_on_at_takeover(bench: Bench) -> None:
    worker_id, other = await bench.worker("job"), await bench.worker("job")
    task_id = await bench.put("job")
    await bench.one(worker_id)
    await bench.workers.partial(worker_id, task_id, 1, {"a": 1, "b": 1})
    await bench.workers.partial(worker_id, task_id, 1, {"b": 2})
    await bench.pass_(60)
    assert (await bench.one(other)).checkpoint == {"a": 1, "b": 2}
    with pytest.raises(ClaimLost):
        await bench.workers.partial(worker_id, task_id, 1, {"c": 3})


async def test_a_released_task_is_available_immediately(bench: Bench) -> None:
    worker_id, other = await bench.worker("job"), await bench.worker("job")
    task_id = await bench.put("job")
    await bench.one(worker_id)
    for _ in range(2):
        await bench.workers.release(worker_id, task_id, 1)
    second = await bench.one(other)
    assert (second.task.id, second.task.takeovers) == (task_id, 0)
    await bench.workers.release(worker_id, task_id, 1)  # said once more: nothing is taken from the other
    assert (await bench.task(task_id)).owner_id == other


async def test_a_decision_is_delivered_with_the_next_claim(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job")
    await bench.one(worker_id)
    request = ApprovalRequest.of("Shall we?", context={"amount": 5}, remind_after=60)
    for _ in range(2):
        await bench.workers.ask(worker_id, task_id, 1, request, checkpoint={"at": "ask"})
    await bench.pass_(60)
    assert await bench.workers.claim(worker_id) == []  # a reminder is due, which is no worker's business
    (approval,) = (await bench.engine.approvals.list()).approvals
    assert approval.reminders == 1
    await bench.engine.approvals.decide(approval.id, "approve", actor="ann")
    again = await bench.one(worker_id)
    assert again.approval_decision is not None
    assert (again.approval_decision["by"], again.checkpoint) == ("ann", {"at": "ask"})


async def test_a_job_is_handed_off_where_a_specialist_can_poll_it(bench: Bench) -> None:
    worker_id = await bench.worker("render")
    task_id = await bench.put("render")
    await bench.one(worker_id)
    handle = ExternalProductionHandle("farm/7", 30)
    with raises_code("poll_not_supported"):
        await bench.workers.hand_off(worker_id, task_id, 1, handle)
    assert (await bench.workers.heartbeat(worker_id, task_id, 1)).state == "held"
    bench.engine.specialist("render", StubExternalRenderSpecialist(poll_outcomes=[{"url": "a.png"}]))
    async with bench.engine.worker():
        for _ in range(2):
            await bench.workers.hand_off(worker_id, task_id, 1, handle)
    task = await bench.task(task_id)
    assert (task.state, task.wake_at) == ("awaiting_external", bench.now() + 30_000)
    assert (await bench.engine.kernel.external_jobs.get(task_id)).external_job_id == "farm/7"
    await bench.pass_(30)
    await ExternalPollingLoop(bench.engine).tick()
    assert await bench.engine.result(task_id) == {"url": "a.png"}


async def test_the_poll_of_a_job_is_left_to_its_specialist(bench: Bench) -> None:
    bench.engine.specialist("render", StubExternalRenderSpecialist(poll_outcomes=[{"url": "a.png"}]))
    worker_id = await bench.worker("render")
    task_id = await bench.put("render")
    await bench.one(worker_id)
    async with bench.engine.worker():
        await bench.workers.hand_off(worker_id, task_id, 1, ExternalProductionHandle("farm/7", 30))
    await bench.pass_(30)
    other = await bench.put("render")
    assert [each.task.id for each in await bench.workers.claim(worker_id, limit=5)] == [other]
    task = await bench.task(task_id)
    assert (task.state, task.owner_id, task.wake_at) == ("awaiting_external", None, bench.now() + 1000)
    await bench.pass_(1)
    assert await bench.workers.claim(worker_id, limit=5) == []  # its queue is left alone, so that the specialist gets it
    await ExternalPollingLoop(bench.engine).tick()
    assert await bench.engine.result(task_id) == {"url": "a.png"}
    last = await bench.put("render")
    waiting = bench.waiting_claim(worker_id)
    await bench.waits()
    await bench.pass_(1)
    assert [each.task.id for each in await asyncio.wait_for(waiting, BOUND)] == [last]


async def test_invalid_reports_are_rejected_and_the_claim_is_still_held(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job")
    await bench.one(worker_id)
    said, workers = (worker_id, task_id, 1), bench.workers
    refused = [
        (workers.complete(*said, ["a list"]), "invalid_payload"),  # type: ignore[arg-type]
        (workers.complete(*said, {"x": float("nan")}), "invalid_payload"),
        (workers.complete(*said, {"x": "y" * 3_000_000}), "payload_too_large"),
        (workers.partial(*said, 7), "invalid_payload"),  # type: ignore[arg-type]
        (workers.fail(*said, 7), "invalid_input"),  # type: ignore[arg-type]
        (workers.fail(*said, "no", ""), "invalid_input"),
        (workers.fail(*said, "no", after=-1), "invalid_policy"),
        (workers.wait(*said, -1), "invalid_policy"),
        (workers.progress(*said, 7), "invalid_input"),
        (workers.progress(*said, float("nan")), "invalid_input"),
        (workers.heartbeat(*said, lease_for=0), "invalid_policy"),
        (workers.heartbeat(*said, lease_for=100_000), "invalid_policy"),
        (workers.log(*said, []), "invalid_input"),
        (workers.log(*said, [{"message": "m", "level": "loud"}]), "invalid_input"),
        (workers.hand_off(*said, ExternalProductionHandle("", 1)), "invalid_external_handle"),
        (workers.ask(*said, ApprovalRequest(title="")), "invalid_approval"),
        (workers.complete(worker_id, task_id, "1"), "invalid_input"),  # type: ignore[arg-type]
        (workers.complete("somebody", task_id, 1), "invalid_input"),
    ]
    for word, code in refused:
        with pytest.raises(TreadleError) as caught:
            await word
        assert caught.value.code == code
        assert isinstance(caught.value, InvalidInput | InvalidHandle)
    assert (await workers.heartbeat(*said)).state == "held"
    assert await bench.transitions(task_id) == []


async def test_lines_are_written_about_the_task(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job")
    await bench.one(worker_id)
    await bench.workers.log(
        worker_id, task_id, 1, [{"message": "one"}, {"message": "two", "level": "warning", "details": {"n": 2}}]
    )
    lines = await bench.engine.kernel.reads.list_lines(task_id)
    assert [(line.message, line.level, line.public_details) for line in lines] == [
        ("one", "info", {}),
        ("two", "warning", {"n": 2}),
    ]
    await bench.workers.complete(worker_id, task_id, 1)
    with pytest.raises(ClaimLost):
        await bench.workers.log(worker_id, task_id, 1, [{"message": "three"}])


# what is handed out


async def test_tasks_past_their_deadline_are_ended_and_not_handed_out(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job", deadline=10)
    await bench.pass_(10)
    live = await bench.put("job")
    assert [each.task.id for each in await bench.workers.claim(worker_id)] == [live]
    task = await bench.task(task_id)
    assert (task.state, task.error_code) == ("failed", "deadline_exceeded")


async def test_a_task_that_outlived_too_many_workers_is_a_dead_letter(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job")
    for version in range(1, 6):
        assert (await bench.one(worker_id)).claim_version == version
        await bench.pass_(60)
    assert await bench.workers.claim(worker_id) == []
    task = await bench.task(task_id)
    assert (task.state, task.error_code) == ("failed", "takeovers_exhausted")


async def test_a_worker_claims_tasks_matching_its_handlers_and_lists(bench: Bench) -> None:
    names = ("billing.Charge", "billing.Refund", "Charge", "mail.Send")
    for name in names:
        await bench.put(name)
        await bench.put(name, task_list="other")

    async def gets(*handlers: str, **options: object) -> list[str]:
        worker_id = await bench.worker(*handlers, task_lists=("default", "other"))
        claimed = await bench.workers.claim(worker_id, limit=100, **options)  # type: ignore[arg-type]
        assert await bench.workers.leave(worker_id) == len(claimed)
        return sorted(f"{each.task.name}@{each.task.task_list}" for each in claimed)

    assert await gets("billing.*", task_lists=["default"]) == ["billing.Charge@default", "billing.Refund@default"]
    assert await gets("Charge", allowed={"other"}) == ["Charge@other", "billing.Charge@other"]
    assert await gets("*", names=["Send"], allowed={"default"}) == ["mail.Send@default"]
    assert await gets("mail.Send", names=["billing.*"]) == []
    assert len(await gets("*")) == 8
    worker_id = await bench.worker("*")
    with pytest.raises(TreadleError, match="serves none of those"):
        await bench.workers.claim(worker_id, allowed={"elsewhere"})


async def test_durable_functions_and_the_engines_own_work_are_never_handed_out(bench: Bench) -> None:
    @bench.engine.function("report")
    async def report(payload: object, ctx: object) -> None:
        return None

    await bench.engine.start_function("report")
    await bench.engine.schedules.create("nightly", every=60, task="job")
    worker_id = await bench.worker("*", task_lists=("default", "engine"))
    assert await bench.workers.claim(worker_id, limit=100) == []


# servers


async def test_a_worker_appears_as_a_server_to_other_processes(bench: Bench) -> None:
    task_id = await bench.put("billing.Charge")
    assert (await bench.engine.why(task_id)).code == "no_worker"
    worker_id = await bench.worker("billing.*", name="till-3", concurrency=4)
    (shown,) = await bench.engine.kernel.reads.list_servers()
    assert (shown.id, shown.name, shown.state, shown.concurrency) == (worker_id, "till-3", "running", 4)
    assert (await bench.engine.why(task_id)).code == "ready"
    assert (await bench.engine.kernel.reads.desired_workers()).workers == 1
    await bench.one(worker_id)
    assert "the remote worker till-3" in (await bench.engine.why(task_id)).text
    await bench.pass_(31)
    (shown,) = await bench.engine.kernel.reads.list_servers()
    assert (shown.state, (await bench.engine.why(task_id)).code) == ("lost", "owner_lost")
    await bench.workers.heartbeat(worker_id, task_id, 1)
    (shown,) = await bench.engine.kernel.reads.list_servers()
    assert shown.state == "running"


async def test_a_worker_that_heartbeats_through_another_process_is_alive(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job")
    await bench.one(worker_id)
    bench.workers._presence._known.clear()  # as in a process to which it has never come
    for _ in range(4):
        await bench.pass_(10)
        await bench.workers.heartbeat(worker_id, task_id, 1)
    (shown,) = await bench.engine.kernel.reads.list_servers()
    assert (shown.state, shown.heartbeat_at) == ("running", bench.now())


async def test_workers_that_were_forgotten_are_looked_up_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.kernel.remote_workers.held_work._MAX_CACHED_WORKERS", 2)
    workers = [await bench.worker("job", actor=f"actor-{number}") for number in range(4)]
    assert list(bench.workers._presence._known) == workers[2:]
    assert [await bench.workers.registered_by(each) for each in workers] == [f"actor-{number}" for number in range(4)]
    assert await bench.workers.claim(workers[0]) == []
    await bench.workers.leave(workers[0])
    assert await bench.workers.registered_by(workers[0]) == "actor-0"  # what it has said, it may say again
    with raises_code("worker_not_found"):
        await bench.workers.claim(workers[0])


async def test_tasks_handled_by_a_worker_are_counted(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    ids = [await bench.put("job") for _ in range(4)]
    await bench.workers.claim(worker_id, limit=4)
    await bench.workers.complete(worker_id, ids[0], 1)
    await bench.workers.complete(worker_id, ids[1], 1)
    await bench.workers.fail(worker_id, ids[2], 1, "no")
    await bench.workers.release(worker_id, ids[3], 1)
    await bench.workers.beat(worker_id, running=0)
    server = await bench.engine.kernel.reads.get_server(worker_id)
    assert (server.handled, server.failed, server.running) == (3, 1, 0)


async def test_a_deregistered_worker_holds_no_claims_and_is_unknown(bench: Bench) -> None:
    worker_id, other = await bench.worker("job"), await bench.worker("job")
    ids = {await bench.put("job") for _ in range(3)}
    kept = await bench.one(other)
    await bench.workers.claim(worker_id, limit=2)
    waiting = bench.waiting_claim(worker_id)
    await bench.waits()
    assert await bench.workers.leave(worker_id) == 2
    assert await asyncio.wait_for(waiting, BOUND) == []
    for word in (bench.workers.claim(worker_id), bench.workers.beat(worker_id), bench.workers.leave(worker_id)):
        with raises_code("worker_not_found"):
            await word
    assert {each.task.id for each in await bench.workers.claim(other, limit=10)} == ids - {kept.task.id}


async def test_a_server_that_hosts_workers_is_not_a_remote_worker(bench: Bench) -> None:
    async with bench.engine.worker() as host:
        for word in (bench.workers.claim(host.owner_id), bench.workers.leave(host.owner_id)):
            with raises_code("worker_not_found"):
                await word
        (shown,) = await bench.engine.kernel.reads.list_servers()
        assert shown.state == "running"
