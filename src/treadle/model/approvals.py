"""Approvals: a question for people, the votes on it, and the actions due while it is undecided. Pure.

An `ApprovalRequest` is the question with its options; an `Approval` is the document of its record: the request and its progress.
It ends by votes (`vote`), by expiry (`next_action`), or with its task. Nothing is ever approved automatically (D24).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from treadle.model.clock import MAX_DURATION, Duration, milliseconds
from treadle.model.errors import InvalidApproval, InvalidInput, TreadleError
from treadle.model.names import check_key
from treadle.model.stored import Stored, plain
from treadle.model.values import PAYLOAD_LIMIT, Json, decode, encode, shown, text_of

APPROVE, DENY = "approve", "deny"
FAIL, ASK_AGAIN = "fail", "ask_again"

CHECK_EVERY_FOR = 30 * 86_400_000
"""Milliseconds after which an approval without a due action is checked again."""

_TITLE_LIMIT = 1000


class ApprovalRequest(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The question, the people who may answer it, and the actions while nobody does. Create it with `of`."""

    title: str
    context: dict[str, Any] = msgspec.field(default_factory=dict)
    """Information for the deciders; returned to the work with the decision."""
    requested_by: str | None = None
    deciders: tuple[str, ...] = ()
    """Names and groups that may decide; empty means anyone."""
    quorum: int = 1
    """Votes needed to approve."""
    denials: int = 1
    """Votes needed to deny."""
    edits: bool = False
    """Whether an approver may change the context."""
    edit_keys: tuple[str, ...] = ()
    """The exact keys of an edit, if only one kind of edit has a meaning."""
    expires_for: int | None = None
    on_expiry: str = FAIL
    remind_after_for: int | None = None
    remind_every_for: int | None = None
    escalate_after_for: int | None = None
    escalate_to: tuple[str, ...] = ()
    """Additional deciders after escalation."""
    notify: str | None = None
    """A URL to notify instead of the default one, if the settings allow it."""

    @classmethod
    def of(
        cls,
        title: str,
        *,
        context: dict[str, Json] | None = None,
        requested_by: str | None = None,
        deciders: Sequence[str] | str = (),
        quorum: int = 1,
        denials: int = 1,
        edits: bool = False,
        expires: Duration | None = None,
        on_expiry: str = FAIL,
        remind_after: Duration | None = None,
        remind_every: Duration | None = None,
        escalate_after: Duration | None = None,
        escalate_to: Sequence[str] | str = (),
        notify: str | None = None,
    ) -> ApprovalRequest:
        """Return a checked request, or raise `InvalidApproval`. Durations are timedeltas or seconds.

        After `expires` (None: never) its task fails, or the question is asked again (`on_expiry="ask_again"`). Reminders go out
        after `remind_after` and then every `remind_every`; after `escalate_after`, the deciders in `escalate_to` may also decide.
        """
        return check_request(
            cls(
                title=title,
                context={} if context is None else context,
                requested_by=requested_by,
                deciders=_names(deciders),
                quorum=quorum,
                denials=denials,
                edits=edits,
                expires_for=_for(expires, "expires"),
                on_expiry=on_expiry,
                remind_after_for=_for(remind_after, "remind_after"),
                remind_every_for=_for(remind_every, "remind_every"),
                escalate_after_for=_for(escalate_after, "escalate_after"),
                escalate_to=_names(escalate_to),
                notify=notify,
            )
        )

    @classmethod
    def from_json(cls, value: Json) -> ApprovalRequest:
        """Decode the output of `as_json`, or a `question` with the options of `of`; raise `InvalidApproval` otherwise."""
        if isinstance(value, dict) and "question" in value:
            try:
                return cls.of(value["question"], **{name: option for name, option in value.items() if name != "question"})
            except TypeError as error:
                raise InvalidApproval(f"This is not a request for an approval: {error}.") from None
        try:
            return check_request(msgspec.convert(value, cls))
        except msgspec.ValidationError as error:
            raise InvalidApproval(f"This is not a request for an approval: {error}.") from None

    def as_json(self) -> dict[str, Json]:
        """Return the request as a payload."""
        return plain(self)


def check_request(request: ApprovalRequest) -> ApprovalRequest:
    """Return the request, or raise `InvalidApproval`."""
    try:
        wrong = _wrong(request)
        plain = None if wrong is not None else _plain(request)
    except TreadleError as error:
        wrong, plain = str(error), None
    except Exception as error:  # parts of unexpected types
        wrong, plain = text_of(error), None
    if plain is None:
        raise InvalidApproval(f"The approval request is invalid: {wrong}")
    return plain


