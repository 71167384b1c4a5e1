"""`treadle approvals ...`: list, show and decide approvals."""

from __future__ import annotations

from typing import Annotated, Literal

from click.exceptions import Exit

from treadle.api.approvals import DecisionResult, DecisionResults
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import plain
from treadle.interfaces.cli.messages import FAILED, exit_code_of_code
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.cli.values import edits as parse_edits
from treadle.model.approvals import APPROVE
from treadle.model.errors import InvalidInput
from treadle.model.values import Json

Ids = Annotated[list[str], argument(metavar="ID...", help="The approvals' ids")]
Reason = Annotated[str | None, option(help="Reason, stored with the approval and passed to the waiting work")]
As = Annotated[str | None, option("--as", metavar="NAME", help="Who decides; default: your login name")]
Group = Annotated[list[str] | None, option("--group", metavar="NAME", help="A group you belong to; repeatable")]

_MANY = 100
"""Approvals decided by one call."""


async def approve(
    session: CommandSession,
    ids: Ids,
    reason: Reason = None,
    edit: Annotated[str | None, option(metavar="JSON", help="Merge this into the context first: a JSON object, @file or -")] = None,
    actor: As = None,
    groups: Group = None,
) -> None:
    """Approve; the waiting work continues immediately. Several ids are decided independently."""
    if edit is not None and len(set(ids)) > 1:
        raise InvalidInput("--edit takes one approval, because it changes the context of that approval.")
    await _decide(session, ids, "approve", reason, parse_edits(edit), actor, groups)


async def deny(session: CommandSession, ids: Ids, reason: Reason = None, actor: As = None, groups: Group = None) -> None:
    """Deny; the waiting task fails immediately. Several ids are decided independently."""
    await _decide(session, ids, "deny", reason, None, actor, groups)


async def _decide(
    session: CommandSession,
    ids: list[str],
    decision: Literal["approve", "deny"],
    reason: str | None,
    edits: dict[str, Json] | None,
    actor: str | None,
    groups: list[str] | None,
) -> None:
    """Decide them; with one id an error is raised, with several all are tried and each answer is shown."""
    session.refuse_claims(actor, groups)
    who = actor or session.actor.removeprefix("cli:")
    async with session.api(actor=who, groups=groups or ()) as api:
        if len(set(ids)) == 1:
            if decision == APPROVE:
                done = await api.approvals.approve(ids[0], reason=reason, edits=edits)
            else:
                done = await api.approvals.deny(ids[0], reason=reason)
            session.show(done, lambda: plain(done.standing))
            return
        each_once = list(dict.fromkeys(ids))
        answers: list[DecisionResult] = []
        for first in range(0, len(each_once), _MANY):
            answers += (await api.approvals.decide_many(each_once[first : first + _MANY], decision, reason=reason)).answers
    session.show(DecisionResults(answers), lambda: plain("\n".join(answer.text for answer in answers)))
    errors = [answer.error for answer in answers if answer.error is not None]
    if errors:
        codes = {exit_code_of_code(error.code) for error in errors}
        raise Exit(codes.pop() if len(codes) == 1 else FAILED)
