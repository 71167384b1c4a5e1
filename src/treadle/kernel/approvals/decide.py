"""Decisions on approvals: checks of votes, settlements of the waiting task, and explanations. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.kernel.queue.decide import failure
from treadle.kernel.queue.why import Reason
from treadle.kernel.store.units import Finish, Requeue
from treadle.model.approvals import APPROVE, DENY, Approval, with_decision
from treadle.model.clock import as_text
from treadle.model.errors import InvalidInput, Refused
from treadle.model.names import check_key
from treadle.model.outcomes import Problem
from treadle.model.records import Record
from treadle.model.states import APPROVAL as MACHINE
from treadle.model.states import TaskState
from treadle.model.tasks import Task
from treadle.model.values import PAYLOAD_LIMIT, Json, decode, encode

_REASON_LIMIT = 4096


def why_waiting(approval_id: str, approval: Approval) -> Reason:
    """Explain the wait: the question, its deciders, the votes so far and the expiry."""
    request = approval.request
    votes = sum(vote.decision == APPROVE for vote in approval.votes)
    counted = f", {votes} of {request.quorum} votes" if request.quorum > 1 else ""
    by = f" by {', '.join(approval.deciders)}" if approval.deciders else ""
    until = f", expires {as_text(approval.expires_at)}" if approval.expires_at is not None else ""
    text = f"approval {approval_id} of {request.title!r} is awaited{by} since {as_text(approval.requested_at)}{counted}{until}"
    return Reason(
        "approval", f"{text}; `treadle approvals approve {approval_id}` or `treadle approvals deny {approval_id}` decides"
    )


def why_ended(state: str, approval: Approval) -> Reason:
    """Explain how an approval ended."""
    by = f" by {approval.ended_by}" if approval.ended_by else ""
    reason = f": {approval.reason}" if approval.reason else ""
    again = f"; it was asked again as {approval.next_id}" if approval.next_id else ""
    return Reason(state, f"{state}{by}{reason}{again}")


def approved(task: Task, decision: dict[str, Json], actor: str) -> Requeue:
    """Make the task due immediately, with the decision in its checkpoint."""
    checkpoint = encode(with_decision(decode(task.checkpoint), decision), "decision", DOCUMENT_LIMIT)
    return Requeue(
        APPROVE,
        TaskState.PENDING,
        task.attempt,
        task.failures,
        task.takeovers,
        blocked_by=task.blocked_by,
        checkpoint=checkpoint,
        actor=actor,
        data=encode({"approval_id": decision["approval_id"], "reason": decision["reason"]}),
    )


def denied(actor: str, reason: str | None) -> Finish:
    """Fail the task because its approval was denied."""
    message = f"approval denied by {actor}: {reason}" if reason else f"approval denied by {actor}"
    return msgspec.structs.replace(failure(Problem("approval_denied", message)), transition=DENY, actor=actor)


def expired(approval: Approval) -> Problem:
    """Return the failure of a task after its approval expired."""
    at = as_text(approval.expires_at)
    return Problem("approval_expired", f"approval expired: nobody decided {approval.request.title!r} before {at}")


def requeued(task: Task, transition: str, state: str, delay: int | None, what: str, approval_id: str | None = None) -> Requeue:
    """Keep the task waiting for `delay` milliseconds; the log records `what` was done."""
    data = {"did": what} if approval_id is None else {"did": what, "approval_id": approval_id}
    return Requeue(
        transition,
        state,
        task.attempt,
        task.failures,
        0,
        delay=delay,
        checkpoint=task.checkpoint,
        data=encode(data),
    )


def check_decision(decision: str, actor: str, reason: str | None, edits: dict[str, Json] | None) -> None:
    """Raise `InvalidInput` for a malformed decision."""
    if decision not in (APPROVE, DENY):
        raise InvalidInput(f"A decision must be {APPROVE!r} or {DENY!r}, not {decision!r}.")
    check_key(actor, "actor")
    if reason is not None:
        if not isinstance(reason, str) or len(reason) > _REASON_LIMIT:
            raise InvalidInput(f"A reason must be text of at most {_REASON_LIMIT} characters.")
        encode(reason, "reason")
    if edits is not None:
        if not isinstance(edits, dict):
            raise InvalidInput(f"Edits must be a dict (a JSON object) to merge into the context, not a {type(edits).__name__}.")
        if decision == DENY:
            raise InvalidInput("Edits are only possible when approving.")
        encode(edits, "edits")


def check_vote(
    record: Record, approval: Approval, actor: str, groups: Sequence[str], edits: dict[str, Json] | None, now: int
) -> None:
    """Raise the error that forbids this vote, if any."""
    if record.state == "expired" or (record.state == PENDING and approval.expires_at is not None and approval.expires_at <= now):
        raise Refused(
            f"The time to decide approval {record.id} passed at {as_text(approval.expires_at)}; nothing was changed.",
            code="decided_too_late",
        )
    if record.state != PENDING:
        decided_by = f" by {approval.ended_by}" if approval.ended_by else ""
        raise Refused(f"Approval {record.id} is already {record.state}{decided_by}; a decision is final.", code="already_decided")
    if not approval.may_decide(actor, groups):
        deciders = ", ".join(approval.deciders)
        raise Refused(
            f"{actor} may not decide approval {record.id}; the deciders are {deciders}. Nothing was changed.", code="may_not_decide"
        )
    if any(vote.actor == actor for vote in approval.votes):
        raise Refused(
            f"{actor} has already decided approval {record.id} ({len(approval.votes)} of {approval.request.quorum} votes); each "
            "decider has one vote.",
            code="already_voted",
        )
    if edits and not approval.request.edits:
        raise Refused(
            f"The context of approval {record.id} may not be changed; approve it without edits, or deny it.",
            code="edits_not_allowed",
        )
    if edits is not None and (keys := approval.request.edit_keys) and edits.keys() != set(keys):
        wanted, edited = ", ".join(map(repr, keys)), ", ".join(map(repr, edits)) or "no key"
        raise InvalidInput(
            f"An edit of approval {record.id} must have exactly the key {wanted}, not {edited}. Nothing was decided; approve it "
            "with such an edit, or without one."
        )


ENTITY = MACHINE.entity
PENDING = MACHINE.initial
DOCUMENT_LIMIT = 4 * PAYLOAD_LIMIT
