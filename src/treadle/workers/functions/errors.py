"""The exceptions that failed steps raise, and the steps that an exception comes from."""

from __future__ import annotations

from treadle.kernel.effects.decide import UnrepeatedEffect
from treadle.kernel.functions.steps import ASK, CALL, EFFECT, PUBLISH, RESULT, Recorded
from treadle.model.errors import (
    ApprovalDenied,
    ApprovalExpired,
    Canceled,
    InvalidInput,
    PayloadTooLarge,
    RunCanceled,
    RunFailed,
    SignalTimeout,
    StepFailed,
    TaskCanceled,
    TaskFailed,
    TaskIgnored,
    TreadleError,
)
from treadle.model.states import StepState, TaskState

UNKNOWN_OUTCOME = "unknown"
"""The state in the error of an effect that failed because its outcome is unknown."""


def error_of(recorded: Recorded) -> BaseException | None:
    """Return the exception for a step that failed or timed out; the same in every replay."""
    if recorded.state == StepState.CANCELED:
        return Canceled((recorded.error or {}).get("message", ""))
    if recorded.timed_out:
        return blamed(SignalTimeout(recorded.name), recorded.id)
    if recorded.state != StepState.FAILED:
        return None
    stored = recorded.error or {}
    code, message, state = stored.get("code", "failed"), stored.get("message", ""), stored.get("state")
    error: TreadleError
    match recorded.kind:
        case kind if kind in (CALL, ASK):
            error = _task_error(recorded, kind, code, message, state)
        case kind if kind == RESULT and state == TaskState.CANCELED:
            error = RunCanceled(f"Run {recorded.task_id} was canceled: {message}")
        case kind if kind == RESULT:
            error = RunFailed(recorded.task_id or "", None, message)
        case kind if kind == EFFECT and state == UNKNOWN_OUTCOME:
            error = UnrepeatedEffect(message, code)
        case kind if kind == PUBLISH:
            error = PayloadTooLarge(message) if code == PayloadTooLarge.code else InvalidInput(message)
        case _:
            error = StepFailed(recorded.name, code, message, stored.get("type"))
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
    """Return the error after attaching the steps that caused it; an operator's retry repeats these."""
    error.__dict__["step_ids"] = tuple(dict.fromkeys((*blamed_steps(error), *step_ids)))
    return error


def blamed_steps(error: BaseException | None) -> tuple[str, ...]:
    """Return the steps that caused an error, directly or through the errors that it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if found := error.__dict__.get("step_ids"):
            return tuple(found)
        error = error.__cause__ or error.__context__
    return ()
