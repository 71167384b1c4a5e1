"""The unit tests that the dispatch specification lists, each under its own words, on every store; and what they leave open."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.dispatch.scenes import issue

from treadle.dispatch import (
    AgentCoordinator,
    DispatchConfig,
    GitHubIssue,
    InvalidIssue,
    JobNotFound,
    MaxRetriesExceeded,
    TaskState,
    TaskStatus,
    WorkerUnavailable,
)
from treadle.model.errors import ClaimLost, IllegalTransition, InvalidInput, InvalidName, InvalidPolicy, Refused

NOBODY = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"


async def get(coordinator: AgentCoordinator, task_id: str) -> TaskState:
    found = await coordinator.get_task(task_id)
    assert found is not None
    return found


async def running(coordinator: AgentCoordinator, worker_id: str = "worker-1") -> TaskState:
    """A job that was enqueued and dequeued."""
    task_id = await coordinator.enqueue(issue())
    task = await coordinator.dequeue(worker_id)
    assert task is not None
    assert task.id == task_id
    return task


# --- 1. task enqueue ---


@pytest.mark.postgres
async def test_task_enqueued_successfully(coordinator):
    task = await get(coordinator, await coordinator.enqueue(issue(42)))
    assert (task.issue.number, task.issue.repository.full_name, task.issue.labels[0].name) == (42, "weavers/loom", "bug")
    assert (task.attempts, task.last_attempt_at, task.completed_at, task.error, task.metadata) == (0, None, None, None, {})


async def test_task_id_generated(coordinator):
    first, second = await coordinator.enqueue(issue()), await coordinator.enqueue(issue())
    assert first < second  # each its own, and in the order in which they were made


async def test_status_set_to_pending(coordinator):
    assert (await get(coordinator, await coordinator.enqueue(issue()))).status is TaskStatus.PENDING


async def test_task_persisted_to_storage(coordinator, engine):
    task_id = await coordinator.enqueue(issue(), metadata={"source": "webhook"})
    stored = await engine.kernel.store.tasks.find(task_id)
    assert stored is not None
    assert (stored.name, stored.task_list, stored.timeout_for) == ("dispatch.Issue", "dispatch", 3_600_000)
    assert (await get(coordinator, task_id)).metadata == {"source": "webhook"}


# --- 2. task dequeue ---


async def test_task_dequeued_by_worker(coordinator):
    task = await running(coordinator)
    assert isinstance(task.issue, GitHubIssue)
    assert coordinator.holds(task.id)


async def test_status_updated_to_running(coordinator, scene):
    task = await running(coordinator)
    assert task.status is TaskStatus.RUNNING
    stored = await get(coordinator, task.id)
    assert (stored.status, stored.last_attempt_at, stored.completed_at) == (TaskStatus.RUNNING, scene.clock.now(), None)


async def test_worker_id_assigned(coordinator):
    task = await running(coordinator, "worker-9")
    assert task.metadata == {"worker_id": "worker-9"}
    assert (await get(coordinator, task.id)).metadata == {"worker_id": "worker-9"}
    await coordinator.update_status(task.id, "completed")
    assert (await get(coordinator, task.id)).metadata == {"worker_id": "worker-9"}


async def test_empty_queue_returns_null(coordinator):
    assert await coordinator.dequeue("worker-1") is None


# --- 3. task status update ---


async def test_status_updated_to_completed(coordinator):
    task = await running(coordinator)
    await coordinator.update_status(task.id, TaskStatus.COMPLETED, result={"pr": 3})
    assert (await get(coordinator, task.id)).status is TaskStatus.COMPLETED
    assert not coordinator.holds(task.id)
    assert await coordinator.engine.result(task.id) == {"pr": 3}


async def test_status_updated_to_failed_with_error(coordinator):
    task = await running(coordinator)
    await coordinator.update_status(task.id, TaskStatus.FAILED, "tests do not pass")
    found = await get(coordinator, task.id)
    assert (found.status, found.error) == (TaskStatus.FAILED, "tests do not pass")


@pytest.mark.parametrize(("status", "error"), [("completed", None), ("failed", "boom")])
async def test_completion_timestamp_set(coordinator, scene, status, error):
    task = await running(coordinator)
    scene.advance(12)
    await coordinator.update_status(task.id, status, error)
    found = await get(coordinator, task.id)
    assert (found.completed_at, found.last_attempt_at) == (scene.clock.now(), scene.clock.now() - 12_000)


async def test_error_message_stored(coordinator, engine):
    task = await running(coordinator)
    await coordinator.update_status(task.id, "failed", "no space for 'build'")
    (letter,) = (await engine.kernel.dead_letters.list(name="dispatch.Issue")).letters
    assert (letter.id, letter.error_code) == (task.id, "failed")
    assert (await get(coordinator, task.id)).error == "no space for 'build'"


# --- 4. retry logic ---


async def failed(coordinator: AgentCoordinator) -> TaskState:
    task = await running(coordinator)
    await coordinator.update_status(task.id, "failed", "boom")
    return await get(coordinator, task.id)


async def test_failed_task_retried(coordinator, scene):
    task = await failed(coordinator)
    await coordinator.retry(task.id)
    assert await coordinator.dequeue("worker-2") is None  # not before its time
    scene.advance(1)
    again = await coordinator.dequeue("worker-2")
    assert again is not None
    assert (again.id, again.metadata["worker_id"]) == (task.id, "worker-2")


async def test_attempt_counter_incremented(coordinator):
    task = await failed(coordinator)
    assert task.attempts == 0
    await coordinator.retry(task.id)
    assert (await get(coordinator, task.id)).attempts == 1


async def test_status_reset_to_pending(coordinator):
    task = await failed(coordinator)
    await coordinator.retry(task.id)
    found = await get(coordinator, task.id)
    assert (found.status, found.error, found.completed_at) == (TaskStatus.PENDING, None, None)


async def test_max_retries_exceeded_throws_error(coordinator, engine, scene):
    """Four executions, attempts 0 to 3, after exactly 1, 2 and 4 s; then refused until an operator starts anew (D25)."""
    task_id = await coordinator.enqueue(issue())
    for attempts, delay_for in enumerate((0, 1_000, 2_000, 4_000)):
        if delay_for:
            scene.advance((delay_for - 1) / 1000)
            assert await coordinator.dequeue("worker-1") is None
            scene.advance(0.001)
        task = await coordinator.dequeue("worker-1")
        assert task is not None
        assert (task.id, task.attempts) == (task_id, attempts)
        await coordinator.update_status(task_id, "failed", f"boom {attempts}")
        if attempts < 3:
            await coordinator.retry(task_id)
    with pytest.raises(MaxRetriesExceeded, match="exceeded max retries") as refused:
        await coordinator.retry(task_id)
    assert (refused.value.code, refused.value.http_status) == ("MAX_RETRIES_EXCEEDED", 400)
    found = await get(coordinator, task_id)
    assert (found.status, found.attempts, found.error) == (TaskStatus.FAILED, 3, "boom 3")
    letters = engine.kernel.dead_letters
    assert (await letters.retry(name="dispatch.Issue")).done == 1
    found = await get(coordinator, task_id)
    assert (found.status, found.attempts) == (TaskStatus.PENDING, 0)
    assert (await engine.kernel.verify()).problems == ()


# --- 5. persistence ---


async def test_state_restored_after_restart(shared):
    async with AgentCoordinator(await shared.open_engine()) as first:
        task = await running(first)
        await first.update_status(task.id, "failed", "boom")
        before = await get(first, task.id)
    async with AgentCoordinator(await shared.open_engine()) as second:
        assert await get(second, task.id) == before


async def test_all_tasks_loaded_from_storage(shared):
    async with AgentCoordinator(await shared.open_engine()) as first:
        ids = [await first.enqueue(issue(number)) for number in range(1, 6)]
        await first.cancel(ids[1])
        before = await first.get_all_tasks()
    async with AgentCoordinator(await shared.open_engine()) as second:
        assert [task.id for task in await second.get_all_tasks()] == ids[::-1]
        assert await second.get_all_tasks() == before


async def test_worker_queue_restored(shared):
    async with AgentCoordinator(await shared.open_engine()) as first:
        ids = [await first.enqueue(issue(number)) for number in range(1, 4)]
        taken = await first.dequeue("worker-1")
        assert taken is not None
        await first.update_status(taken.id, "completed")
    async with AgentCoordinator(await shared.open_engine()) as second:
        found = [await second.dequeue("worker-2") for _ in range(2)]
        assert [task.id for task in found if task] == ids[1:]
        assert await second.dequeue("worker-2") is None


# --- 6. concurrency ---


async def test_multiple_workers_dequeue_different_tasks(coordinator):
    ids = {await coordinator.enqueue(issue(number)) for number in range(1, 5)}
    found = await asyncio.gather(*(coordinator.dequeue(f"worker-{n}") for n in range(4)))
    assert {task.id for task in found if task} == ids
    assert sorted(task.metadata["worker_id"] for task in found if task) == [f"worker-{n}" for n in range(4)]


async def test_no_duplicate_task_assignment(shared):
    config = DispatchConfig(max_concurrent_tasks=100)
    coordinators = [AgentCoordinator(await shared.open_engine(), config) for _ in range(4)]
    ids = [await coordinators[0].enqueue(issue(number)) for number in range(1, 41)]
    taken: list[str] = []

    async def work(coordinator: AgentCoordinator, worker_id: str) -> None:
        while (task := await coordinator.dequeue(worker_id)) is not None:
            taken.append(task.id)

    await asyncio.gather(*(work(each, f"worker-{n}-{k}") for n, each in enumerate(coordinators) for k in range(2)))
    while len(taken) < len(ids):  # a claim that met another one's locks may have found nothing
        await work(coordinators[0], "worker-last")
    assert sorted(taken) == ids
    for each in coordinators:
        await each.stop()


async def test_queue_remains_consistent(shared):
    engines = [await shared.open_engine() for _ in range(3)]
    coordinators = [AgentCoordinator(engine) for engine in engines]
    ids = [await coordinators[0].enqueue(issue(number), priority=number % 3) for number in range(1, 31)]

    async def work(number: int) -> None:
        coordinator = coordinators[number]
        for turn in range(200):
            try:
                task = await coordinator.dequeue(f"worker-{number}")
            except WorkerUnavailable:
                continue
            if task is None:
                return
            if turn % 4 == 3 and task.attempts == 0:
                await coordinator.update_status(task.id, "failed", "boom")
            else:
                await coordinator.update_status(task.id, "completed")

    await asyncio.gather(*(work(number) for number in range(3)))
    await work(0)
    everything = await coordinators[1].get_all_tasks()
    assert [task.id for task in everything] == ids[::-1]
    assert {task.status for task in everything} <= {TaskStatus.COMPLETED, TaskStatus.FAILED}
    for each in coordinators:
        await each.stop()
    assert (await engines[0].kernel.verify()).problems == ()


# --- errors ---


async def test_a_missing_job_is_none_or_task_not_found(coordinator, engine):
    other = (await engine.enqueue("somebody.Else", task_list="dispatch")).id
    for missing in (NOBODY, "task_1_abc", other):
        assert await coordinator.get_task(missing) is None
        for call in (
            coordinator.update_status(missing, "completed"),
            coordinator.update_status(missing, "cancelled"),
            coordinator.retry(missing),
            coordinator.cancel(missing),
            coordinator.get_logs(missing),
        ):
            with pytest.raises(JobNotFound) as refused:
                await call
            assert (refused.value.code, refused.value.http_status) == ("TASK_NOT_FOUND", 404)


async def test_a_draining_coordinator_is_unavailable_and_finishes_its_tasks(coordinator):
    task = await running(coordinator)
    await coordinator.enqueue(issue(8))
    coordinator.drain()
    with pytest.raises(WorkerUnavailable, match="draining") as refused:
        await coordinator.dequeue("worker-1")
    assert (refused.value.code, refused.value.http_status) == ("WORKER_UNAVAILABLE", 503)
    await coordinator.update_status(task.id, "completed")
    assert (await get(coordinator, task.id)).status is TaskStatus.COMPLETED


async def test_at_the_limit_of_running_jobs_a_worker_is_unavailable_here_and_on_other_machines(shared):
    config = DispatchConfig(max_concurrent_tasks=2)
    first, second = [AgentCoordinator(await shared.open_engine(), config) for _ in range(2)]
    for number in range(1, 5):
        await first.enqueue(issue(number))
    tasks = [await first.dequeue("worker-1"), await second.dequeue("worker-2")]
    for each in (first, second):
        with pytest.raises(WorkerUnavailable, match="on all machines"):
            await each.dequeue("worker-3")
    assert tasks[0] is not None
    await first.update_status(tasks[0].id, "completed")
    assert await second.dequeue("worker-2") is not None
    with pytest.raises(WorkerUnavailable, match="2 jobs run here"):
        await second.dequeue("worker-3")
    await first.engine.kernel.lists.limit_handler("dispatch.Issue", 3)  # an operator's word counts more
    assert await first.dequeue("worker-1") is not None
    for each in (first, second):
        await each.stop()


async def test_a_task_waiting_for_its_retry_frees_its_slot(coordinator, scene):
    one = AgentCoordinator(coordinator.engine, DispatchConfig(max_concurrent_tasks=1))
    task = await running(one)
    await one.enqueue(issue(8))
    await one.update_status(task.id, "failed", "boom", retry=True)
    found = await get(one, task.id)
    assert (found.status, found.attempts, found.error) == (TaskStatus.PENDING, 1, None)
    other = await one.dequeue("worker-1")
    assert other is not None
    assert other.issue.number == 8
    scene.advance(1)
    await one.update_status(other.id, "completed")
    assert (await one.dequeue("worker-1")) is not None
    await one.stop()


# --- claims (D51) ---


async def test_a_repeated_request_is_a_logged_no_op(coordinator, caplog):
    task = await running(coordinator)
    await coordinator.update_status(task.id, "running")
    with caplog.at_level(logging.INFO, "treadle.dispatch"):
        for _ in range(2):
            await coordinator.update_status(task.id, "failed", "boom")
        for _ in range(2):
            await coordinator.retry(task.id)
    assert [record.message.partition(" is ")[2] for record in caplog.records] == [
        "already failed: nothing was done",
        "already pending: nothing was done",
    ]
    assert (await get(coordinator, task.id)).attempts == 1


async def test_without_a_claim_the_holder_is_fenced_off(shared):
    holder, other = [AgentCoordinator(await shared.open_engine()) for _ in range(2)]
    task = await running(holder)
    await other.update_status(task.id, "completed")
    with pytest.raises(ClaimLost):
        await holder.update_status(task.id, "failed", "too late")
    assert (await get(holder, task.id)).status is TaskStatus.COMPLETED
    for each in (holder, other):
        await each.stop()
    assert (await other.engine.kernel.verify()).problems == ()


async def test_a_worker_that_lost_its_claim_cannot_settle_the_new_claim(shared):
    slow, quick = [AgentCoordinator(await shared.open_engine()) for _ in range(2)]
    task = await running(slow)
    await quick.cancel(task.id)
    await quick.engine.retry(task.id)
    assert await quick.dequeue("worker-2") is not None
    with pytest.raises(ClaimLost):
        await slow.update_status(task.id, "completed")
    with pytest.raises(ClaimLost):  # and not by trying again either
        await slow.update_status(task.id, "completed")
    assert (await get(slow, task.id)).status is TaskStatus.RUNNING
    await quick.update_status(task.id, "completed")
    for each in (slow, quick):
        await each.stop()


async def test_only_the_holder_of_a_task_can_release_it(coordinator):
    task = await running(coordinator)
    await coordinator.update_status(task.id, "pending")
    assert not coordinator.holds(task.id)
    again = await coordinator.dequeue("worker-2")
    assert again is not None
    assert (again.id, again.attempts) == (task.id, 0)
    await coordinator.update_status(task.id, "failed", "boom")
    with pytest.raises(Refused, match="retry"):
        await coordinator.update_status(task.id, "pending")
    with pytest.raises(Refused, match="dequeue"):
        await coordinator.update_status(task.id, "running")


async def test_stopping_releases_claimed_tasks(coordinator):
    task = await running(coordinator)
    await coordinator.stop()
    assert (await get(coordinator, task.id)).status is TaskStatus.PENDING
    with pytest.raises(ClaimLost):
        await coordinator.update_status(task.id, "completed")
    (server,) = await coordinator.engine.kernel.reads.list_servers()
    assert (server.name, server.state, server.service_name) == ("worker-1", "stopped", "dispatch")


async def test_illegal_transitions_are_refused(coordinator):
    task = await running(coordinator)
    await coordinator.update_status(task.id, "completed")
    with pytest.raises(IllegalTransition):
        await coordinator.update_status(task.id, "failed", "no")
    with pytest.raises(IllegalTransition):
        await coordinator.cancel(task.id)
    with pytest.raises(IllegalTransition):
        await coordinator.retry(task.id)
    other = await running(coordinator)
    with pytest.raises(IllegalTransition):
        await coordinator.retry(other.id)


# --- open questions of the specification ---


async def test_smaller_priorities_are_dequeued_first(coordinator):
    ids = [await coordinator.enqueue(issue(number), priority=priority) for number, priority in ((1, 5), (2, 0), (3, -5))]
    found = [await coordinator.dequeue("worker-1") for _ in ids]
    assert [task.id for task in found if task] == ids[::-1]


@pytest.mark.parametrize("word", ["cancelled", "canceled", TaskStatus.CANCELLED])
async def test_cancelled_is_accepted_and_canceled_is_stored(coordinator, word):
    task_id = await coordinator.enqueue(issue())
    await coordinator.update_status(task_id, word, "not wanted any more")
    await coordinator.update_status(task_id, word)
    found = await get(coordinator, task_id)
    assert (found.status, str(found.status), found.error) == (TaskStatus.CANCELED, "canceled", "not wanted any more")
    assert found.completed_at is None
    assert await coordinator.dequeue("worker-1") is None


async def test_canceling_a_running_job_takes_it_from_its_worker(coordinator):
    task = await running(coordinator)
    await coordinator.cancel(task.id)
    assert not coordinator.holds(task.id)
    with pytest.raises(ClaimLost):
        await coordinator.update_status(task.id, "completed")
    assert (await get(coordinator, task.id)).status is TaskStatus.CANCELED


async def test_desired_workers_follow_depth_and_service_time(coordinator, scene):
    empty = await coordinator.desired_workers()
    assert (empty.desired, empty.ready, empty.service_for) == (0, 0, None)
    for number in range(1, 9):
        await coordinator.enqueue(issue(number))
    first = await coordinator.dequeue("worker-1")
    assert first is not None
    scene.advance(20)
    await coordinator.update_status(first.id, "completed")
    found = await coordinator.desired_workers(concurrency=2)
    assert (found.ready, found.running, found.service_for, found.oldest_for, found.workers) == (7, 0, 20_000, 20_000, 1)
    assert found.desired == 4  # each ready one needs a slot to be on time, two to a worker
    assert (await coordinator.desired_workers(target_latency=3600, concurrency=1)).desired == 1
    assert (await coordinator.desired_workers()).concurrency == 10


# --- what somebody else put there ---


async def test_an_invalid_task_fails_when_dequeued_and_hides_no_others(coordinator, engine, caplog):
    bad = await engine.enqueue("dispatch.Issue", {"issue": {"id": 1}}, task_list="dispatch", priority=-1)
    good = await coordinator.enqueue(issue())
    with caplog.at_level(logging.WARNING, "treadle.dispatch"):
        assert [task.id for task in await coordinator.get_all_tasks()] == [good]
        assert [task.id async for task in coordinator.iter_tasks()] == [good]
    assert all(f"task {bad.id} is left out" in record.message for record in caplog.records)
    with pytest.raises(InvalidIssue):
        await coordinator.get_task(bad.id)
    taken = await coordinator.dequeue("worker-1")
    assert taken is not None
    assert (taken.id, coordinator.holds(bad.id)) == (good, False)
    assert (await engine.kernel.reads.get_task(bad)).error_code == "invalid_issue"


# --- lists, logs, keys ---


async def test_jobs_are_listed_by_status_in_pages_and_one_by_one(coordinator):
    ids = [await coordinator.enqueue(issue(number)) for number in range(1, 6)]
    await coordinator.cancel(ids[0])
    page = await coordinator.get_all_tasks(limit=2)
    rest = await coordinator.get_all_tasks(before_id=page[-1].id)
    assert [task.id for task in [*page, *rest]] == ids[::-1]
    assert [task.id for task in await coordinator.get_all_tasks(status="cancelled")] == [ids[0]]
    assert [task.id async for task in coordinator.iter_tasks(status="pending")] == ids[:0:-1]
    with pytest.raises(InvalidInput, match="1000"):
        await coordinator.get_all_tasks(limit=1001)


async def test_execution_outcomes_are_in_the_logs(coordinator, scene):
    task = await running(coordinator)
    await coordinator.update_status(task.id, "failed", "boom", retry=True)
    scene.advance(1)
    await coordinator.dequeue("worker-2")
    await coordinator.update_status(task.id, "completed")
    lines = [(line.level, line.message) for line in await coordinator.get_logs(task.id)]
    assert lines == [("error", "boom"), ("info", "Task completed successfully")]


async def test_keys_make_enqueueing_idempotent(coordinator):
    first = await coordinator.enqueue(issue(), idempotency_key="delivery-1")
    assert await coordinator.enqueue(issue(), idempotency_key="delivery-1") == first
    second = await coordinator.enqueue(issue(), unique_key="weavers/loom#7")
    assert await coordinator.enqueue(issue(), unique_key="weavers/loom#7") == second


# --- bad input ---


async def test_bad_input_is_refused_and_not_stored(coordinator):
    for bad in ("deleted", "", None):
        with pytest.raises(InvalidInput, match="is not a job status"):
            await coordinator.update_status(NOBODY, bad)
    task_id = await coordinator.enqueue(issue())
    with pytest.raises(InvalidInput, match="failed or canceled"):
        await coordinator.update_status(task_id, "completed", "an error")
    for worker_id in ("", "a\nb", 7):
        with pytest.raises(InvalidInput, match="worker id"):
            await coordinator.dequeue(worker_id)
    with pytest.raises(InvalidInput, match="priority"):
        await coordinator.enqueue(issue(), priority=10**9)
    with pytest.raises(InvalidInput, match="metadata"):
        await coordinator.enqueue(issue(), metadata=["no"])
    assert len(await coordinator.get_all_tasks()) == 1


def test_the_configuration_has_the_defaults_of_the_specification():
    config = DispatchConfig()
    assert (config.max_retries, config.poll_interval, config.task_timeout, config.max_concurrent_tasks) == (3, 5, 3600, 10)
    assert [config.retry.delay_for(failures) for failures in (1, 2, 3, 4)] == [1000, 2000, 4000, None]


@pytest.mark.parametrize(
    "bad",
    [
        {"max_retries": -1},
        {"max_retries": 1.5},
        {"poll_interval": 0},
        {"task_timeout": 0},
        {"max_concurrent_tasks": 0},
        {"task_timeout": "1h"},
    ],
)
def test_an_invalid_configuration_is_rejected(bad):
    with pytest.raises(InvalidPolicy):
        DispatchConfig(**bad)
    with pytest.raises(InvalidName):
        DispatchConfig(name="no name")
