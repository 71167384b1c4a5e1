"""Retry or fail: from the outcome of an attempt, or an operator's request, to the next state of the task. Pure.

Every retry is decided here: `settlement` after an attempt, `next_attempt` for a step, `requeued` for an operator.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from treadle.kernel.queue.kinds import is_repeated
from treadle.kernel.store.units import Finish, Redrive, Requeue
from treadle.model.approvals import open_approval, with_decisions_of
from treadle.model.errors import IllegalTransition, Refused, RetriesUsedUp, UnreadableValue
from treadle.model.names import ADVANCE, FUNCTION
from treadle.model.outcomes import (
    RELEASED_FOR,
    RETRIED_FOR,
    AwaitingApproval,
    AwaitingExternal,
    Failed,
    Outcome,
    Paused,
    Problem,
    Produced,
    Released,
    Retry,
    StillWorking,
    Succeeded,
    Waiting,
)
from treadle.model.retry import NO_RETRY, Backoff, RetryPolicy
from treadle.model.states import TASK, BlockReason, TaskState
from treadle.model.stored import read
from treadle.model.tasks import Task
from treadle.model.values import TEXT_LIMIT, Json, decode, decode_error, decode_object, encode, storable

TAKEOVER_LIMIT = 5
"""Consecutive lease expiries after which a handler's task becomes a dead letter instead of being tried again."""

BACK_OFF_FOR = 300_000
"""Delay in milliseconds of an engine task after that many takeovers."""

_POLL_BACKOFF = Backoff(60_000, 3_600_000)
"""Delay in milliseconds of a poll after that many takeovers; it doubles with each further one."""

_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\d+|'[^']*'|\"[^\"]*\"")


class SettlementWith(msgspec.Struct, frozen=True, gc=False):
    """A settlement, and the outcome whose approval, external job, poll or productions the settler stores with it."""

    settlement: Finish | Requeue
    outcome: AwaitingApproval | AwaitingExternal | StillWorking | Produced


TaskDecision = Finish | Requeue | SettlementWith
"""The consequence of an outcome."""


def settlement_of(decision: TaskDecision) -> Finish | Requeue:
    """Return the settlement alone."""
    return decision.settlement if isinstance(decision, SettlementWith) else decision


def outcome_of(decision: TaskDecision) -> Outcome | None:
    """Return the outcome that is stored with the settlement, if there is one."""
    return decision.outcome if isinstance(decision, SettlementWith) else None


def with_actor(decision: TaskDecision, actor: str) -> TaskDecision:
    """Return the decision as one of this actor."""
    settled = msgspec.structs.replace(settlement_of(decision), actor=actor)
    return SettlementWith(settled, decision.outcome) if isinstance(decision, SettlementWith) else settled


def settlement(
    task: Task, outcome: Outcome, policy: RetryPolicy, jitter_fraction: float = 0.0, result_limit: int | None = None
) -> TaskDecision:
    """Decide the next state of a task from the outcome of an attempt; `jitter_fraction` in [0, 1) is for jitter.

    Raises `InvalidPayload` or `PayloadTooLarge` for a result that cannot be stored.
    """
    match outcome:
        case Succeeded(result):
            text = encode(result, "result") if result_limit is None else encode(result, "result", result_limit)
            return Finish("succeed", TaskState.COMPLETED, result=text)
        case Failed(problem):
            return failure(problem)
        case Retry(problem) if task.state == TaskState.AWAITING_EXTERNAL:
            return _polled(task, StillWorking(None, problem.message))
        case Retry(problem, after_for):
            delay_for = next_attempt(policy, problem, task.failures + 1, jitter_fraction)
            if isinstance(delay_for, Problem):
                return failure(delay_for)
            minimum = RETRIED_FOR if task.failures else 0
            return Requeue(
                "retry",
                TaskState.PENDING,
                attempt=task.attempt + 1,
                failures=task.failures + 1,
                takeovers=0,
                delay=max(delay_for if after_for is None else after_for, minimum) or None,
                checkpoint=task.checkpoint,
                error=_error_text(problem),
                data=_error_text(problem),
            )
        case Waiting(delay, checkpoint):
            new_checkpoint = _kept(task, checkpoint)
            least = RELEASED_FOR if new_checkpoint == task.checkpoint else None
            return Requeue(
                "wait", TaskState.PENDING, task.attempt, task.failures, 0, delay=delay or least, checkpoint=new_checkpoint
            )
        case AwaitingApproval(request, checkpoint):
            requeue = Requeue(
                "ask",
                TaskState.AWAITING_APPROVAL,
                task.attempt,
                task.failures,
                0,
                delay=open_approval(request, 0, task.name).delay(0),
                checkpoint=_kept(task, checkpoint),
            )
            return SettlementWith(requeue, outcome)
        case AwaitingExternal():
            return hand_off(task, outcome)
        case StillWorking():
            return _polled(task, outcome)
        case Produced(productions):
            content = productions[-1].content
            text = encode(content, "result") if result_limit is None else encode(content, "result", result_limit)
            return SettlementWith(Finish("succeed", TaskState.COMPLETED, result=text), outcome)
        case Paused(reason):
            return Requeue(
                "pause",
                task.state,
                task.attempt,
                task.failures,
                0,
                blocked_by=task.blocked_by | BlockReason.TASK_PAUSED,
                checkpoint=task.checkpoint,
                data=encode({"reason": storable(reason)}),
            )
        case Released(reason, after_for):
            executing = task.state == TaskState.PENDING
            return Requeue(
                "release",
                task.state,
                task.attempt + executing,
                task.failures,
                task.takeovers,
                delay=after_for or None,
                checkpoint=task.checkpoint,
                error=task.error,
                data=encode({"reason": storable(reason)}),
            )
        case _:
            assert_never(outcome)


