"""Requests for approvals are checked; what is due, and what votes come to, is decided without a store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from treadle.model.approvals import (
    CHECK_EVERY_FOR,
    Approval,
    ApprovalRequest,
    decision_of,
    next_action,
    open_approval,
    split_checkpoint,
    vote,
    with_decision,
    with_decisions_of,
)
from treadle.model.errors import InvalidApproval

MINUTE, NOW = 60_000, 1_000_000


def asked(**options: Any) -> Approval:
    return open_approval(ApprovalRequest.of("Refund?", **options), NOW, "refund")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"title": " "}, "the title must have 1 to 1000 characters"),
        ({"title": "x" * 1001}, "the title"),
        ({"title": 7}, "the title"),
        ({"context": [1]}, "the context must be a dict"),
        ({"context": {"at": object()}}, "context is not JSON"),
        ({"deciders": [""]}, "name of a decider"),
        ({"deciders": 7}, "list of names"),
        ({"quorum": 0}, "quorum must be a whole number"),
        ({"denials": True}, "denials must be a whole number"),
        ({"on_expiry": "approve", "expires": 1}, "silence never approves"),
        ({"on_expiry": "ask_again"}, "needs expires"),
        ({"expires": 0}, "expires must be more than zero"),
        ({"expires": -1}, "expires"),
        ({"remind_after": "soon"}, "remind_after"),
        ({"escalate_after": 5}, "go together"),
        ({"escalate_to": ["boss"], "deciders": ["ada"]}, "go together"),
        ({"escalate_to": ["boss"], "escalate_after": 5}, "needs deciders"),
        ({"notify": "ftp://x"}, "begins with https://"),
    ],
)
def test_an_invalid_request_is_rejected(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidApproval, match=said):
        ApprovalRequest.of(**{"title": "Refund?"} | options)


def test_a_request_survives_as_json() -> None:
    request = ApprovalRequest.of(
        "Refund?",
        context={"amount": 5},
        deciders=["ada", "ops", "ada"],
        quorum=2,
        expires=timedelta(hours=1),
        on_expiry="ask_again",
        remind_every=60,
        escalate_after=120,
        escalate_to="boss",
        edits=True,
    )
    assert request.deciders == ("ada", "ops")
    assert ApprovalRequest.from_json(request.as_json()) == request


@pytest.mark.parametrize("value", [None, {}, {"title": "x", "qourum": 2}, {"title": "x", "on_expiry": "approve"}, {"title": 5}])
def test_a_payload_that_is_not_a_request_is_refused(value: Any) -> None:
    with pytest.raises(InvalidApproval):
        ApprovalRequest.from_json(value)


def test_a_question_with_options_in_seconds_is_a_request() -> None:
    assert ApprovalRequest.from_json({"question": "Refund?", "expires": 60}) == ApprovalRequest.of("Refund?", expires=60)
    with pytest.raises(InvalidApproval, match="unexpected keyword argument 'nonsense'"):
        ApprovalRequest.from_json({"question": "Refund?", "nonsense": 60})


def test_the_delay_ends_at_the_earliest_approval_event() -> None:
    assert asked().delay(NOW) == CHECK_EVERY_FOR
    assert asked(expires=60).delay(NOW) == MINUTE
    assert asked(expires=60, remind_after=20).delay(NOW) == 20_000
    assert asked(expires=60, remind_every=30, escalate_after=10, escalate_to="boss", deciders="ada").delay(NOW) == 10_000
    assert asked(expires=60).delay(NOW + 2 * MINUTE) == 1


def test_no_event_is_due_early() -> None:
    approval = asked(expires=60, remind_after=20)
    assert next_action(approval, NOW + 19_999) == (None, approval)


def test_reminders_repeat_until_the_approval_expires() -> None:
    approval = asked(expires=60, remind_after=20, remind_every=10)
    transition, after = next_action(approval, NOW + 20_000)
    assert (transition, after.reminders, after.remind_at) == ("remind", 1, NOW + 30_000)
    transition, after = next_action(after, NOW + 35_000)
    assert (transition, after.reminders, after.remind_at) == ("remind", 2, NOW + 45_000)
    assert next_action(after, NOW + 60_000)[0] == "expire"


def test_a_single_reminder_is_not_repeated() -> None:
    _, after = next_action(asked(remind_after=20), NOW + 20_000)
    assert (after.remind_at, after.wake_at) == (None, None)


def test_escalation_adds_deciders_once() -> None:
    approval = asked(deciders=["ada"], escalate_after=10, escalate_to=["boss"])
    assert not approval.may_decide("boss")
    transition, after = next_action(approval, NOW + 10_000)
    assert (transition, after.deciders, after.escalate_at) == ("escalate", ("ada", "boss"), None)
    assert after.may_decide("boss")
    assert next_action(after, NOW + 10_000)[0] is None


def test_anyone_may_decide_without_named_deciders_and_groups_count() -> None:
    assert asked().may_decide("anyone")
    approval = asked(deciders=["ada", "ops"])
    assert approval.may_decide("ada")
    assert not approval.may_decide("bob")
    assert approval.may_decide("bob", ["dev", "ops"])


def test_one_vote_decides_by_default() -> None:
    transition, after = vote(asked(), "approve", "ada", NOW, "fine")
    assert (transition, after.ended_by, after.reason) == ("approve", "ada", "fine")
    assert vote(asked(quorum=3), "deny", "ada", NOW)[0] == "deny"


def test_votes_accumulate_to_the_quorum() -> None:
    approval = asked(quorum=2, denials=2)
    transition, approval = vote(approval, "approve", "ada", NOW)
    assert transition == "vote"
    transition, approval = vote(approval, "deny", "bob", NOW)
    assert transition == "vote"
    transition, approval = vote(approval, "approve", "cyn", NOW)
    assert (transition, len(approval.votes)) == ("approve", 3)


def test_an_edit_withdraws_earlier_approvals() -> None:
    approval = asked(quorum=2, edits=True, context={"amount": 5, "to": "x"})
    _, approval = vote(approval, "approve", "ada", NOW)
    transition, approval = vote(approval, "approve", "bob", NOW, edits={"amount": 4})
    assert (transition, [each.actor for each in approval.votes]) == ("vote", ["bob"])
    transition, approval = vote(approval, "approve", "cyn", NOW)
    assert transition == "approve"
    said = decision_of("id", approval, NOW)
    assert (said["context"], said["edited"], said["by"]) == ({"amount": 4, "to": "x"}, True, "cyn")


def test_the_next_round_keeps_the_question_and_the_edits() -> None:
    first = asked(expires=60, on_expiry="ask_again", edits=True, quorum=2, context={"n": 1})
    _, first = vote(first, "approve", "ada", NOW, edits={"n": 2})
    second = open_approval(first.request, NOW + MINUTE, "refund", ("first", first))
    assert (second.round, second.previous_id, second.context) == (2, "first", {"n": 2})
    assert (second.votes, second.expires_at) == ((), NOW + 2 * MINUTE)


def test_decisions_are_stored_in_the_checkpoint_beside_the_handlers_own() -> None:
    assert split_checkpoint(None) == ([], None)
    assert split_checkpoint({"checkpoint": 1}) == ([], {"checkpoint": 1})
    once = with_decision({"page": 3}, {"by": "ada"})
    twice = with_decision(once, {"by": "bob"})
    assert split_checkpoint(twice) == ([{"by": "ada"}, {"by": "bob"}], {"page": 3})
    assert split_checkpoint(with_decisions_of(twice, {"page": 4})) == ([{"by": "ada"}, {"by": "bob"}], {"page": 4})
    assert with_decisions_of({"page": 3}, {"page": 4}) == {"page": 4}
