"""Decisions on external jobs: settlements of the task after polls and callbacks, and the search for a specialist. Pure.

A job whose specialist no server has had for a while fails (D30).
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.queue.decide import TaskDecision, failure, settlement
from treadle.kernel.queue.why import serves, shown_server_state
from treadle.kernel.store.units import Finish, Requeue
from treadle.model.errors import InvalidInput, InvalidPayload
from treadle.model.external import (
    FAILED,
    ExternalProductionFailure,
    ExternalProductionHandle,
    ExternalProductionRecord,
    Production,
    check_failure,
    check_handle,
)
from treadle.model.names import short_name
from treadle.model.outcomes import Problem, Produced, StillWorking
from treadle.model.retry import NO_RETRY
from treadle.model.states import TaskState
from treadle.model.tasks import Server, Task
from treadle.model.values import Json, decode, encode, type_name

GRACE_FOR = 600_000
"""Milliseconds without a server that has the specialist, after which its jobs fail; zero if only one server was seen in that
time."""


def poll_delay(task: Task, record: ExternalProductionRecord, now: int) -> int | None:
    """Return the milliseconds until the job or the task's deadline is due."""
    due_at = record.due_at or now
    if task.deadline_at is not None:
        due_at = min(due_at, task.deadline_at)
    return max(due_at - now, 0) or None


def called_back(
    task: Task, outcome: Production | dict[str, Json] | ExternalProductionFailure | ExternalProductionHandle
) -> TaskDecision:
    """Return the settlement of a callback's task."""
    match outcome:
        case Production() | dict():
            return settlement(task, Produced((copy_of(outcome),)), NO_RETRY)
        case ExternalProductionFailure():
            return failure(problem_of(outcome))
        case ExternalProductionHandle():
            return settlement(task, StillWorking(check_handle(outcome)), NO_RETRY)
        case _:
            raise InvalidInput(
                f"A callback carries a dict, a Production, an ExternalProductionFailure or an ExternalProductionHandle, "
                f"not a {type(outcome).__name__}."
            )


def copy_of(production: Production | dict[str, Json]) -> Production:
    """Return a production of its own for one task, made of plain JSON: callers may supply one object for several tasks."""
    content = production if isinstance(production, dict) else production.content
    if not isinstance(content, dict):
        raise InvalidPayload(f"The content of a production must be a dict (a JSON object), not a {type_name(content)}.")
    return Production(decode(encode(content, "production", 2**31)))


def problem_of(reported: ExternalProductionFailure) -> Problem:
    """Return the task's failure for a failure reported by the service."""
    checked = check_failure(reported)
    return Problem(checked.error_code or FAILED, checked.failure_detail or "The service reported a failure without a detail.")


def failure_of(decided: Finish) -> ExternalProductionFailure | None:
    """Return the record's failure for a task that ended without a production; None if it succeeded."""
    if decided.state == TaskState.COMPLETED:
        return None
    message = (decode(decided.error) or {}).get("message", "")
    return ExternalProductionFailure(message, None if decided.error_code == FAILED else decided.error_code)


def poll_now(task: Task, actor: str) -> Requeue:
    """Make a waiting task due immediately."""
    return Requeue(
        "still_working",
        task.state,
        task.attempt,
        task.failures,
        task.takeovers,
        blocked_by=task.blocked_by,
        checkpoint=task.checkpoint,
        error=task.error,
        actor=actor,
        data=encode({"reason": "poll now"}),
    )


def is_offered(task: Task, servers: Sequence[Server], now: int) -> bool:
    """Return whether a live or recently seen server has a specialist for the task."""
    live = [server for server in servers if shown_server_state(server, now) in ("starting", "running")]
    near = [server for server in servers if server.heartbeat_at > now - GRACE_FOR]
    return any(_offers(server, task) for server in (near if len(near) > 1 else live))


def is_polled(task: Task, servers: Sequence[Server], now: int) -> bool:
    """Return whether a running server has a specialist for the task."""
    return any(shown_server_state(server, now) == "running" and _offers(server, task) for server in servers)


def _offers(server: Server, task: Task) -> bool:
    """Return whether the server's handlers include `NAME@SCOPE`, or `NAME@` for all scopes."""
    names = (task.name, short_name(task.name))
    wanted = {f"{name}@{scope}" for name in names for scope in ("", task.scope or "")}
    return serves(server, task) and not wanted.isdisjoint(server.handlers)


def unregistered_text(name: str, scope: str | None) -> str:
    """Explain why a job without a specialist failed."""
    where = "" if scope is None else f" in the scope {scope}"
    return f"Specialist for {name}{where} no longer registered: no live worker has it, so its job cannot be polled."
