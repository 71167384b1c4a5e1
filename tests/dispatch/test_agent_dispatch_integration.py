"""The integration tests that the dispatch specification lists: the whole way, a worker that dies, a database that is away."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from tests.crash.private_server import private_server
from tests.crash.test_lease_sidecar import sidecars_of
from tests.dispatch.scenes import Scene, issue, sleeping, until
from tests.engines import SHARED, url_of
from tests.limits import BOUND

from treadle import Engine
from treadle.dispatch import AgentCoordinator, DispatchConfig, StorageError, TaskState, TaskStatus
from treadle.kernel.telemetry.events import LoopError, StoreTrouble, TelemetryEvent
from treadle.model.errors import ClaimLost, NonRetryable, StoreError
from treadle.model.outcomes import Waiting
from treadle.settings import Settings, child_environment
from treadle.testing import ManualClock

ROOT = Path(__file__).parents[2]


async def status(coordinator: AgentCoordinator, task_id: str) -> TaskStatus:
    found = await coordinator.get_task(task_id)
    assert found is not None
    return found.status


async def is_(coordinator: AgentCoordinator, task_id: str, wanted: TaskStatus) -> bool:
    return await status(coordinator, task_id) is wanted


async def logged(coordinator: AgentCoordinator, task_id: str) -> bool:
    """Whether there is a log line, which is written after the commit."""
    return bool(await coordinator.get_logs(task_id))


# --- 1. full workflow ---


@pytest.mark.postgres
async def test_enqueue_task_dequeue_complete(coordinator):
    task_id = await coordinator.enqueue(issue())
    task = await coordinator.dequeue("worker-1")
    assert task is not None
    await coordinator.update_status(task.id, TaskStatus.COMPLETED)
    assert (task.id, await status(coordinator, task_id)) == (task_id, TaskStatus.COMPLETED)


async def test_verify_all_status_transitions(coordinator, engine, scene):
    task_id = await coordinator.enqueue(issue())
    seen = [await status(coordinator, task_id)]

    async def note() -> None:
        seen.append(await status(coordinator, task_id))

    await coordinator.dequeue("worker-1")
    await note()
    await coordinator.update_status(task_id, "failed", "boom")
    await note()
    await coordinator.retry(task_id)
    await note()
    scene.advance(1)
    await coordinator.dequeue("worker-1")
    await note()
    await coordinator.update_status(task_id, "completed")
    await note()
    assert seen == ["pending", "running", "failed", "pending", "running", "completed"]
    assert [transition.transition for transition in await engine.kernel.reads.list_transitions(task_id)] == [
        "fail",
        "requeue",
        "succeed",
    ]


async def test_verify_database_updates(shared):
    """Another process sees a change in the database immediately."""
    async with AgentCoordinator(await shared.open_engine()) as worker:
        reader = AgentCoordinator(await shared.open_engine())
        task_id = await worker.enqueue(issue())
        assert await status(reader, task_id) is TaskStatus.PENDING
        await worker.dequeue("worker-1")
        assert await status(reader, task_id) is TaskStatus.RUNNING
        await worker.update_status(task_id, "completed")
        assert await status(reader, task_id) is TaskStatus.COMPLETED
        assert [line.message for line in await reader.get_logs(task_id)] == ["Task completed successfully"]
        assert (await reader.engine.kernel.verify()).problems == ()


async def test_a_worker_loop_runs_jobs_to_their_end(coordinator):
    seen: list[TaskState] = []

    async def solve(task: TaskState, ctx: Any) -> dict[str, Any]:
        seen.append(task)
        ctx.log("cloning")
        return {"pr": task.issue.number * 10}

    await coordinator.start(solve, worker_id="worker-1")
    ids = [await coordinator.enqueue(issue(number)) for number in (1, 2, 3)]
    results = [await coordinator.engine.result(task_id, timeout=BOUND) for task_id in ids]
    assert results == [{"pr": 10}, {"pr": 20}, {"pr": 30}]
    assert {(task.status, task.metadata["worker_id"], task.attempts) for task in seen} == {("running", "worker-1", 0)}
    await coordinator.stop()  # flushes the lines
    found = await coordinator.get_task(ids[0])
    assert found is not None
    assert (found.status, found.metadata) == (TaskStatus.COMPLETED, {"worker_id": "worker-1"})
    assert [line.message for line in await coordinator.get_logs(ids[0])] == ["cloning", "Task completed successfully"]


async def test_a_worker_loop_logs_outcomes_of_jobs_only(coordinator, engine):
    """The worker of a coordinator also settles the engine's own tasks, such as those of schedules; these are not jobs."""
    await coordinator.start(lambda task: None, worker_id="worker-1")
    schedule = await engine.schedules.create("soon", at=datetime(2020, 1, 1, tzinfo=UTC), task="nobody", catch_up="latest")

    async def fired() -> bool:
        return bool((await engine.schedules.get(schedule.id)).fired)

    await until(fired)
    await coordinator.stop()  # flushes the log lines
    assert await engine.kernel.store.log.list_lines(schedule.task_id, 10) == []


