"""`treadle approvals ...`: list, show and decide approvals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from click.exceptions import Exit

from treadle.api.approvals import DecisionResult, DecisionResults
from treadle.api.view import short
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.exits import FAILED, exit_code_of_code
from treadle.interfaces.cli.input.values import edits as parse_edits
from treadle.interfaces.cli.output.format import ago, facts, grid, ms, plain, pretty, state, when
from treadle.interfaces.cli.session import Session
from treadle.model.approvals import APPROVE
from treadle.model.clock import as_text
from treadle.model.errors import InvalidInput
from treadle.model.names import APPROVAL
from treadle.model.values import Json

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from treadle.api.approvals import Approval, ApprovalDetail

Ids = Annotated[list[str], argument(metavar="ID...", help="The approvals' ids")]
Reason = Annotated[str | None, option(help="Reason, stored with the approval and passed to the waiting work")]
As = Annotated[str | None, option("--as", metavar="NAME", help="Who decides; default: your login name")]
Group = Annotated[list[str] | None, option("--group", metavar="NAME", help="A group you belong to; repeatable")]

_PAGE = 50
_MANY = 100
"""Approvals decided by one call."""


async def list_approvals(
    session: Session,
    states: Annotated[
        list[str] | None, option("--state", metavar="STATE", help="Only these states; repeatable; default: pending")
    ] = None,
    every: Annotated[bool, option("--all", help="Also show decided, expired and canceled approvals")] = False,
    task_id: Annotated[str | None, option("--task", metavar="ID", help="Only of this task")] = None,
    run_id: Annotated[str | None, option("--run", metavar="ID", help="Only of this run")] = None,
    limit: Annotated[int, option(help="Maximum number, up to 1000")] = _PAGE,
    before: Annotated[str | None, option(metavar="ID", help="Next page: only approvals older than this one")] = None,
) -> None:
    """List pending approvals, newest first."""
    async with session.api() as api:
        page = await api.approvals.list(state=states or (), every=every, task_id=task_id, run_id=run_id, limit=limit, before=before)
        now = (await api.system.time()).now
    session.show_page(page, page.approvals, "No approvals.", lambda: _table(page.approvals, now), before=page.next_before)


async def show(session: Session, approval_id: Annotated[str, argument(metavar="ID", help="The approval's id")]) -> None:
    """Show one approval: the question, its context, votes and history."""
    async with session.api() as api:
        found = await api.approvals.get(approval_id)
        now = (await api.system.time()).now
    session.show(found, lambda: _one(found, now))


async def approve(
    session: Session,
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


async def deny(session: Session, ids: Ids, reason: Reason = None, actor: As = None, groups: Group = None) -> None:
    """Deny; the waiting task fails immediately. Several ids are decided independently."""
    await _decide(session, ids, "deny", reason, None, actor, groups)


async def _decide(
    session: Session,
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
            deciding = (
                api.approvals.approve(ids[0], reason=reason, edits=edits)
                if decision == APPROVE
                else api.approvals.deny(ids[0], reason=reason)
            )
            done = await deciding
            session.show(done, lambda: plain(done.standing))
            return
        each_once = list(dict.fromkeys(ids))
        answers: list[DecisionResult] = []
        for first in range(0, len(each_once), _MANY):
            answers += (await api.approvals.decide_many(each_once[first : first + _MANY], decision, reason=reason)).answers
    found = DecisionResults(answers)
    session.show(found, lambda: plain("\n".join(each.text for each in answers)))
    errors = [each.error for each in answers if each.error is not None]
    if errors:
        codes = {exit_code_of_code(error.code) for error in errors}
        raise Exit(codes.pop() if len(codes) == 1 else FAILED)


def _table(approvals: list[Approval], now: datetime) -> RenderableType:
    table = grid("id", "state", "question", "?about", "?of", "?deciders", "?votes", "?asked", "?expires")
    for each in approvals:
        table.add_row(
            each.id,
            state(each.state),
            plain(short(each.title)),
            plain(short(each.about, 40)),
            plain(f"run {each.run_id}" if each.task_name == APPROVAL else each.task_name),
            plain(short(", ".join(each.deciders) or "anyone", 30)),
            f"{sum(vote.decision == APPROVE for vote in each.votes)}/{each.quorum}",
            ago(each.requested_at, now),
            ago(each.expires_at, now),
        )
    return table


def _one(approval: ApprovalDetail, now: datetime) -> RenderableType:
    from rich.console import Group as Together

    rows: list[tuple[str, object]] = [
        ("state", state(approval.state)),
        ("task", f"{approval.task_name} {approval.task_id}"),
        ("run", approval.run_id or "-"),
        ("asked", when(approval.requested_at, now)),
        ("asked by", approval.requested_by or "-"),
        ("may decide", ", ".join(approval.deciders) or "anyone"),
        ("needs", f"{approval.quorum} to approve, {approval.denials} to deny"),
        ("may be edited", "yes" if approval.edits else "no"),
        ("expires", f"{when(approval.expires_at, now)}{', then it is asked again' if approval.on_expiry == 'ask_again' else ''}"),
        ("next reminder", when(approval.remind_at, now)),
        ("next escalation", when(approval.escalate_at, now)),
    ]
    for name, value in (
        ("ended by", approval.ended_by),
        ("reason", approval.reason),
        ("edited by", approval.edited_by),
        ("asked before as", approval.previous_id),
        ("asked again as", approval.next_id),
    ):
        if value:
            rows.append((name, value))
    parts: list[RenderableType] = [plain(approval.title, "bold"), facts(rows), plain("\nContext", "bold"), pretty(approval.context)]
    if approval.moves:
        table = grid(">", "at", "move", "by", "data")
        for move in approval.moves:
            text = "; ".join(f"{name} {value}" for name, value in (move.data or {}).items())
            table.add_row(str(move.version), as_text(ms(move.at)), plain(move.move), plain(move.actor or ""), plain(short(text)))
        parts += [plain("\nHistory", "bold"), table]
    return Together(*parts)
