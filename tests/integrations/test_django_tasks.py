"""The backend of Django's task framework: the behaviours of the framework's own tests of backends, with a real worker.

Django's tests use its immediate and its dummy backend; these are ours, one for each of their behaviours that a backend decides.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import django
import psycopg
import pytest
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from tests.limits import BOUND

from treadle.integrations.processes import close_engines
from treadle.model.names import HANDLER

if not settings.configured:
    settings.configure()
if not apps.ready:
    django.setup()

from django.db import connections, transaction
from django.test.utils import override_settings

try:
    from django import tasks as framework
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:  # before Django 6
    import django_tasks as framework
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started

from treadle.integrations.django import TreadleBackend, dashboard_url, get_engine

Status = framework.TaskResultStatus


def noop(*args: Any, **kwargs: Any) -> None:
    """Return nothing."""


async def noop_async(*args: Any, **kwargs: Any) -> None:
    """Return nothing."""


def meaning() -> int:
    return 42


async def meaning_async() -> int:
    return 42


def fail() -> None:
    raise ValueError("This task failed")


async def fail_async() -> None:
    raise ValueError("This task failed")


def leave() -> None:
    raise SystemExit("This task failed")


def return_code() -> Any:
    return lambda: True


def task_id(context: Any) -> Any:
    return [context.task_result.id, context.attempt]


async def task_id_async(context: Any) -> Any:
    return [context.task_result.id, context.attempt]


def second_time(context: Any) -> int:
    if context.attempt == 1:
        raise ValueError("The first attempt failed")
    return int(context.attempt)


def configured(backend: str = "default", **options: Any) -> Any:
    params: dict[str, Any] = {"BACKEND": "treadle.integrations.django.TreadleBackend", "QUEUES": [], "OPTIONS": options}
    return {"default": params, "limited": params | {"QUEUES": ["default", "queue-1"]}}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[str]:
    url = f"sqlite:///{tmp_path / 'treadle.db'}"
    get_engine.cache_clear()
    with override_settings(TREADLE={"STORE": url}, TASKS=configured(), USE_TZ=True):
        yield url
    await asyncio.to_thread(close_engines)
    get_engine.cache_clear()


@pytest.fixture
async def worker(store: str) -> AsyncIterator[Callable[[], Any]]:
    """Start the worker of the project when it is called."""
    async with AsyncExitStack() as stack:

        async def start() -> None:
            engine = await stack.enter_async_context(get_engine())
            await stack.enter_async_context(engine.worker())

        yield start


async def in_thread(call: Any, *args: Any, **kwargs: Any) -> Any:
    return await asyncio.to_thread(call, *args, **kwargs)


async def finished(result: Any) -> Any:
    """The result, once the task has ended."""
    async with asyncio.timeout(BOUND):
        while not result.is_finished:
            await asyncio.sleep(0.01)
            await in_thread(result.refresh)
    return result


@pytest.mark.parametrize("code", [noop, noop_async])
async def test_a_task_is_enqueued_and_executed(worker: Any, code: Any) -> None:
    task = framework.task()(code)
    result = await in_thread(task.enqueue, 1, two=3)
    assert (result.status, result.is_finished, result.attempts, result.task) == (Status.READY, False, 0, task)
    assert (result.args, result.kwargs) == ([1], {"two": 3})
    assert result.enqueued_at is not None
    assert await in_thread(task.get_result, result.id) == result
    with pytest.raises(ValueError, match="not finished"):
        assert result.return_value
    await worker()
    await finished(result)
    assert (result.status, result.return_value, result.attempts) == (Status.SUCCESSFUL, None, 1)
    assert result.errors == []
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at is not None
    assert all(result.worker_ids)


@pytest.mark.parametrize("code", [meaning, meaning_async])
async def test_a_task_returns_its_value_to_async_callers(worker: Any, code: Any) -> None:
    task = framework.task()(code)
    await worker()
    result = await finished(await task.aenqueue())
    assert result.return_value == 42


@pytest.mark.parametrize(("code", "kind"), [(fail, ValueError), (fail_async, ValueError), (leave, SystemExit)])
async def test_a_failed_task_has_its_exception(worker: Any, code: Any, kind: type[BaseException]) -> None:
    task = framework.task()(code)
    await worker()
    result = await finished(await in_thread(task.enqueue))
    assert result.status == Status.FAILED
    assert [error.exception_class for error in result.errors] == [kind]
    assert result.errors[0].traceback.endswith(f"{kind.__name__}: This task failed\n")
    with pytest.raises(ValueError, match="Task failed"):
        assert result.return_value


async def test_a_value_that_is_not_json_fails_the_task(worker: Any) -> None:
    await worker()
    result = await finished(await in_thread(framework.task()(return_code).enqueue))
    assert (result.status, result.errors[0].exception_class) == (Status.FAILED, TypeError)
    assert "Unsupported type" in result.errors[0].traceback


@pytest.mark.parametrize("code", [task_id, task_id_async])
async def test_a_task_receives_its_context(worker: Any, code: Any) -> None:
    task = framework.task(takes_context=True)(code)
    await worker()
    result = await finished(await in_thread(task.enqueue))
    assert result.return_value == [result.id, 1]


async def test_options_of_the_backend_are_those_of_enqueue(worker: Any) -> None:
    with override_settings(TASKS=configured(retry=2)):
        task = framework.task(takes_context=True)(second_time)
        await worker()
        result = await finished(await in_thread(task.enqueue))
    assert (result.return_value, result.attempts, len(result.errors)) == (2, 2, 1)


async def test_a_result_is_found_by_its_id(store: str) -> None:
    task, other = framework.task(priority=7)(noop), framework.task()(meaning)
    result = await in_thread(task.using(queue_name="mail").enqueue, 1)
    same = await task.aget_result(result.id)
    assert dataclasses.asdict(await in_thread(task.get_result, result.id)) == dataclasses.asdict(same)
    assert (same.task.priority, same.task.queue_name, same.args, same.status) == (7, "mail", [1], Status.READY)
    with pytest.raises(TaskResultMismatch):
        await in_thread(other.get_result, result.id)
    for missing in ("123", "01a1f5e6-3f72-7000-b5d3-c978abb60c82"):
        with pytest.raises(TaskResultDoesNotExist):
            await in_thread(task.get_result, missing)


async def test_tasks_are_stored_with_priority_queue_and_time(store: str) -> None:
    at = datetime(2100, 1, 1, tzinfo=UTC)
    task = framework.task(priority=100, queue_name="mail")(noop).using(run_after=at)
    result = await in_thread(task.enqueue)
    async with get_engine() as engine:
        stored = await engine.kernel.reads.get_task(result.id)
    assert (stored.task_list, stored.priority) == ("mail", -100)
    assert 0 <= stored.wake_at - at.timestamp() * 1000 <= BOUND * 1000  # a delay from the time of the call


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 101}, "priority must be a whole number"),
        ({"run_after": datetime(2030, 1, 1)}, "aware datetime"),
        ({"backend": "limited", "queue_name": "queue-2"}, "Queue 'queue-2' is not valid"),
    ],
)
async def test_a_wrong_task_is_refused(store: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        framework.task()(noop).using(**options)


async def test_arguments_that_are_not_json_are_refused(store: str) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        await in_thread(framework.task()(noop).enqueue, datetime(2100, 1, 1, tzinfo=UTC))
    async with get_engine() as engine:
        assert [task for task in await engine.kernel.reads.list_tasks() if task.kind == HANDLER] == []


async def test_signals_are_sent(worker: Any) -> None:
    seen: list[tuple[str, str]] = []

    def receive(signal: Any, sender: Any, task_result: Any, **_: Any) -> None:
        assert sender is TreadleBackend
        seen.append((names[signal], task_result.status))
        if signal is task_finished:
            done.set()

    done = threading.Event()
    names = {task_enqueued: "enqueued", task_started: "started", task_finished: "finished"}
    for signal in names:
        signal.connect(receive)
    try:
        task = framework.task()(fail)
        await in_thread(task.enqueue)
        await worker()
        assert await in_thread(done.wait, BOUND)
    finally:
        for signal in names:
            signal.disconnect(receive)
    assert seen == [("enqueued", Status.READY), ("started", Status.RUNNING), ("finished", Status.FAILED)]


async def test_a_task_is_enqueued_in_the_transaction_of_the_project(postgres_server: str, postgres_schema: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(postgres_server)
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    options: dict[str, Any] = {"ENGINE": "django.db.backends.postgresql"}
    options |= {names[key]: value for key, value in parts.items() if key in names}
    get_engine.cache_clear()
    connections.settings["project"] = connections.configure_settings({"default": {}, "project": options})["project"]

    def enqueue_twice() -> str:
        task = framework.task()(noop)
        try:
            with transaction.atomic("project"):
                task.enqueue("rolled back")
                transaction.set_rollback(True, "project")
            with transaction.atomic("project"):
                return str(task.enqueue("committed").id)
        finally:
            connections["project"].close()

    try:
        with override_settings(TREADLE={"DATABASE": "project", "SCHEMA": postgres_schema}, TASKS=configured()):
            committed = await in_thread(enqueue_twice)
            engine = get_engine()
            async with engine:
                assert [task.id for task in await engine.kernel.reads.list_tasks() if task.kind == HANDLER] == [committed]
    finally:
        del connections.settings["project"]
        get_engine.cache_clear()


def test_a_result_has_an_address_in_the_dashboard() -> None:
    with override_settings(TREADLE={"DASHBOARD": "https://jobs.example.com/"}):
        assert dashboard_url("0198") == dashboard_url(SimpleNamespace(id="0198")) == "https://jobs.example.com/go/0198"
    with override_settings(TREADLE={}), pytest.raises(ImproperlyConfigured, match="DASHBOARD"):
        dashboard_url("0198")