async def test_a_worker_loop_retries_a_failing_job_three_times_after_1_2_and_4_seconds(coordinator, scene, engine):
    started: list[tuple[int, int]] = []

    def solve(task: TaskState) -> None:  # sync handlers run in threads
        started.append((task.attempts, scene.clock.now()))
        raise RuntimeError(f"boom {task.attempts}")

    begun_at = scene.clock.now()
    await coordinator.start(solve, worker_id="worker-1")
    task_id = await coordinator.enqueue(issue())

    async def waits(executions: int) -> bool:
        found = await engine.kernel.reads.get_task(task_id)
        return found.failures == executions and found.owner_id is None

    for executions, delay in ((1, 1.0), (2, 2.0), (3, 4.0)):
        await until(lambda executions=executions: waits(executions))
        scene.advance(delay - 0.001)
        assert len(started) == executions
        scene.advance(0.001)
    await until(lambda: is_(coordinator, task_id, TaskStatus.FAILED))
    await coordinator.stop()
    assert started == [(0, begun_at), (1, begun_at + 1_000), (2, begun_at + 3_000), (3, begun_at + 7_000)]
    lines = [(line.level, line.message) for line in await coordinator.get_logs(task_id)]
    assert lines == [("error", f"boom {n}") for n in range(4)]
    (letter,) = (await engine.kernel.dead_letters.list()).letters
    assert letter.id == task_id


async def test_non_retryable_errors_fail_immediately_and_a_wait_keeps_its_checkpoint(coordinator, scene):
    async def solve(task: TaskState) -> Any:
        if task.issue.number == 1:
            raise NonRetryable("this is no bug")
        if "checkpoint" not in task.metadata:
            return Waiting(1_000, checkpoint={"branch": "fix-2"})
        return {"branch": task.metadata["checkpoint"]["branch"], "attempts": task.attempts}

    await coordinator.start(solve)
    hopeless, patient = await coordinator.enqueue(issue(1)), await coordinator.enqueue(issue(2))
    await until(lambda: is_(coordinator, hopeless, TaskStatus.FAILED))

    async def waits() -> bool:
        found = await coordinator.get_task(patient)
        return found is not None and "checkpoint" in found.metadata and found.status is TaskStatus.PENDING

    await until(waits)
    scene.advance(1)
    assert await coordinator.engine.result(patient, timeout=BOUND) == {"branch": "fix-2", "attempts": 0}


async def test_concurrent_jobs_stay_within_the_limit(coordinator):
    running = most = 0

    async def solve(_: TaskState) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)  # others would begin meanwhile
        running -= 1

    workers = [AgentCoordinator(coordinator.engine, DispatchConfig(max_concurrent_tasks=3)) for _ in range(2)]
    for each in workers:
        await each.start(solve)
    ids = [await workers[0].enqueue(issue(number)) for number in range(1, 21)]
    for task_id in ids:
        await coordinator.engine.result(task_id, timeout=BOUND)
    for each in workers:
        await each.stop()
    assert 1 <= most <= 3