def _plain(request: ApprovalRequest) -> ApprovalRequest:
    """Return the request made of plain JSON values."""
    fields = {name: value for name in request.__struct_fields__ if (value := getattr(request, name)) is not msgspec.UNSET}
    return msgspec.convert(decode(encode(fields, "request", 2 * PAYLOAD_LIMIT)), ApprovalRequest)


def _wrong(request: ApprovalRequest) -> str | None:
    title: object = request.title
    if not isinstance(title, str) or not title.strip() or len(title) > _TITLE_LIMIT:
        return f"the title must have 1 to {_TITLE_LIMIT} characters."
    context: object = request.context
    if not isinstance(context, dict):
        return f"the context must be a dict (a JSON object), not a {type(context).__name__}."
    encode(request.context, "context")
    encode(request.title, "title")
    for name in (*request.deciders, *request.escalate_to, *([request.requested_by] if request.requested_by is not None else [])):
        check_key(name, "name of a decider")
    for what, votes in (("quorum", request.quorum), ("denials", request.denials)):
        if type(votes) is not int or not 0 < votes <= 1000:
            return f"{what} must be a whole number of votes from 1 to 1000, not {shown(votes)}."
    if request.on_expiry not in (FAIL, ASK_AGAIN):
        return f"on_expiry must be {FAIL!r} or {ASK_AGAIN!r}, not {shown(request.on_expiry)}; silence never approves."
    for field in ("expires_for", "remind_after_for", "remind_every_for", "escalate_after_for"):
        value = getattr(request, field)
        if value is not None and (type(value) is not int or not 0 < value <= MAX_DURATION):
            return f"{field} must be whole milliseconds, more than zero and under a century, not {shown(value)}."
    if request.on_expiry == ASK_AGAIN and request.expires_for is None:
        return "on_expiry='ask_again' needs expires."
    if bool(request.escalate_to) != (request.escalate_after_for is not None):
        return "escalate_after and escalate_to go together."
    if request.escalate_to and not request.deciders:
        return "escalate_to needs deciders: anyone may decide already."
    if request.notify is not None and not request.notify.startswith(("https://", "http://")):
        return "notify must be a URL that begins with https:// or http://."
    return None


def _names(given: Sequence[str] | str) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    try:
        return tuple(dict.fromkeys(given))
    except TypeError:
        raise InvalidApproval(f"Deciders must be a list of names, not {shown(given)}.") from None


def _for(duration: Duration | None, what: str) -> int | None:
    try:
        return None if duration is None else milliseconds(duration, what, positive=True)
    except InvalidInput as error:
        raise InvalidApproval(str(error)) from None


# --- the record's document ---


