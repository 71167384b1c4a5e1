"""Results that report a failure, cleared errors, complete lists, and the calls of the blocking facade."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from tests.dispatch.scenes import issue
from tests.limits import BOUND

from treadle.dispatch import AgentCoordinator, BlockingCoordinator, DispatchConfig, TaskState, TaskStatus, WorkerUnavailable
from treadle.model.errors import TaskFailed

NOT_JSON = object()


@pytest.mark.postgres
@pytest.mark.parametrize("threaded", [False, True], ids=["async", "thread"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("tests do not pass", "tests do not pass"),
        (None, "failed"),
        ("", "failed"),
        ({"message": "no space", "code": 28}, "no space"),
        ({"code": 28}, '{"code":28}'),
        (["a", 1], '["a",1]'),
        (0, "0"),
        (NOT_JSON, "failed, with an error of type object"),
    ],
)
async def test_a_result_that_reports_no_success_fails_the_job(engine, error, message, threaded):
    returned = {"success": False, "error": error}

    async def on_loop(_: Any) -> Any:
        return returned

    async with AgentCoordinator(engine, DispatchConfig(max_retries=0)) as coordinator:
        await coordinator.start((lambda _: returned) if threaded else on_loop, worker_id="worker-1")
        task_id = await coordinator.enqueue(issue())
        with pytest.raises(TaskFailed):
            await engine.result(task_id, timeout=BOUND)
        found = await coordinator.get_task(task_id)
        assert found is not None
        assert (found.status, found.error) == (TaskStatus.FAILED, message)


@pytest.mark.parametrize("scene", ["memory"], indirect=True)
@pytest.mark.parametrize("success", [None, 0, "", 0.0, []])
async def test_every_false_success_fails_the_job(engine, success):
    async with AgentCoordinator(engine, DispatchConfig(max_retries=0)) as coordinator:
        await coordinator.start(lambda _: {"success": success, "error": "no"}, worker_id="worker-1")
        task_id = await coordinator.enqueue(issue())
        with pytest.raises(TaskFailed):
            await engine.result(task_id, timeout=BOUND)
        assert (await coordinator.get_task(task_id)).error == "no"


@pytest.mark.parametrize("result", [{"success": True, "pr": 7}, {"success": 1}, {"success": "false"}, {"error": "none"}, {}])
async def test_every_other_result_completes_the_job(engine, coordinator, result):
    async def solve(_: Any) -> Any:
        return result

    await coordinator.start(solve, worker_id="worker-1")
    assert await engine.result(await coordinator.enqueue(issue()), timeout=BOUND) == result


async def test_an_automatic_retry_clears_the_error(coordinator, scene):
    task_id = await coordinator.enqueue(issue())
    await coordinator.dequeue("worker-1")
    await coordinator.update_status(task_id, "failed", "boom", retry=True)
    waiting = await coordinator.get_task(task_id)
    scene.advance(1)
    running = await coordinator.dequeue("worker-1")
    assert (waiting.status, waiting.attempts, waiting.error) == (TaskStatus.PENDING, 1, None)
    assert (running.status, running.attempts, running.error) == (TaskStatus.RUNNING, 1, None)
    assert [line.message for line in await coordinator.get_logs(task_id)] == ["boom"]
    await coordinator.update_status(task_id, "failed", "boom again")
    assert (await coordinator.get_task(task_id)).error == "boom again"


async def test_get_all_tasks_returns_more_than_a_page(coordinator, monkeypatch):
    monkeypatch.setattr("treadle.dispatch.coordinator.PAGE_LIMIT", 3)
    ids = [await coordinator.enqueue(issue(number)) for number in range(1, 8)]
    assert [job.id for job in await coordinator.get_all_tasks()] == ids[::-1]
    assert [job.id for job in await coordinator.get_all_tasks(status="pending", before_id=ids[5])] == ids[4::-1]
    assert [job.id for job in await coordinator.get_all_tasks(limit=2)] == ids[:4:-1]


def test_the_blocking_coordinator_has_every_call_with_the_same_arguments():
    calls = [name for name, _ in inspect.getmembers(AgentCoordinator, inspect.isfunction) if not name.startswith("_")]
    assert len(calls) > 15
    for name in calls:
        assert inspect.signature(getattr(BlockingCoordinator, name)).parameters.keys() == (
            inspect.signature(getattr(AgentCoordinator, name)).parameters.keys()
        ), name


@dataclass
class DataResult:
    success: bool
    error: str | None = None
    pr: int = 7


class ModelResult(pydantic.BaseModel):
    success: bool
    error: str | None = None
    pr: int = 7


class StructResult(msgspec.Struct):
    success: bool
    error: str | None = None
    pr: int = 7


class PlainResult:
    def __init__(self, success: bool, error: str | None = None) -> None:
        self.success, self.error, self.pr, self._session = success, error, 7, NOT_JSON


class SlottedResult(NamedTuple):
    success: bool
    error: str | None = None
    pr: int = 7


@pytest.mark.postgres
@pytest.mark.parametrize("kind", [DataResult, ModelResult, StructResult, PlainResult, SimpleNamespace, SlottedResult])
@pytest.mark.parametrize("threaded", [False, True], ids=["async", "thread"])
async def test_a_result_object_reports_success_or_failure_as_a_dict_does(engine, kind, threaded):
    def make(task: TaskState) -> Any:
        fields = {"success": task.issue.number == 1, "error": None if task.issue.number == 1 else "tests do not pass"}
        return kind(**fields, pr=7) if kind is SimpleNamespace else kind(**fields)

    async def on_loop(task: TaskState) -> Any:
        return make(task)

    async with AgentCoordinator(engine, DispatchConfig(max_retries=0)) as coordinator:
        await coordinator.start(make if threaded else on_loop, worker_id="worker-1")
        good, bad = [await coordinator.enqueue(issue(number)) for number in (1, 2)]
        assert await engine.result(good, timeout=BOUND) == {"success": True, "error": None, "pr": 7}
        with pytest.raises(TaskFailed):
            await engine.result(bad, timeout=BOUND)
        job = await coordinator.get_task(bad)
        assert job is not None
        assert (job.status, job.error) == (TaskStatus.FAILED, "tests do not pass")


async def test_a_coordinator_that_was_stopped_can_be_used_again(engine):
    coordinator = AgentCoordinator(engine)
    for _ in range(2):
        await coordinator.start(lambda _: {"by": "loop"}, worker_id="worker-1")
        looped = await coordinator.enqueue(issue())
        assert await engine.result(looped, timeout=BOUND) == {"by": "loop"}
        await coordinator.stop()
        by_hand = await coordinator.enqueue(issue())
        job = await coordinator.dequeue("worker-2")
        assert job is not None
        assert job.id == by_hand
        await coordinator.update_status(by_hand, "completed")
        coordinator.drain()
        with pytest.raises(WorkerUnavailable):
            await coordinator.dequeue("worker-2")
        await coordinator.stop()
    assert {server.state for server in await engine.kernel.reads.list_servers()} == {"stopped"}
    assert coordinator._holder._lease_renewer is None
