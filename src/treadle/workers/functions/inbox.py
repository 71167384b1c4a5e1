"""Message as a function sees it: opened, and what it means for the step that waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treadle.kernel.functions.rows import ASK, CALL, RESULT, Recorded
from treadle.kernel.store.value_store import ValueStore
from treadle.model.errors import (
    ApprovalDenied,
    ApprovalExpired,
    RunCanceled,
    RunFailed,
    SignalTimeout,
    StepFailed,
    TaskCanceled,
    TaskFailed,
    TaskIgnored,
    TreadleError,
)
from treadle.model.records import Message
from treadle.model.states import StepState, TaskState
from treadle.model.values import decode


@dataclass(frozen=True, slots=True)
class Letter:
    """A piece of mail: the end of a child (`step_id`), or a signal (`name`)."""

    id: str
    step_id: str | None
    name: str | None
    value: Any = None
    error: dict[str, Any] | None = None
    keyed: bool = False
    """A signal with an idempotency key, to be remembered."""


async def open_letter(mail: Message, value_store: ValueStore) -> Letter:
    """The mail with its values; what cannot be read is an error of the step that waits for it."""
    try:
        said: dict[str, Any] = decode(value_store.plain(mail.body))
        if mail.step_id is None:
            value = (await value_store.unpack(said["payload"])).get("payload")
            return Letter(mail.id, None, mail.name, value, keyed=bool(said.get("keyed")))
        if said["state"] == TaskState.COMPLETED:
            value = await value_store.unpack(said.get("result"))
            return Letter(mail.id, mail.step_id, None, value.get("result") if "run_id" in said else value)
    except TreadleError as error:
        return Letter(mail.id, mail.step_id, mail.name, error={"code": error.code, "message": str(error), "state": "failed"})
    problem = dict(said.get("error") or {})
    problem.pop("traceback", None)
    return Letter(mail.id, mail.step_id, None, error={**problem, "state": said["state"]})


def error_of(recorded: Recorded) -> BaseException | None:
    """What is raised for a step that failed or timed out; the same in every replay."""
    if recorded.timed_out:
        return blamed(SignalTimeout(recorded.name), recorded.id)
    if recorded.state != StepState.FAILED:
        return None
    said = recorded.error or {}
    code, message, state = said.get("code", "failed"), said.get("message", ""), said.get("state")
    error: TreadleError
    match recorded.kind:
        case kind if kind in (CALL, ASK):
            error = _task_error(recorded, kind, code, message, state)
        case kind if kind == RESULT and state == TaskState.CANCELED:
            error = RunCanceled(f"Run {recorded.task_id} was canceled: {message}")
        case kind if kind == RESULT:
            error = RunFailed(recorded.task_id or "", None, message)
        case _:
            error = StepFailed(recorded.name, code, message, said.get("type"))
    return blamed(error, recorded.id)


def _task_error(recorded: Recorded, kind: str, code: str, message: str, state: str | None) -> TreadleError:
    if kind == ASK and code == ApprovalDenied.code:
        return ApprovalDenied(message)
    if kind == ASK and code == ApprovalExpired.code:
        return ApprovalExpired(message)
    if state == TaskState.CANCELED:
        return TaskCanceled(f"Task {recorded.task_id} was canceled: {message}")
    if state == TaskState.IGNORED:
        return TaskIgnored(f"Task {recorded.task_id} was ignored: {message}")
    return TaskFailed(recorded.task_id or "", code, message)


def blamed(error: BaseException, *step_ids: str) -> BaseException:
    """The error, which remembers the steps that it comes from: an operator's retry does these again."""
    error.__dict__["step_ids"] = tuple(dict.fromkeys((*blamed_steps(error), *step_ids)))
    return error


def blamed_steps(error: BaseException | None) -> tuple[str, ...]:
    """The steps that an error comes from, also when another was raised because of it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if found := error.__dict__.get("step_ids"):
            return tuple(found)
        error = error.__cause__ or error.__context__
    return ()
