"""`treadle objectives ...`: add, approve, show, block and unblock objectives of the goal pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from treadle.api.objectives import STATUSES, BoardColumn
from treadle.api.view import short
from treadle.goals.records import Status
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.input.values import payload as parse_payload
from treadle.interfaces.cli.output.format import facts, grid, ms, plain
from treadle.interfaces.cli.session import Session
from treadle.model.clock import as_text

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType
    from rich.text import Text

    from treadle.api.objectives import Blocker, Objective, ObjectiveBoard, ObjectiveDetail, WorkorderTrail

ObjectiveId = Annotated[str, argument(metavar="ID", help="The objective's id")]
Actor = Annotated[str | None, option("--as", metavar="NAME", help="Name recorded in the log; default: cli:USER")]
Level = Annotated[int, option(min=0, max=4, help="0 to 4; 4 is the highest")]
OptionalLevel = Annotated[int | None, option(min=0, max=4, help="0 to 4; 4 is the highest")]
Criteria = Annotated[list[str] | None, option("--accept", metavar="TEXT", help="An acceptance criterion; repeatable")]
Metadata = Annotated[str | None, option(metavar="JSON", help="A JSON object, @file, or - for stdin")]
Prompt = Annotated[str | None, option(metavar="TEXT", help="Text for its handler, instead of the topology's")]

_STYLES = {
    Status.NEW: "magenta",
    Status.TODO: "yellow",
    Status.IN_PROGRESS: "cyan",
    Status.BLOCKED: "bold red",
    Status.DONE: "green",
}
_BOARD_ROWS = 20
_PAGE = 50


async def add(
    session: Session,
    title: Annotated[str, argument(metavar="TITLE", help="The goal, in one line")],
    accept: Criteria = None,
    kind: Annotated[str, option("--type", help="Type, which selects the rules of the topology")] = "TICKET",
    importance: Level = 2,
    urgency: Level = 2,
    blocked_by: Annotated[
        list[str] | None, option(metavar="ID|TEXT", help="An objective that must be DONE first, or a reason; repeatable")
    ] = None,
    metadata: Metadata = None,
    prompt: Prompt = None,
    key: Annotated[
        str | None,
        option(metavar="KEY", help="If an objective with this key is not DONE yet, return it instead of creating another"),
    ] = None,
    actor: Actor = None,
) -> None:
    """Add an objective; it stays NEW until it is approved."""
    parsed = parse_payload(metadata)
    session.refuse_claims(actor)
    async with session.api(migrate=True, actor=actor) as api:
        made = await api.objectives.add(
            title,
            acceptance_criteria=accept or [],
            type=kind,
            importance=importance,
            urgency=urgency,
            blocked_by=blocked_by or [],
            metadata=parsed,
            prompt=prompt,
            key=key,
        )
    _show_one(session, made)


async def list_objectives(
    session: Session,
    statuses: Annotated[list[Status] | None, option("--status", help="Only with this status; repeatable")] = None,
    limit: Annotated[int, option(help="Maximum number, up to 1000")] = _PAGE,
    before: Annotated[str | None, option(metavar="ID", help="Next page: only objectives before this one")] = None,
) -> None:
    """List objectives, newest first."""
    async with session.api() as api:
        page = await api.objectives.list(status=[each.value for each in statuses or ()], limit=limit, before=before)
    session.show_page(page, page.objectives, "No objectives.", lambda: _table(page.objectives), before=page.next_before)


async def show(session: Session, objective_id: ObjectiveId) -> None:
    """Show one objective: its status and the reason, its workorders with their output and gate results."""
    async with session.api() as api:
        trail = await api.objectives.get(objective_id)
    session.show(trail, lambda: _trail(trail))


async def approve(session: Session, objective_id: ObjectiveId, actor: Actor = None) -> None:
    """Approve a NEW objective, so that work on it can start."""
    session.refuse_claims(actor)
    async with session.api(actor=actor) as api:
        _show_one(session, await api.objectives.approve(objective_id))


async def block(
    session: Session,
    objective_id: ObjectiveId,
    reason: Annotated[str | None, option(metavar="TEXT", help="Reason; blocks until somebody unblocks it")] = None,
    on: Annotated[str | None, option(metavar="ID", help="Objective to wait for; blocks until that is DONE")] = None,
    actor: Actor = None,
) -> None:
    """Block a TODO objective."""
    session.refuse_claims(actor)
    async with session.api(actor=actor) as api:
        _show_one(session, await api.objectives.block(objective_id, reason=reason, on=on))


async def unblock(session: Session, objective_id: ObjectiveId, actor: Actor = None) -> None:
    """Resolve all blockers of an objective and reset its attempts."""
    session.refuse_claims(actor)
    async with session.api(actor=actor) as api:
        _show_one(session, await api.objectives.unblock(objective_id))


async def edit(
    session: Session,
    objective_id: ObjectiveId,
    title: Annotated[str | None, option(metavar="TEXT", help="The goal, in one line")] = None,
    accept: Criteria = None,
    importance: OptionalLevel = None,
    urgency: OptionalLevel = None,
    metadata: Metadata = None,
    prompt: Prompt = None,
    actor: Actor = None,
) -> None:
    """Change an objective that is not DONE."""
    parsed = parse_payload(metadata)
    session.refuse_claims(actor)
    async with session.api(actor=actor) as api:
        made = await api.objectives.edit(
            objective_id,
            title=title,
            acceptance_criteria=accept,
            importance=importance,
            urgency=urgency,
            metadata=parsed,
            prompt=prompt,
        )
    _show_one(session, made)


async def board(
    session: Session, limit: Annotated[int, option(min=1, max=1000, help="Maximum number per status")] = _BOARD_ROWS
) -> None:
    """Show all objectives side by side, by status."""
    async with session.api() as api:
        found = await api.objectives.board(limit=limit)
    session.show(found, lambda: _board(found))


async def claims(session: Session) -> None:
    """List the current claims on events, workorders and other tasks."""
    async with session.api() as api:
        found = await api.objectives.claims()

    def table() -> RenderableType:
        rows = grid("resource", "id", "owner", ">version", "heartbeat", "lease until")
        for each in found.claims:
            rows.add_row(
                each.resource_type,
                each.resource_id,
                each.owner_id,
                str(each.claim_version),
                as_text(ms(each.heartbeat_at)),
                as_text(ms(each.lease_expires_at)),
            )
        return rows if found.claims else plain("Nothing is claimed.")

    session.show(found, table)


# --- output ---


def _show_one(session: Session, objective: Objective) -> None:
    session.show(objective, lambda: _line(objective))


def _line(objective: Objective) -> RenderableType:
    from rich.text import Text

    return Text.assemble(plain(objective.objective_id), " ", _status(objective.status), " ", plain(objective.title))


def _status(status: str) -> Text:
    return plain(status, _STYLES[Status(status)])


def _table(objectives: list[Objective]) -> RenderableType:
    table = grid("id", "status", "type", ">imp", ">urg", "title", "note")
    for each in objectives:
        levels = (str(each.importance), str(each.urgency))
        table.add_row(each.objective_id, _status(each.status), each.type, *levels, plain(short(each.title)), plain(_note(each)))
    return table


def _waits(blocker: Blocker) -> str:
    """The blocker's text, marked if the blocking objective is BLOCKED itself and must be unblocked first."""
    return f"{blocker.text} (BLOCKED)" if blocker.objective_status == Status.BLOCKED else str(blocker.text)