async def test_a_malformed_foreign_job_fails_without_a_retry(coordinator, engine):
    await coordinator.start(lambda task: None)
    task = await engine.enqueue("dispatch.Issue", {"issue": {"id": 1}}, task_list="dispatch", retry=3)
    await until(lambda: _has_failed(engine, task.id))
    assert (await engine.kernel.reads.get_task(task.id)).error_code == "invalid_issue"


async def _has_failed(engine: Engine, task_id: str) -> bool:
    return (await engine.kernel.reads.get_task(task_id)).state == "failed"


# --- 2. worker failure ---


@contextmanager
def a_process(mode: str, url: str, *kernel: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.dispatch.child", mode, url, *kernel],
        cwd=ROOT,
        env=child_environment(**environment),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


async def told(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).split()


@pytest.mark.parametrize("mode", ["dequeue", "run"])
@pytest.mark.parametrize("kind", SHARED)
async def test_worker_crashes_during_execution(mode, kind, request, tmp_path):
    """Without takeover by evidence, the task stays running while its lease does, then the next worker gets it; a crash is not
    counted as a failed attempt."""
    url = url_of(kind, request, tmp_path)
    async with Engine(url, settings=Settings(fast_takeover=False)) as engine:
        async with AgentCoordinator(engine) as coordinator:
            task_id = await coordinator.enqueue(issue())
            with a_process(mode, url, TREADLE_FAST_TAKEOVER="0") as process:
                assert await told(process) == [task_id, "doomed"]
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            left = await coordinator.get_task(task_id)
            assert left is not None
            assert (left.status, left.metadata["worker_id"]) == (TaskStatus.RUNNING, "doomed")
            assert await coordinator.dequeue("worker-2") is None

            owner_id = (await engine.kernel.reads.get_task(task_id)).owner_id
            assert await engine.kernel.store.tasks.expire_leases_of([owner_id or ""]) == 1

            async def back() -> bool:
                return await coordinator.dequeue("worker-2") is not None

            await until(back)
            again = await coordinator.get_task(task_id)
            assert again is not None
            assert (again.status, again.attempts, again.metadata["worker_id"]) == (TaskStatus.RUNNING, 0, "worker-2")
            await coordinator.update_status(task_id, "completed")
        assert [transition.transition for transition in await engine.kernel.reads.list_transitions(task_id)] == [
            "expire",
            "succeed",
        ]
        assert (await engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("observer", ["worker", "coordinator"])
@pytest.mark.parametrize(
    ("kind", "kernel", "evidence"),
    [
        ("sqlite", (), "process"),
        pytest.param("postgres", (), "process", marks=pytest.mark.postgres_all),
        pytest.param("postgres", ("another machine",), "session", marks=pytest.mark.postgres_all),
    ],
    ids=lambda each: each if isinstance(each, str) else "".join(each) or "same machine",
)
async def test_jobs_of_a_coordinator_that_was_killed_are_free_before_their_lease_expires(
    kind, kernel, evidence, observer, request, tmp_path
):
    """Its process and its lease sidecar are killed; others see that, or that its session with the database has ended."""
    url = url_of(kind, request, tmp_path)
    async with Engine(url, settings=Settings()) as engine, AgentCoordinator(engine) as coordinator:
        task_id = await coordinator.enqueue(issue())
        with a_process("dequeue", url, *kernel) as process:
            assert await told(process) == [task_id, "doomed"]
            ends_at = (await engine.kernel.reads.get_task(task_id)).wake_at
            process.send_signal(signal.SIGSTOP)  # neither of them sees the end of the other
            for pid in (*sidecars_of(process.pid), process.pid):
                os.kill(int(pid), signal.SIGKILL)
            process.wait()

        async def free() -> bool:
            return (await engine.kernel.reads.get_task(task_id)).owner_id is None

        async def back() -> bool:
            return await coordinator.dequeue("worker-2") is not None

        if observer == "worker":
            async with engine.worker():  # one that looks for dead workers when it starts, and from then on
                await until(free)
        await until(back)
        assert await engine.kernel.store.now() < ends_at
        (dead,) = [each for each in await engine.kernel.store.servers.list_all() if each.pid == process.pid]
        assert (dead.state, dead.evidence) == ("stopped", evidence)
        await coordinator.update_status(task_id, "completed")
        assert [transition.transition for transition in await engine.kernel.reads.list_transitions(task_id)] == [
            "expire",
            "succeed",
        ]


async def test_task_stays_in_running_state_while_its_worker_renews_the_lease(shared):
    """Two minutes with a lease of one: the lease renewer renews, so that nobody else gets it."""
    holder, other = [AgentCoordinator(await shared.open_engine()) for _ in range(2)]
    task_id = await holder.enqueue(issue())
    await holder.dequeue("worker-1")
    for _ in range(6):
        shared.advance(20)
        beat_at = shared.clock.now()

        async def renewed(beat_at: int = beat_at) -> bool:
            found = await holder.engine.kernel.store.tasks.find(task_id)
            return found is not None and (found.heartbeat_at or 0) >= beat_at

        await until(renewed)
        assert await other.dequeue("worker-2") is None
    await holder.update_status(task_id, "completed")
    for each in (holder, other):
        await each.stop()


async def test_timeout_mechanism_reclaims_task(coordinator, scene):
    """A worker that lives and hangs loses the job after an hour, which counts as a failed attempt."""
    task_id = await coordinator.enqueue(issue())
    await coordinator.dequeue("worker-1")
    await sleeping(scene.clock)
    scene.advance(3_599)
    await asyncio.sleep(0)
    assert await status(coordinator, task_id) is TaskStatus.RUNNING
    scene.advance(1)
    await until(lambda: is_(coordinator, task_id, TaskStatus.PENDING))
    found = await coordinator.get_task(task_id)
    assert found is not None
    assert (found.attempts, found.error) == (1, None)
    await until(lambda: logged(coordinator, task_id))
    (line,) = await coordinator.get_logs(task_id)
    assert line.message == "The attempt took longer than 3600 s and was stopped."
    with pytest.raises(ClaimLost):
        await coordinator.update_status(task_id, "completed")
    scene.advance(1)
    again = await coordinator.dequeue("worker-2")
    assert again is not None
    assert again.id == task_id


async def test_a_handler_that_takes_too_long_is_stopped_and_retried(engine):
    stopped = asyncio.Event()

    async def solve(task: TaskState) -> None:
        if task.attempts == 0:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

    async with AgentCoordinator(engine, DispatchConfig(task_timeout=5)) as coordinator:
        await coordinator.start(solve)
        task_id = await coordinator.enqueue(issue())
        await asyncio.wait_for(stopped.wait(), BOUND)
        await until(lambda: is_(coordinator, task_id, TaskStatus.PENDING))
        found = await coordinator.get_task(task_id)
        assert found is not None
        assert found.attempts == 1


async def test_a_job_that_kills_its_workers_goes_to_the_dead_letters(shared):
    """Five holders in a row that lost it: the sixth does not get it."""
    engine = await shared.open_engine()
    async with AgentCoordinator(engine) as coordinator:
        task_id = await coordinator.enqueue(issue())
        (queue_id,) = (await engine.kernel.store.tasks.list_queues()).keys()
        for number in range(5):
            assert len(await engine.kernel.store.tasks.claim([queue_id], f"dead-{number}", 1_000, 1)) == 1
            shared.advance(1)
            await engine.kernel.store.tasks.wake(10)
        assert await coordinator.dequeue("worker-1") is None
        found = await coordinator.get_task(task_id)
        assert found is not None
        assert found.status is TaskStatus.FAILED
        assert "5 workers in a row lost this task" in (found.error or "")


# --- 3. database failure ---


class Trouble:
    """Takes a table away from under a store, and puts it back: every statement on it fails at once."""

    def __init__(self, scene: Scene, request: pytest.FixtureRequest, folder: Path) -> None:
        self._file = str(folder / "treadle.db") if scene.kind == "sqlite" else None
        self._admin: psycopg.Connection[Any] | None = None
        if self._file is None:
            self._admin = request.getfixturevalue("postgres_admin")
            self._schema = request.getfixturevalue("postgres_schema")

    def _rename(self, old: str, new: str) -> None:
        if self._file is not None:
            connection = apsw.Connection(self._file)
            connection.set_busy_timeout(5_000)
            connection.execute("pragma legacy_alter_table = on")
            connection.execute(f"alter table {old} rename to {new}")
            connection.close()
        else:
            assert self._admin is not None
            self._admin.execute(f'alter table "{self._schema}".{old} rename to {new}')

    def begin(self, table: str = "tasks") -> None:
        self._rename(table, "away")

    def end(self, table: str = "tasks") -> None:
        self._rename("away", table)


@pytest.fixture
def trouble(shared: Scene, request: pytest.FixtureRequest, tmp_path: Path) -> Trouble:
    return Trouble(shared, request, tmp_path)


class Calls:
    """Calls of a coordinator that meet trouble: each try is told before the clock is waited for."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.events: list[TelemetryEvent] = []

    async def tries(self, doing: str, count: int) -> list[StoreTrouble]:
        """The events reported for that number of failed attempts."""

        def told() -> list[StoreTrouble]:
            return [event for event in self.events if isinstance(event, StoreTrouble) and event.doing == doing]

        await until(lambda: len(told()) >= count)
        return told()

    async def refused(self, doing: str, call: Awaitable[Any]) -> StorageError:
        """The call fails four times, 1, 2 and 4 s apart, and then says so."""
        self.events.clear()
        calling = asyncio.ensure_future(call)
        for count, delay in enumerate((1.0, 2.0, 4.0), 1):
            assert (await self.tries(doing, count))[-1].again_in == delay
            self._scene.advance(delay - 0.001)
            assert not calling.done()
            self._scene.advance(0.001)
        with pytest.raises(StorageError, match=f"4 times while {doing}") as refused:
            await asyncio.wait_for(calling, BOUND)
        self._scene.advance(3)  # the committer's own pause, so that the next call is sent at once
        return refused.value


async def test_database_unavailable(shared, trouble):
    """Four tries, 1, 2 and 4 s apart, then STORAGE_ERROR, whatever the call; and when it is back, all is as it was."""
    calls = Calls(shared)
    coordinator = AgentCoordinator(await shared.open_engine(emit=calls.events.append))
    task_id = await coordinator.enqueue(issue())
    trouble.begin()
    for doing, call in (
        ("enqueueing a job", coordinator.enqueue(issue())),
        ("dequeueing a job", coordinator.dequeue("worker-1")),
        ("reading a job", coordinator.update_status(task_id, "completed")),
        ("reading a job", coordinator.retry(task_id)),
        ("reading a job", coordinator.cancel(task_id)),
        ("reading a job", coordinator.get_task(task_id)),
        ("listing jobs", coordinator.get_all_tasks()),
        ("measuring the load", coordinator.desired_workers()),
    ):
        error = await calls.refused(doing, call)
        assert (error.code, error.http_status) == ("STORAGE_ERROR", 500)
        assert isinstance(error, StoreError)
    trouble.end()
    assert [task.status for task in await coordinator.get_all_tasks()] == [TaskStatus.PENDING]
    await coordinator.stop()


async def test_retry_logic_activated(shared, trouble):
    """A call that meets the database again on its third try succeeds, and does what it does once."""
    calls = Calls(shared)
    coordinator = AgentCoordinator(await shared.open_engine(emit=calls.events.append))
    trouble.begin()
    enqueueing = asyncio.ensure_future(coordinator.enqueue(issue()))
    await calls.tries("enqueueing a job", 1)
    shared.advance(1)
    await calls.tries("enqueueing a job", 2)
    trouble.end()
    shared.advance(2)
    task_id = await asyncio.wait_for(enqueueing, BOUND)
    assert [event.again_in for event in await calls.tries("enqueueing a job", 2)] == [1.0, 2.0]
    assert [task.id for task in await coordinator.get_all_tasks()] == [task_id]


async def test_error_handling_graceful_degradation(shared, trouble):
    """An outcome that could not be stored is not lost: the job stays held and is settled when the database is back."""
    calls = Calls(shared)
    coordinator = AgentCoordinator(await shared.open_engine(emit=calls.events.append))
    task_id = await coordinator.enqueue(issue())
    await coordinator.dequeue("worker-1")
    trouble.begin("log")  # reading works, settling does not
    await calls.refused("settling a job", coordinator.update_status(task_id, "failed", "boom", retry=True))
    assert coordinator.holds(task_id)
    assert await status(coordinator, task_id) is TaskStatus.RUNNING
    trouble.end("log")
    await coordinator.update_status(task_id, "failed", "boom", retry=True)
    found = await coordinator.get_task(task_id)
    assert found is not None
    assert (found.status, found.attempts) == (TaskStatus.PENDING, 1)
    assert (await coordinator.engine.kernel.verify()).problems == ()
    await coordinator.stop()


async def hurried(clock: ManualClock, call: Coroutine[Any, Any, Any]) -> Any:
    """The result of the call, while its clock runs fast."""
    calling = asyncio.ensure_future(call)
    while not calling.done():
        clock.advance(0.5)
        await asyncio.sleep(0.02)
    return await calling


async def test_a_server_that_stops_is_survived_by_callers_and_by_worker_loops():
    """A real PostgreSQL goes away and comes back: callers are told STORAGE_ERROR, the worker goes on, and nothing is lost."""
    events: list[TelemetryEvent] = []
    done: list[int] = []

    async def solve(task: TaskState) -> None:
        done.append(task.issue.number)

    with private_server() as server:
        clock = ManualClock()
        async with Engine(server.url, settings=Settings(), emit=events.append) as working, AgentCoordinator(working) as worker:
            caller = AgentCoordinator(Engine(server.url, settings=Settings(), clock=clock))
            await caller.engine.open()
            await worker.start(solve)
            accepted = [await caller.enqueue(issue(1))]
            await until(lambda: done == [1])
            await asyncio.to_thread(server.stop, "immediate")
            with pytest.raises(StorageError):
                await hurried(clock, caller.enqueue(issue(2)))
            await until(lambda: any(isinstance(event, StoreTrouble) for event in events))
            await asyncio.to_thread(server.start)
            while len(accepted) < 2:  # a server that recovers may need longer than the clock is told
                with suppress(StorageError):
                    accepted.append(await hurried(clock, caller.enqueue(issue(3), idempotency_key="3")))
            await until(lambda: 3 in done, BOUND)
            while [await status(worker, task_id) for task_id in accepted] != [TaskStatus.COMPLETED] * 2:  # noqa: ASYNC110
                await asyncio.sleep(0)  # the last settle is on its way
            await caller.engine.close()
    assert sorted(done) in ([1, 3], [1, 2, 3])


async def test_a_worker_that_cannot_start_tries_again_every_ten_seconds(shared, trouble):
    events: list[TelemetryEvent] = []
    coordinator = AgentCoordinator(await shared.open_engine(emit=events.append))
    solved = asyncio.Event()

    async def solve(_: TaskState) -> None:
        solved.set()

    await coordinator.enqueue(issue())
    trouble.begin()
    running = asyncio.ensure_future(coordinator.run(solve))
    while not any(isinstance(event, LoopError) and event.loop == "dispatch" for event in events):
        shared.advance(0.5)
        await asyncio.sleep(0.005)
    assert not running.done()
    trouble.end()
    while not solved.is_set():
        shared.advance(0.5)
        await asyncio.sleep(0.005)
    await coordinator.stop()
    await asyncio.wait_for(running, BOUND)