class Vote(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The vote of one decider."""

    actor: str
    decision: str
    at: int
    reason: str | None = None


class Approval(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The document of an approval's record."""

    request: ApprovalRequest
    task_name: str = ""
    requested_at: int = 0
    context: dict[str, Any] = msgspec.field(default_factory=dict)
    """The request's context with all edits applied."""
    edited_by: str | None = None
    expires_at: int | None = None
    remind_at: int | None = None
    escalate_at: int | None = None
    escalated_at: int | None = None
    reminders: int = 0
    votes: tuple[Vote, ...] = ()
    round: int = 1
    """Number of times it was asked, including this one."""
    previous_id: str | None = None
    next_id: str | None = None
    """The approval that replaced this one when it expired."""
    ended_by: str | None = None
    reason: str | None = None

    @property
    def deciders(self) -> tuple[str, ...]:
        """Names and groups that may decide now; empty means anyone."""
        more = self.request.escalate_to if self.escalated_at is not None else ()
        return tuple(dict.fromkeys([*self.request.deciders, *more]))

    @property
    def wake_at(self) -> int | None:
        """The next due action: expiry, reminder or escalation."""
        return min((at for at in (self.expires_at, self.remind_at, self.escalate_at) if at is not None), default=None)

    def may_decide(self, actor: str, groups: Sequence[str] = ()) -> bool:
        """Return whether that person, or one of their groups, may decide."""
        return not self.deciders or not {actor, *groups}.isdisjoint(self.deciders)

    def delay(self, now: int) -> int:
        """Return the milliseconds until the next check."""
        return CHECK_EVERY_FOR if self.wake_at is None else max(min(self.wake_at - now, CHECK_EVERY_FOR), 1)


def open_approval(request: ApprovalRequest, now: int, task_name: str, previous: tuple[str, Approval] | None = None) -> Approval:
    """Return a new approval; after an expired one, its next round, keeping the edited context."""
    return Approval(
        request=request,
        task_name=task_name,
        requested_at=now,
        context=request.context if previous is None else previous[1].context,
        edited_by=None if previous is None else previous[1].edited_by,
        expires_at=_after(now, request.expires_for),
        remind_at=_after(now, request.remind_after_for or request.remind_every_for),
        escalate_at=_after(now, request.escalate_after_for),
        round=1 if previous is None else previous[1].round + 1,
        previous_id=None if previous is None else previous[0],
    )


def _after(now: int, for_ms: int | None) -> int | None:
    return None if for_ms is None else now + for_ms


def next_action(approval: Approval, now: int) -> tuple[str | None, Approval]:
    """Return the due transition of a pending approval (expiry, else escalation, else a reminder; or None), and the approval after
    it."""
    change = msgspec.structs.replace
    if approval.expires_at is not None and approval.expires_at <= now:
        return "expire", approval
    if approval.escalate_at is not None and approval.escalate_at <= now:
        return "escalate", change(approval, escalate_at=None, escalated_at=now)
    if approval.remind_at is not None and approval.remind_at <= now:
        again = _after(now, approval.request.remind_every_for)
        return "remind", change(approval, remind_at=again, reminders=approval.reminders + 1)
    return None, approval


def vote(
    approval: Approval, decision: str, actor: str, now: int, reason: str | None = None, edits: dict[str, Json] | None = None
) -> tuple[str, Approval]:
    """Add the vote of a decider who has not voted yet; return its transition and the approval after it.

    The transition is `approve`, `deny`, or `vote` if more votes are needed.

    Edits are merged into the context. They discard earlier approving votes, which were for a different context.
    """
    votes = approval.votes
    changed = approval
    if edits:
        votes = tuple(earlier for earlier in votes if earlier.decision != APPROVE)
        changed = msgspec.structs.replace(approval, context={**approval.context, **edits}, edited_by=actor)
    votes = (*votes, Vote(actor=actor, decision=decision, at=now, reason=reason))
    count = sum(cast.decision == decision for cast in votes)
    needed = approval.request.quorum if decision == APPROVE else approval.request.denials
    changed = msgspec.structs.replace(changed, votes=votes)
    if count < needed:
        return "vote", changed
    return decision, msgspec.structs.replace(changed, ended_by=actor, reason=reason)


# --- the decision, as the work receives it ---


def decision_of(approval_id: str, approval: Approval, now: int) -> dict[str, Json]:
    """Return the decision of an approved approval."""
    return {
        "approval_id": approval_id,
        "decision": "approved",
        "by": approval.ended_by,
        "at": now,
        "reason": approval.reason,
        "edited": approval.edited_by is not None,
        "context": approval.context,
        "votes": [plain(vote) for vote in approval.votes],
    }


_DECISIONS, _CHECKPOINT = "@approvals", "checkpoint"


def with_decision(checkpoint: Json, decision: dict[str, Json]) -> Json:
    """Return a task's checkpoint with one more decision in it."""
    decisions, own = split_checkpoint(checkpoint)
    return _others(checkpoint) | {_DECISIONS: [*decisions, decision], _CHECKPOINT: own}


def with_decisions_of(before: Json, own: Json) -> Json:
    """Return the handler's new checkpoint, keeping the decisions of the previous one."""
    decisions, _ = split_checkpoint(before)
    return _others(before) | {_DECISIONS: decisions, _CHECKPOINT: own} if decisions else own


def split_checkpoint(checkpoint: Json) -> tuple[list[dict[str, Json]], Json]:
    """Return the decisions in a task's checkpoint, oldest first, and the handler's own part of it."""
    if _has_decisions(checkpoint):
        return checkpoint[_DECISIONS], checkpoint[_CHECKPOINT]
    return [], checkpoint


def _has_decisions(checkpoint: Json) -> bool:
    return (
        isinstance(checkpoint, dict) and checkpoint.keys() >= {_DECISIONS, _CHECKPOINT} and isinstance(checkpoint[_DECISIONS], list)
    )


def _others(checkpoint: Json) -> dict[str, Json]:
    """Return the fields beside the decisions and the handler's own part, which a newer version has written."""
    return (
        {name: value for name, value in checkpoint.items() if name not in (_DECISIONS, _CHECKPOINT)}
        if _has_decisions(checkpoint)
        else {}
    )