def _note(objective: Objective) -> str:
    notes = [_waits(blocker) for blocker in objective.open_blockers]
    if objective.status == Status.NEW:
        notes.insert(0, "not approved")
    if objective.overdue_at is not None and objective.status != Status.DONE:
        notes.insert(0, "overdue")
    return short("; ".join(notes), 80)


def _board(board: ObjectiveBoard) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", expand=True)
    cells = []
    for status in STATUSES:
        column: BoardColumn = getattr(board, status)
        table.add_column(f"{status} {column.count}", ratio=1, overflow="fold", header_style=_STYLES[Status(status)])
        left = column.count - len(column.objectives)
        more = [plain(f"and {left} more", "dim")] if left > 0 else []
        cells.append([*(_card(each) for each in column.objectives), *more])
    for row in range(max((len(cell) for cell in cells), default=0)):
        table.add_row(*(cell[row] if row < len(cell) else "" for cell in cells))
    return table


def _card(objective: Objective) -> RenderableType:
    note = _note(objective)
    return plain(f"{short(objective.title, 80)}\n{objective.objective_id}" + (f"\n{note}" if note else ""))


def _trail(objective: ObjectiveDetail) -> RenderableType:
    from rich.console import Group

    rows: list[tuple[str, object]] = [
        ("status", objective.status),
        ("why", short(objective.why, 300)),
        ("type", objective.type),
        ("importance", objective.importance),
        ("urgency", objective.urgency),
        ("approved", f"by {objective.approved_by} at {_text(objective.approved_at)}" if objective.approved_by else "not yet"),
        ("overdue", _text(objective.overdue_at) or "no"),
    ]
    rows += [("done when", text) for text in objective.acceptance_criteria]
    rows += [
        (f"blocker {each.blocker_id}", f"{short(_waits(each), 200)} ({_resolution(each.resolved_by)})")
        for each in objective.blockers
    ]
    parts: list[RenderableType] = [_line(objective), facts(rows)]
    for number, each in enumerate(objective.workorder_trails, 1):
        parts += [plain(f"\nWorkorder {number} {each.workorder.work_order_id}", "bold"), facts(_workorder_rows(each))]
    return Group(*parts)


def _text(at: datetime | None) -> str | None:
    return None if at is None else as_text(ms(at))


def _resolution(actor: str | None) -> str:
    return "open" if actor is None else f"resolved by {actor}"


def _workorder_rows(trail: WorkorderTrail) -> list[tuple[str, object]]:
    order, bundle, record, pause = trail.workorder, trail.output_bundle, trail.run_record, trail.pause_state
    rows: list[tuple[str, object]] = [
        ("status", order.status),
        ("handler", order.diazotroph_type),
        ("budget", f"{order.budget_ms} ms"),
    ]
    if bundle is not None:
        rows += [("brought", short(str(bundle.content), 200)), *(("note", short(note, 200)) for note in bundle.notes)]
    if record is not None:
        rows += [("judged", f"{record.gate_result}: {short(record.reason, 200)}")]
        rows += [(f"gate {each.gate}", f"{each.result}: {short(each.reason, 200)}") for each in record.gates]
    if pause is not None:
        rows += [("paused", pause.reason), *((f"next {each.priority}", each.action) for each in pause.actions)]
    return rows
