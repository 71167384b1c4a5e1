"""Records of the model as the contract shows them."""

from __future__ import annotations

from typing import Any, overload

from treadle.api import schedules as schedule_shapes
from treadle.api import tasks as shapes
from treadle.api.wire import Instant
from treadle.kernel.external.intents import without_key
from treadle.kernel.queue.why import Reason
from treadle.model.schedules import Target
from treadle.model.states import Hold
from treadle.model.tasks import LogLine, Move, Task
from treadle.model.values import decode

HOLDS = {
    Hold.OVER_LIMIT: "over_limit",
    Hold.LIST_PAUSED: "list_paused",
    Hold.RUN_PAUSED: "run_paused",
    Hold.TASK_PAUSED: "task_paused",
}


@overload
def instant(at: int) -> Instant: ...
@overload
def instant(at: None) -> None: ...
@overload
def instant(at: int | None) -> Instant | None: ...


def instant(at: int | None) -> Instant | None:
    """Milliseconds as the contract has them."""
    return None if at is None else Instant.of(at)


def shaped_task(task: Task) -> shapes.Task:
    """The task without its payload and result."""
    return shapes.Task(**task_fields(task))


def shaped_detail(task: Task, reason: Reason, moves: list[Move], lines: list[LogLine]) -> shapes.TaskDetail:
    """Everything about one task whose values are open."""
    return shapes.TaskDetail(
        **task_fields(task),
        payload=decode(task.payload),
        result=decode(task.result),
        checkpoint=without_key(decode(task.checkpoint)),
        why=shapes.Why(task.id, task.name, task.shown_state, reason.code, reason.text),
        moves=[shaped_move(move) for move in moves],
        lines=[shaped_line(line) for line in lines],
    )


def task_fields(task: Task) -> dict[str, Any]:
    """Fields that every shape of a task has."""
    return {
        "id": task.id,
        "name": task.name,
        "state": str(task.shown_state),
        "namespace": task.namespace,
        "kind": task.kind,
        "task_list": task.task_list,
        "priority": task.priority,
        "attempt": task.attempt,
        "failures": task.failures,
        "takeovers": task.takeovers,
        "claim_version": task.claim_version,
        "version": task.version,
        "owner_id": task.owner_id,
        "created_at": instant(task.created_at),
        "due_at": instant(task.due_at),
        "wake_at": instant(task.wake_at),
        "claimed_at": instant(task.claimed_at),
        "heartbeat_at": instant(task.heartbeat_at),
        "progress_at": instant(task.progress_at),
        "deadline_at": instant(task.deadline_at),
        "finished_at": instant(task.finished_at),
        "timeout_for": task.timeout_for,
        "progress_for": task.progress_for,
        "holds": [word for bit, word in HOLDS.items() if task.hold & bit],
        "unique_key": task.unique_key,
        "limit_key": task.limit_key,
        "run_id": task.run_id,
        "step_id": task.step_id,
        "root_id": task.root_id or None,
        "trace_id": task.trace_id,
        "policy": decode(task.policy),
        "progress": decode(task.progress),
        "error": decode(task.error),
        "error_code": task.error_code,
        "actor": task.actor,
    }


def shaped_move(move: Move) -> shapes.MoveMade:
    """A row of the log."""
    return shapes.MoveMade(
        version=move.version,
        at=instant(move.at),
        move=move.move,
        from_state=move.from_state,
        to_state=move.to_state,
        actor=move.actor,
        claim_version=move.claim_version,
        data=decode(move.data),
    )


def shaped_target(target: Target) -> schedule_shapes.Target:
    """What a schedule or a watcher starts."""
    return schedule_shapes.Target(
        kind=target.kind,
        name=target.name,
        flow=target.flow,
        version=target.version,
        inputs=target.inputs,
        given_as=target.given_as,
        task_list=target.task_list,
        priority=target.priority,
        timeout_for=target.timeout_for,
    )


def shaped_line(line: LogLine) -> shapes.Line:
    """A line about a task."""
    return shapes.Line(at=instant(line.at), level=line.level, source=line.source, message=line.message, details=line.said or None)
