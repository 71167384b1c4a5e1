"""`treadle approvals ...`: what waits for a person, and deciding it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.exits import FAILED, exit_code_of
from treadle.cli.inputs import edits as parse_edits
from treadle.cli.session import Session
from treadle.cli.shapes import move_json
from treadle.cli.words import ago, facts, grid, plain, pretty, short, state, when
from treadle.model.approvals import APPROVE, DENY
from treadle.model.clock import as_text
from treadle.model.errors import InvalidInput
from treadle.model.names import APPROVAL
from treadle.model.values import Json, decode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.kernel.approvals import Decided, ShownApproval

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="The approvals' ids")]
Reason = Annotated[str | None, typer.Option(help="Why; kept with the approval, and told to the work")]
As = Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who decides; default: your login name")]
Group = Annotated[list[str] | None, typer.Option("--group", metavar="NAME", help="A group that you are in; may be repeated")]


async def list_approvals(
    session: Session,
    states: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only these; may be repeated; default: pending")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Those that are decided, expired or canceled too")] = False,
    task_id: Annotated[str | None, typer.Option("--task", metavar="ID", help="Only of this task")] = None,
    run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="Only of this run")] = None,
    limit: Annotated[int, typer.Option(help="At most that many, up to 1000")] = 50,
    before: Annotated[str | None, typer.Option(metavar="ID", help="The next page: only approvals older than this one")] = None,
) -> None:
    """List approvals that wait for a decision, newest first."""
    chosen = () if every else tuple(states or ("pending",))
    async with session.engine() as engine:
        found = await engine.approvals.list(states=chosen, task_id=task_id, run_id=run_id, before_id=before, limit=limit)
        now = await engine.store.now()
    more = found[-1].id if len(found) == limit else None
    value = {"approvals": [approval_json(each) for each in found], "next_before": more}
    session.show(value, lambda: _table(found, now, more))


async def show(session: Session, approval_id: Annotated[str, typer.Argument(metavar="ID", help="The approval's id")]) -> None:
    """Everything about one approval: the question, its context, votes and history."""
    async with session.engine() as engine:
        found = await engine.approvals.show(approval_id)
        now = await engine.store.now()
    value = approval_json(found) | {"moves": [move_json(move) for move in found.moves]}
    session.show(value, lambda: _one(found, now))


async def approve(
    session: Session,
    ids: Ids,
    reason: Reason = None,
    edit: Annotated[
        str | None, typer.Option(metavar="JSON", help="Change the context first: JSON object, @file or -; laid over it")
    ] = None,
    actor: As = None,
    groups: Group = None,
) -> None:
    """Approve; the work that waits goes on at once. Several ids are decided each by itself."""
    if edit is not None and len(set(ids)) > 1:
        raise InvalidInput("--edit goes with one approval: what is edited is the context of that one.")
    await _decide(session, ids, APPROVE, reason, parse_edits(edit), actor, groups)


async def deny(session: Session, ids: Ids, reason: Reason = None, actor: As = None, groups: Group = None) -> None:
    """Deny; the task that waits fails at once. Several ids are decided each by itself."""
    await _decide(session, ids, DENY, reason, None, actor, groups)


async def _decide(
    session: Session,
    ids: list[str],
    decision: str,
    reason: str | None,
    edits: dict[str, Json] | None,
    actor: str | None,
    groups: list[str] | None,
) -> None:
    """One that fails is an error; of several, all are tried, and what came of each is shown."""
    who, member_of = actor or session.actor.removeprefix("cli:"), tuple(groups or ())
    async with session.engine() as engine:
        if len(set(ids)) == 1:
            done = await engine.approvals.decide(ids[0], decision, actor=who, reason=reason, edits=edits, groups=member_of)
            session.show(approval_json(done), lambda: plain(_now(done)))
            return
        answers = await engine.approvals.decide_many(ids, decision, actor=who, reason=reason, groups=member_of)
    value = {"answers": [_answer_json(each) for each in answers]}
    session.show(value, lambda: plain("\n".join(_answer(each) for each in answers)))
    errors = [each.error for each in answers if each.error is not None]
    if errors:
        codes = {exit_code_of(error) for error in errors}
        raise typer.Exit(codes.pop() if len(codes) == 1 else FAILED)


def approval_json(shown: ShownApproval) -> dict[str, Json]:
    """An approval, the same names as in Python."""
    approval, request = shown.approval, shown.approval.request
    return {
        "id": shown.id,
        "state": shown.state,
        "title": request.title,
        "context": approval.context,
        "edited_by": approval.edited_by,
        "task_id": shown.task_id,
        "task_name": approval.task_name,
        "run_id": shown.run_id,
        "requested_by": request.requested_by,
        "deciders": list(approval.deciders),
        "quorum": request.quorum,
        "denials": request.denials,
        "edits": request.edits,
        "votes": [
            {"actor": each.actor, "decision": each.decision, "at": as_text(each.at), "reason": each.reason}
            for each in approval.votes
        ],
        "ended_by": approval.ended_by,
        "reason": approval.reason,
        "on_expiry": request.on_expiry,
        "requested_at": as_text(approval.requested_at),
        "expires_at": as_text(approval.expires_at),
        "remind_at": as_text(approval.remind_at),
        "escalate_at": as_text(approval.escalate_at),
        "escalated_at": as_text(approval.escalated_at),
        "reminders": approval.reminders,
        "round": approval.round,
        "previous_id": approval.previous_id,
        "next_id": approval.next_id,
        "ended_at": as_text(shown.ended_at),
    }


def _answer_json(answer: Decided) -> dict[str, Json]:
    if answer.error is not None:
        return {"id": answer.id, "error": {"code": answer.error.code, "message": str(answer.error)}}
    return {"id": answer.id, "state": answer.approval.state if answer.approval else None}


def _answer(answer: Decided) -> str:
    if answer.approval is not None:
        return _now(answer.approval)
    return f"{answer.id}: {answer.error}"


def _now(shown: ShownApproval) -> str:
    votes = sum(each.decision == APPROVE for each in shown.approval.votes)
    more = f", {votes} of {shown.approval.request.quorum} votes" if shown.state == "pending" else ""
    return f"{shown.approval.request.title} ({shown.id}) is {shown.state} now{more}"


def _table(found: list[ShownApproval], now: int, more: str | None) -> RenderableType:
    from rich.console import Group as Together

    if not found:
        return plain("No approvals.")
    table = grid("id", "state", "question", "of", "deciders", "votes", "asked", "expires")
    for each in found:
        approval = each.approval
        table.add_row(
            each.id,
            state(each.state),
            plain(short(approval.request.title)),
            plain(f"run {each.run_id}" if approval.task_name == APPROVAL else approval.task_name),
            plain(short(", ".join(approval.deciders) or "anyone", 30)),
            f"{sum(vote.decision == APPROVE for vote in approval.votes)}/{approval.request.quorum}",
            ago(approval.requested_at, now),
            ago(approval.expires_at, now),
        )
    return Together(table, plain(f"More: treadle approvals list --before {more}", "dim")) if more else table


def _one(shown: ShownApproval, now: int) -> RenderableType:
    from rich.console import Group as Together

    approval, request = shown.approval, shown.approval.request
    rows: list[tuple[str, object]] = [
        ("state", state(shown.state)),
        ("task", f"{approval.task_name} {shown.task_id}"),
        ("run", shown.run_id or "-"),
        ("asked", when(approval.requested_at, now)),
        ("asked by", request.requested_by or "-"),
        ("may decide", ", ".join(approval.deciders) or "anyone"),
        ("needs", f"{request.quorum} to approve, {request.denials} to deny"),
        ("may be edited", "yes" if request.edits else "no"),
        ("expires", f"{when(approval.expires_at, now)}{', then it is asked again' if request.on_expiry == 'ask_again' else ''}"),
        ("next reminder", when(approval.remind_at, now)),
        ("next escalation", when(approval.escalate_at, now)),
    ]
    for name, value in (("ended by", approval.ended_by), ("reason", approval.reason), ("edited by", approval.edited_by)):
        if value:
            rows.append((name, value))
    for name, value in (("asked before as", approval.previous_id), ("asked again as", approval.next_id)):
        if value:
            rows.append((name, value))
    parts: list[RenderableType] = [plain(request.title, "bold"), facts(rows), plain("\nContext", "bold"), pretty(approval.context)]
    if shown.moves:
        table = grid(">", "at", "move", "by", "data")
        for move in shown.moves:
            said = decode(move.data) or {}
            text = "; ".join(f"{name} {value}" for name, value in said.items())
            table.add_row(str(move.version), as_text(move.at), plain(move.move), plain(move.actor or ""), plain(short(text)))
        parts += [plain("\nHistory", "bold"), table]
    return Together(*parts)
