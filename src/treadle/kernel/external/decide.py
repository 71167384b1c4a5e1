"""What becomes of the task and the record of an outside job: from what was said to what is stored. Pure.

Also who can poll it: a job that no server offers a specialist for is given up after a while (D30).
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.queue.decide import HandOff, Polled, ProducedEnd, failure, settlement
from treadle.kernel.queue.why import serves, shown_server_state
from treadle.kernel.store.units import Finish, Park
from treadle.model.errors import InvalidInput
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
from treadle.model.values import Json, decode

GRACE_FOR = 600_000
"""Milliseconds for which no server may have offered a specialist before its jobs are given up; none where only one server was
heard of in that time."""


def poll_delay(task: Task, record: ExternalProductionRecord, now: int) -> int | None:
    """Milliseconds until the job is due; the task's own deadline comes first."""
    due_at = record.due_at or now
    if task.deadline_at is not None:
        due_at = min(due_at, task.deadline_at)
    return max(due_at - now, 0) or None


def called_back(
    task: Task, outcome: Production | dict[str, Json] | ExternalProductionFailure | ExternalProductionHandle
) -> Finish | Park:
    """What a call-back makes of its task."""
    match outcome:
        case Production():
            return settlement(task, Produced((outcome,)), NO_RETRY)
        case dict():
            return settlement(task, Produced((Production(outcome),)), NO_RETRY)
        case ExternalProductionFailure():
            return failure(problem_of(outcome))
        case ExternalProductionHandle():
            return settlement(task, StillWorking(check_handle(outcome)), NO_RETRY)
        case _:
            raise InvalidInput(
                f"A call-back brings a dict, a Production, an ExternalProductionFailure or an ExternalProductionHandle, "
                f"not a {type(outcome).__name__}."
            )


def problem_of(said: ExternalProductionFailure) -> Problem:
    """Why the task fails when a service says that its job has."""
    said = check_failure(said)
    return Problem(said.error_code or FAILED, said.failure_detail)


def failure_of(decided: Finish) -> ExternalProductionFailure | None:
    """What the record says of a task that ended without a production; None for one that succeeded."""
    if decided.state == TaskState.COMPLETED:
        return None
    message = (decode(decided.error) or {}).get("message", "")
    return ExternalProductionFailure(message, None if decided.error_code == FAILED else decided.error_code)


def plain(decided: Finish | Park) -> Finish | Park:
    """As stores know it: without what was only for the settler."""
    if not isinstance(decided, ProducedEnd):
        return decided
    return Finish(decided.move, decided.state, result=decided.result, actor=decided.actor)


def plain_park(decided: HandOff | Polled) -> Park:
    return Park(
        decided.move,
        decided.state,
        decided.attempt,
        decided.failures,
        decided.takeovers,
        hold=decided.hold,
        checkpoint=decided.checkpoint,
        actor=decided.actor,
        quiet=decided.quiet,
    )


def is_offered(task: Task, servers: Sequence[Server], now: int) -> bool:
    live = [server for server in servers if shown_server_state(server, now) in ("starting", "running")]
    near = [server for server in servers if server.heartbeat_at > now - GRACE_FOR]
    return any(_offers(server, task) for server in (near if len(near) > 1 else live))


def _offers(server: Server, task: Task) -> bool:
    """Whether the server has a specialist for the task: `NAME@SCOPE`, or `NAME@` for all scopes, is among what it serves."""
    names = (task.name, short_name(task.name))
    wanted = {f"{name}@{scope}" for name in names for scope in ("", task.scope or "")}
    return serves(server, task) and not wanted.isdisjoint(server.handlers)


def unregistered_text(name: str, scope: str | None) -> str:
    """Why a job is given up that nobody can poll."""
    where = "" if scope is None else f" in the scope {scope}"
    return f"Specialist for {name}{where} no longer registered: no live server has it, so that its job cannot be polled."
