"""The records of the agent SDK, in the terms of its specification, converted from the kernel's. They are copies.

Times are milliseconds since 1970. `workflow_id` and `runner_id` are both the id of the run (D50).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from treadle.evaluator import StepRow
from treadle.model.names import DEFAULT_LIST
from treadle.model.records import HandlerRegistration as HandlerRegistration
from treadle.model.runs import Run
from treadle.model.tasks import Server, Task
from treadle.model.values import Json, decode_error


class TaskState:
    """States of a task in the agent SDK."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    IGNORED = "ignored"
    CANCELED = "canceled"


class ServerState:
    """States of a server; a server that missed three heartbeats is shown as `lost` (D57)."""

    STARTUP = "startup"
    RUNNING = "running"
    SHUTDOWN = "shutdown"
    ERROR = "error"
    LOST = "lost"


@dataclass(slots=True)
class TaskDefinition:
    """A task: `name` is the qualified facet name, `data` the payload."""

    uuid: str
    name: str
    runner_id: str = ""
    workflow_id: str = ""
    flow_id: str = ""
    step_id: str = ""
    state: str = TaskState.PENDING
    created: int = 0
    updated: int = 0
    error: dict[str, Any] | None = None
    task_list_name: str = DEFAULT_LIST
    data_type: str = ""
    data: dict[str, Any] | None = None


@dataclass(slots=True)
class HandledCount:
    """The number of tasks of a name that a server completed, and that it did not."""

    handler: str
    handled: int = 0
    not_handled: int = 0


@dataclass(slots=True)
class ServerDefinition:
    """A process that serves tasks, as it registered itself."""

    uuid: str
    server_group: str = "default"
    service_name: str = ""
    server_name: str = ""
    server_ips: list[str] = field(default_factory=list)
    start_time: int = 0
    ping_time: int = 0
    topics: list[str] = field(default_factory=list)
    handlers: list[str] = field(default_factory=list)
    handled: list[HandledCount] = field(default_factory=list)
    state: str = ServerState.STARTUP
    manager: str = ""
    error: dict[str, Any] | None = None


@dataclass(slots=True)
class StepDefinition:
    """A step of a run; every read returns a new copy."""

    id: str
    object_type: str
    workflow_id: str
    statement_id: str
    statement_name: str
    container_id: str | None
    state: str
    facet_name: str | None
    params: dict[str, Any] = field(default_factory=dict)
    returns: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    task_id: str | None = None
    path: str = ""


@dataclass(slots=True)
class RunnerDefinition:
    """One run of a workflow."""

    uuid: str
    workflow_id: str
    workflow: str
    flow_id: str
    state: str
    start_time: int
    end_time: int = 0
    duration: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(slots=True)
class LockMetaData:
    """The holder's description of a lock."""

    topic: str = ""
    handler: str = ""
    step_name: str = ""
    step_id: str = ""


@dataclass(slots=True)
class LockDefinition:
    """A held lock."""

    key: str
    acquired_at: int
    expires_at: int
    meta: LockMetaData = field(default_factory=LockMetaData)


_SERVER_STATES = {"starting": ServerState.STARTUP, "draining": ServerState.SHUTDOWN, "stopped": ServerState.SHUTDOWN}
MANAGED_BY = "managed by "
"""Begins the version of a server that was saved with a manager; agents that register themselves have Treadle's version."""
STORED_SERVER_STATES = {ServerState.STARTUP: "starting", ServerState.SHUTDOWN: "stopped", ServerState.LOST: "running"}


_KEPT_IN = "_task"
_KEPT = ("runner_id", "workflow_id", "flow_id", "step_id", "data_type")
"""Fields of a task without a run, which its payload keeps under a reserved key."""


def with_kept(task: TaskDefinition) -> dict[str, Any]:
    """Return the payload to store for a new task: its data, and the fields that have no column."""
    extras = {name: getattr(task, name) for name in _KEPT if getattr(task, name)}
    return {**(task.data or {}), **({_KEPT_IN: extras} if extras else {})}


def without_kept(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a stored payload."""
    return {name: value for name, value in payload.items() if name != _KEPT_IN}


def task_of(task: Task, payload: dict[str, Any]) -> TaskDefinition:
    """Convert a task of the kernel, with its stored payload."""
    definition = TaskDefinition(
        uuid=task.id,
        name=task.name,
        runner_id=task.run_id or "",
        workflow_id=task.run_id or "",
        flow_id=task.flow_id or "",
        step_id=task.step_id or "",
        state=str(task.shown_state),
        created=task.created_at,
        updated=task.finished_at or task.heartbeat_at or task.created_at,
        error=decode_error(task.error) or None,
        task_list_name=task.task_list,
        data_type=task.kind,
        data=without_kept(payload),
    )
    extras = payload.get(_KEPT_IN)
    return (
        replace(definition, **extras)
        if task.run_id is None and isinstance(extras, dict) and extras.keys() <= set(_KEPT)
        else definition
    )


def server_of(server: Server) -> ServerDefinition:
    """Convert a server of the kernel."""
    return ServerDefinition(
        uuid=server.id,
        server_group=server.server_group,
        service_name=server.service_name,
        server_name=server.name,
        server_ips=server.host.split(","),
        start_time=server.started_at,
        ping_time=server.heartbeat_at,
        topics=list(server.topics),
        handlers=list(server.handlers),
        handled=[HandledCount(name, done, not_done) for name, (done, not_done) in sorted(server.counts.items())],
        state=_SERVER_STATES.get(server.state, server.state),
        manager=server.version.removeprefix(MANAGED_BY) if server.version.startswith(MANAGED_BY) else "",
        error=decode_error(server.error) or None,
    )


def step_of(row: StepRow, params: dict[str, Json], returns: dict[str, Json]) -> StepDefinition:
    """Convert a step of the evaluator."""
    return StepDefinition(
        id=row.id,
        object_type=str(row.kind),
        workflow_id=row.run_id,
        statement_id=row.statement_id,
        statement_name=row.name,
        container_id=row.parent_id,
        state=str(row.state),
        facet_name=row.facet,
        params=params,
        returns=returns,
        error=None if row.error is None else row.error.text,
        task_id=row.task_id,
        path=row.path,
    )


def runner_of(run: Run, parameters: dict[str, Json], outputs: dict[str, Json]) -> RunnerDefinition:
    """Convert a run of the kernel."""
    return RunnerDefinition(
        uuid=run.id,
        workflow_id=run.id,
        workflow=run.workflow,
        flow_id=run.flow_id,
        state=str(run.state),
        start_time=run.created_at,
        end_time=run.finished_at or 0,
        duration=(run.finished_at - run.created_at) if run.finished_at else 0,
        parameters=parameters,
        outputs=outputs,
        error=decode_error(run.error).get("message"),
    )