def next_attempt(policy: RetryPolicy, problem: Problem, failures: int, jitter_fraction: float = 0.0) -> int | Problem:
    """Return the milliseconds until the attempt after `failures` failures, or the problem with which the work fails."""
    delay_for = policy.delay_for(failures, jitter_fraction)
    if delay_for is None:
        return problem
    reason = policy.refusal(problem.classes)
    return delay_for if reason is None else problem.unretried(reason)


def decide(
    task: Task, outcome: Outcome, default: RetryPolicy, random: Callable[[], float], result_limit: int | None = None
) -> TaskDecision:
    """Apply `settlement` with the task's own retry policy, or `default`; calls `random` only for jitter."""
    policy = policy_of(task, default)
    return settlement(task, outcome, policy, random() if policy.jitter else 0.0, result_limit)


def policy_of(task: Task, default: RetryPolicy = NO_RETRY) -> RetryPolicy:
    """The task's own retry policy, or `default`."""
    return read(RetryPolicy, task.policy) if task.policy else default


def hand_off(task: Task, awaiting: AwaitingExternal) -> SettlementWith:
    """Let the task await a job that was submitted or found."""
    requeue = Requeue("hand_off", TaskState.AWAITING_EXTERNAL, task.attempt, task.failures, 0, checkpoint=task.checkpoint)
    return SettlementWith(requeue, awaiting)


def _polled(task: Task, poll: StillWorking, **changes: Any) -> SettlementWith:
    requeue = Requeue(
        "still_working", TaskState.AWAITING_EXTERNAL, task.attempt, task.failures, 0, checkpoint=task.checkpoint, quiet=True
    )
    return SettlementWith(msgspec.structs.replace(requeue, **changes), poll)


def _kept(task: Task, checkpoint: Json) -> str | None:
    """The checkpoint for the next attempt: the given one (None keeps the previous) plus the approval decisions received so far."""
    if checkpoint is None or task.checkpoint is None:
        return task.checkpoint if checkpoint is None else encode(checkpoint, "checkpoint")
    return encode(with_decisions_of(decode(task.checkpoint), checkpoint), "checkpoint")


def failure(problem: Problem) -> Finish:
    """End the task as a dead letter."""
    problem = problem.storable()
    return Finish(
        "fail",
        TaskState.FAILED,
        error=_error_text(problem),
        error_code=problem.code,
        fingerprint=fingerprint(problem),
    )


def ignored(task: Task) -> Finish:
    """End a task without a live handler in a list that ignores such tasks."""
    problem = Problem(
        "no_handler", f"No live worker has a handler for {task.name}, and the list {task.task_list} ignores such tasks."
    )
    return Finish(
        "ignore", TaskState.IGNORED, error=_error_text(problem), error_code=problem.code, fingerprint=fingerprint(problem)
    )


def refusal(task: Task, takeover_limit: int = TAKEOVER_LIMIT) -> Problem | None:
    """Return the reason a claimed task must not run (unreadable, deadline passed, too many takeovers), or None.

    Polls are exempt from the cap on takeovers (D72): see `poll_backoff`.
    """
    try:
        if task.policy:
            policy_of(task)
        if task.checkpoint is not None and task.kind != FUNCTION:  # its note is written anew
            decode(task.checkpoint)
        if not task.payload.startswith("@"):
            decode_object(task.payload)
    except UnreadableValue as error:
        return Problem(error.code, str(error), type(error).__name__)
    now = task.claimed_at or 0
    if task.deadline_at is not None and task.deadline_at <= now:
        return Problem("deadline_exceeded", f"The task's deadline passed {now - task.deadline_at} ms before it was claimed.")
    if task.takeovers >= takeover_limit and task.state != TaskState.AWAITING_EXTERNAL:
        return Problem(
            "takeovers_exhausted",
            f"{task.takeovers} workers in a row lost this task without settling it: it may be killing or hanging them. "
            "Fix the cause, then retry it.",
        )
    return None


