"""Options of the operations of a durable function, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import InvalidInput
from treadle.model.names import check_key, check_name
from treadle.model.retry import RetryPolicy, as_policy
from treadle.model.tasks import Task
from treadle.model.user_values import storable, type_name
from treadle.model.values import Json


class StepOptions(TypedDict, total=False):
    """Options of a step."""

    name: str | None
    key: str | None
    retry: RetryPolicy | int | None
    timeout: Duration | None
    limit_key: str | None


class ChildOptions(TypedDict, total=False):
    """Options of a child run."""

    version: int | None
    key: str | None
    task_list: str | None
    priority: int | None
    on_parent_close: Literal["cancel", "terminate", "abandon"] | None


class CallOptions(TypedDict, total=False):
    """Options of a child task."""

    key: str | None
    task_list: str | None
    priority: int | None
    retry: RetryPolicy | int | None
    timeout: Duration | None
    deadline: Duration | None
    limit_key: str | None
    limit: int | None


def policy_of(retry: RetryPolicy | int | None) -> RetryPolicy | None:
    return None if retry is None else as_policy(retry)


def milliseconds_of(duration: Duration | None, name: str) -> int | None:
    return None if duration is None else milliseconds(duration, name, positive=True)


def key_of(key: str | None, name: str = "step key") -> str | None:
    return None if key is None else check_key(key, name)


def name_of(name: str | None) -> str | None:
    if name is not None and not isinstance(name, str):
        raise InvalidInput(f"The name of a step must be text, not a {type_name(name)}.")
    return None if name is None else storable(name)


def task_list_of(task: Task, chosen: str | None) -> str:
    return task.task_list if chosen is None else check_name(chosen, "task list")


def payload_of(payload: Mapping[str, Json] | None) -> dict[str, Json]:
    if payload is not None and not isinstance(payload, Mapping):
        raise InvalidInput(f"A payload is a dict (a JSON object), not {type(payload).__name__}.")
    return dict(payload or {})
