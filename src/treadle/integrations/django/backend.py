"""A backend of Django's task framework, `django.tasks` (Django 6) or its backport `django_tasks`: its tasks are tasks of Treadle.

A task function has the handler of its dotted name, which is registered with the first task of it, usually by `@task` in `tasks.py`.
The payload has the arguments, and the result the returned value.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from typing import Any

from django.db import connections
from django.utils import timezone
from django.utils.module_loading import import_string

from treadle.integrations.django.engine import Engines, _alias, _given, get_engine, waiting, within
from treadle.model.errors import InvalidInput, NotFound
from treadle.model.states import TaskState
from treadle.model.tasks import Task as StoredTask
from treadle.model.tasks import Transition

try:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:  # before Django 6
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

_ENDS = {"succeed", "fail", "retry", "expire"}
"""Transitions that end an attempt."""

_tasks: dict[str, Any] = {}
"""The tasks of this process by the dotted names of their functions."""


class TreadleBackend(BaseTaskBackend):  # type: ignore[misc]
    """Stores tasks in the project's store; `OPTIONS` are options of `Engine.enqueue`, such as `retry` and `timeout`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Any) -> None:
        """Check the task, and register the handler of its function."""
        super().validate_task(task)
        _tasks[task.module_path] = task
        if task.module_path not in get_engine().kernel.registry.names():
            Engines().handler(task.module_path)(_handler_of(task))

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue in the current transaction, if the store is in the project's PostgreSQL database; otherwise immediately."""
        self.validate_task(task)
        result = _result(task, "", self.alias, args, kwargs)
        options = {"task_list": task.queue_name, "priority": -task.priority, **self.options}
        if task.run_after is not None:
            is_naive = timezone.is_naive(task.run_after)
            options["at"] = timezone.make_aware(task.run_after) if is_naive else task.run_after
        in_project = "STORE" not in _given() and connections[_alias()].vendor == "postgresql"
        target: Any = within() if in_project else waiting()
        stored = target.enqueue(task.module_path, {"args": result.args, "kwargs": result.kwargs}, **options)
        at = timezone.now() if in_project else _instant(target.run(target._inner.kernel.reads.get_task(stored.id)).created_at)
        result = replace(result, id=stored.id, enqueued_at=at)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the task with its attempts so far; raises `TaskResultDoesNotExist`."""
        blocking: Any = waiting()
        kernel = blocking._inner.kernel

        async def read() -> tuple[StoredTask, list[Transition], Any, Any]:
            stored = await kernel.reads.get_task(result_id)
            payload = await kernel.value_store.unpack(stored.payload)
            value = None if stored.result is None else await kernel.value_store.unpack(stored.result)
            return stored, await kernel.reads.list_transitions(stored.id), payload, value

        try:
            stored, transitions, payload, value = blocking.run(read())
        except (NotFound, InvalidInput) as error:
            raise TaskResultDoesNotExist(result_id) from error
        if not isinstance(payload, dict) or payload.keys() != {"args", "kwargs"}:
            raise TaskResultDoesNotExist(result_id)
        queue = {"priority": -stored.priority, "queue_name": stored.task_list, "backend": self.alias}
        task = (_tasks.get(stored.name) or import_string(stored.name)).using(**queue)
        result = _result(task, stored.id, self.alias, payload["args"], payload["kwargs"])
        ends = [transition for transition in transitions if transition.transition in _ENDS]
        workers = [end.actor or "" for end in ends]
        if stored.owner_id is not None and not stored.finished:
            workers.append(stored.owner_id)
        attempted = stored.claimed_at or (ends[-1].at if ends else stored.finished_at)
        started = ends[0].at if ends and stored.claimed_at is None else attempted
        read_result = replace(
            result,
            status=_status(stored),
            enqueued_at=_instant(stored.created_at),
            started_at=_instant(started) if workers else None,
            finished_at=_instant(stored.finished_at),
            last_attempted_at=_instant(attempted) if workers else None,
            errors=[_error(end) for end in ends if end.transition in ("fail", "retry")],
            worker_ids=workers,
        )
        if read_result.status == TaskResultStatus.SUCCESSFUL:
            object.__setattr__(read_result, "_return_value", value["result"])
        return read_result


def _handler_of(task: Any) -> Any:
    """Return the handler of the function of a task."""

    def begin(payload: dict[str, Any], ctx: Any) -> tuple[Any, list[Any]]:
        workers = [""] * (ctx.attempt - 1) + [ctx.task.owner_id or ""]
        now = timezone.now()
        running = replace(
            _result(task, ctx.task_id, task.backend, payload["args"], payload["kwargs"]),
            status=TaskResultStatus.RUNNING,
            enqueued_at=_instant(ctx.task.created_at),
            started_at=now,
            last_attempted_at=now,
            worker_ids=workers,
        )
        return running, [TaskContext(task_result=running)] if task.takes_context else []

    def ended(running: Any, status: Any) -> dict[str, Any]:
        finished = replace(running, status=status, finished_at=timezone.now())
        return {"sender": TreadleBackend, "task_result": finished}

    async def execute_async(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
        running, context = begin(payload, ctx)
        await task_started.asend(TreadleBackend, task_result=running)
        try:
            value = normalize_json(await task.func(*context, *payload["args"], **payload["kwargs"]))
        except Exception:
            await task_finished.asend(**ended(running, TaskResultStatus.FAILED))
            raise
        await task_finished.asend(**ended(running, TaskResultStatus.SUCCESSFUL))
        return {"result": value}

    def execute(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
        running, context = begin(payload, ctx)
        task_started.send(TreadleBackend, task_result=running)
        try:
            value = normalize_json(task.func(*context, *payload["args"], **payload["kwargs"]))
        except BaseException:
            task_finished.send(**ended(running, TaskResultStatus.FAILED))
            raise
        task_finished.send(**ended(running, TaskResultStatus.SUCCESSFUL))
        return {"result": value}

    return execute_async if iscoroutinefunction(task.func) else execute


def _result(task: Any, result_id: str, backend: str, args: Any, kwargs: Any) -> Any:
    """Return the result of a task that has not begun; raises `TypeError` for arguments that are not JSON."""
    times = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))
    arguments = {"args": list(args), "kwargs": kwargs, "errors": [], "worker_ids": []}
    return TaskResult(task=task, id=result_id, status=TaskResultStatus.READY, backend=backend, **times, **arguments)


def _status(stored: StoredTask) -> Any:
    if stored.state == TaskState.COMPLETED:
        return TaskResultStatus.SUCCESSFUL
    if stored.finished:
        return TaskResultStatus.FAILED
    return TaskResultStatus.READY if stored.owner_id is None else TaskResultStatus.RUNNING


def _error(end: Transition) -> Any:
    problem = json.loads(end.data or "{}")
    classes = (problem.get("exception") or {}).get("classes") or ["builtins.Exception"]
    return TaskError(exception_class_path=classes[0], traceback=problem.get("traceback") or problem.get("message") or "")


def _instant(at: int | None) -> datetime | None:
    if at is None:
        return None
    instant = datetime.fromtimestamp(at / 1000, UTC)
    return instant if timezone.is_aware(timezone.now()) else timezone.make_naive(instant)