def poll_backoff(task: Task, takeover_limit: int = TAKEOVER_LIMIT) -> SettlementWith | None:
    """Delay the poll of a job whose last workers were lost while polling it; None: poll it now.

    Each lost worker from the limit on delays the next poll once (D72).
    """
    lost = task.takeovers
    if task.state != TaskState.AWAITING_EXTERNAL or lost < takeover_limit or decode_error(task.error).get("takeovers") == lost:
        return None
    delay = _POLL_BACKOFF.delay_for(lost - takeover_limit)
    message = f"{lost} workers in a row were lost while they polled this job: the poll may be killing or hanging them."
    error = encode({"code": "pollers_lost", "message": message, "takeovers": lost})
    return _polled(task, StillWorking(None, message), takeovers=lost, delay=delay, error=error)


def settle_refused(task: Task, problem: Problem) -> Finish | Requeue:
    """End a refused task as a dead letter; an engine task backs off instead and is tried again."""
    if not is_repeated(task.kind) or task.state != TaskState.PENDING:
        return failure(problem)
    return backed_off(task, problem)


def backed_off(task: Task, problem: Problem) -> Requeue:
    """Try the task again later, and show the problem until then."""
    text = _error_text(problem)
    return Requeue(
        "wait", task.state, task.attempt, task.failures, 0, delay=BACK_OFF_FOR, checkpoint=task.checkpoint, error=text, data=text
    )


# --- operators' transitions ---


def requeued(task: Task, actor: str, random: Callable[[], float]) -> Redrive:
    """Retry a finished task under its own policy; raises `RetriesUsedUp` when that is exhausted."""
    refuse_of_run(task)
    policy = policy_of(task)
    delay = policy.delay_for(task.failures + 1, random() if policy.jitter else 0.0)
    if delay is None:
        raise RetriesUsedUp(task.id, task.failures)
    return Redrive("requeue", actor, failures=task.failures + 1, delay=delay or None)


def refuse_of_run(task: Task) -> None:
    """Raise `Refused` for a task that only its run can retry."""
    if task.run_id is not None and task.kind != ADVANCE:
        raise Refused(f"Task {task.id} belongs to run {task.run_id}; retry it there: `treadle runs retry {task.run_id}`.")


def paused(task: Task, now: int, actor: str, reason: str | None, *, interrupt: bool = False) -> Requeue:
    """Hold a task; an attempt in progress goes on under its claim, or with `interrupt` is repeated after the resume."""
    if task.owner_id is not None and task.kind == FUNCTION:
        raise Refused(f"Task {task.id} executes a function: pause its run with `treadle runs pause {task.run_id}`.")
    held = blocked(task, "pause", task.blocked_by | BlockReason.TASK_PAUSED, now, actor, reason)
    if task.owner_id is None or not interrupt:
        return held
    attempt = task.attempt + (task.state == TaskState.PENDING)
    return msgspec.structs.replace(held, stays=False, delay=None, attempt=attempt)


def resumed(task: Task, now: int, actor: str) -> Requeue:
    """Release a paused task."""
    if not task.blocked_by & BlockReason.TASK_PAUSED:
        raise IllegalTransition("task", task.id, task.shown_state, "resume", TASK.possible(task.state))
    return blocked(task, "resume", task.blocked_by & ~BlockReason.TASK_PAUSED, now, actor, None)


def blocked(task: Task, transition: str, blocked_by: int, now: int, actor: str, reason: str | None) -> Requeue:
    """Give the task other block reasons, and change nothing else."""
    return Requeue(
        transition,
        task.state,
        task.attempt,
        task.failures,
        task.takeovers,
        blocked_by=blocked_by,
        delay=None if task.wake_at is None else max(task.wake_at - now, 0) or None,
        stays=task.owner_id is not None,
        activity=task.activity,
        checkpoint=task.checkpoint,
        error=task.error,
        actor=actor,
        data=None if reason is None else encode({"reason": reason}),
    )


def canceled_error(actor: str, reason: str | None, code: str = "canceled") -> str:
    """The stored error of a cancellation, by default an operator's."""
    return encode({"code": code, "message": reason or f"Canceled by {actor}."})


# --- errors ---


def fingerprint(problem: Problem) -> str:
    """Group errors that differ only in numbers, ids and quoted names."""
    plain = f"{problem.code}|{problem.type}|{_VARYING.sub('?', problem.message)}"
    return hashlib.sha256(plain.encode("utf-8", "replace")).hexdigest()[:16]


def _error_text(problem: Problem) -> str:
    """Encode the problem as storable JSON, cut to a size limit."""
    return encode(problem.storable().as_json(), "error", limit=16 * TEXT_LIMIT)
