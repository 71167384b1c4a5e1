"""`treadle objectives ...`: what people want: add it, approve it, see how far it is, block and unblock it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.inputs import payload as parse_payload
from treadle.cli.session import Session
from treadle.cli.shapes import move_json
from treadle.cli.words import facts, grid, plain, short
from treadle.model.goals import Objective, ObjectiveType, Status
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from treadle.kernel.goal_reads import ObjectiveTrail, WorkorderTrail

ObjectiveId = Annotated[str, typer.Argument(metavar="ID", help="The objective's id")]
Actor = Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who does it, for the log; default: you, as cli:USER")]
Level = Annotated[int, typer.Option(min=0, max=4, help="0 to 4, 4 is the highest")]
OptionalLevel = Annotated[int | None, typer.Option(min=0, max=4, help="0 to 4, 4 is the highest")]
Criteria = Annotated[list[str] | None, typer.Option("--accept", metavar="TEXT", help="An acceptance criterion; may be repeated")]
Metadata = Annotated[str | None, typer.Option(metavar="JSON", help="A JSON object, @file to read one, - to read it from stdin")]
Prompt = Annotated[str | None, typer.Option(metavar="TEXT", help="The text for its handler, instead of that of the topology")]

_STYLES = {
    Status.NEW: "magenta",
    Status.TODO: "yellow",
    Status.IN_PROGRESS: "cyan",
    Status.BLOCKED: "bold red",
    Status.DONE: "green",
}
_BOARD_ROWS = 20


async def add(
    session: Session,
    title: Annotated[str, typer.Argument(metavar="TITLE", help="What is wanted, in one line")],
    accept: Criteria = None,
    kind: Annotated[ObjectiveType, typer.Option("--type", help="Which rules of the topology it follows")] = ObjectiveType.TICKET,
    importance: Level = 2,
    urgency: Level = 2,
    blocked_by: Annotated[
        list[str] | None, typer.Option(metavar="ID|TEXT", help="An objective that must be DONE first, or a reason; may be repeated")
    ] = None,
    metadata: Metadata = None,
    prompt: Prompt = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="While an objective with it is not DONE, that one is meant")
    ] = None,
    actor: Actor = None,
) -> None:
    """Add an objective; it is NEW until somebody approves it."""
    parsed = parse_payload(metadata)
    async with session.engine(migrate=True) as engine:
        made = await engine.objectives.add(
            title,
            actor=actor or session.actor,
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
    statuses: Annotated[list[Status] | None, typer.Option("--status", help="Only with this status; may be repeated")] = None,
    limit: Annotated[int, typer.Option(help="At most that many, up to 1000")] = 50,
    before: Annotated[str | None, typer.Option(metavar="ID", help="The next page: only objectives before this one")] = None,
) -> None:
    """List objectives, newest first."""
    async with session.engine() as engine:
        found = await engine.objectives.list(statuses=statuses or [], before_id=before, limit=limit)
    more = found[-1].objective_id if len(found) == limit else None
    session.show({"objectives": [each.as_json() for each in found], "next_before": more}, lambda: _table(found, more))


async def show(session: Session, objective_id: ObjectiveId) -> None:
    """Everything about one objective: where it stands and why, its workorders, what they brought and how they were judged."""
    async with session.engine() as engine:
        trail = await engine.objectives.show(objective_id)
    session.show(trail_json(trail), lambda: _trail(trail))


async def approve(session: Session, objective_id: ObjectiveId, actor: Actor = None) -> None:
    """Let a NEW objective be worked on."""
    async with session.engine() as engine:
        _show_one(session, await engine.objectives.approve(objective_id, actor=actor or session.actor))


async def block(
    session: Session,
    objective_id: ObjectiveId,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; until somebody unblocks it")] = None,
    on: Annotated[str | None, typer.Option(metavar="ID", help="The objective that it waits for; until that is DONE")] = None,
    actor: Actor = None,
) -> None:
    """Keep a TODO objective from being worked on."""
    async with session.engine() as engine:
        _show_one(session, await engine.objectives.block(objective_id, actor=actor or session.actor, reason=reason, on=on))


async def unblock(session: Session, objective_id: ObjectiveId, actor: Actor = None) -> None:
    """Resolve all that blocks an objective; its tries start anew."""
    async with session.engine() as engine:
        _show_one(session, await engine.objectives.unblock(objective_id, actor=actor or session.actor))


async def edit(
    session: Session,
    objective_id: ObjectiveId,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="What is wanted, in one line")] = None,
    accept: Criteria = None,
    importance: OptionalLevel = None,
    urgency: OptionalLevel = None,
    metadata: Metadata = None,
    prompt: Prompt = None,
    actor: Actor = None,
) -> None:
    """Change an objective that is not DONE."""
    parsed = parse_payload(metadata)
    async with session.engine() as engine:
        made = await engine.objectives.edit(
            objective_id,
            actor=actor or session.actor,
            title=title,
            acceptance_criteria=accept,
            importance=importance,
            urgency=urgency,
            metadata=parsed,
            prompt=prompt,
        )
    _show_one(session, made)


async def board(
    session: Session, limit: Annotated[int, typer.Option(min=1, max=1000, help="At most that many of each status")] = _BOARD_ROWS
) -> None:
    """All objectives side by side, by status."""
    async with session.engine() as engine:
        found = await engine.objectives.board(limit)
    value = {
        status: {"count": count, "objectives": [each.as_json() for each in objectives]}
        for status, (count, objectives) in found.items()
    }
    session.show(value, lambda: _board(found))


async def claims(session: Session) -> None:
    """The claims that are held now: of events, of workorders, and of all other tasks."""
    async with session.engine() as engine:
        found = await engine.objectives.claims()
    value = {"claims": [each.as_json() for each in found]}

    def table() -> RenderableType:
        rows = grid("resource", "id", "owner", ">version", "heartbeat", "lease until")
        for each in found:
            rows.add_row(
                each.resource_type,
                each.resource_id,
                each.owner_id,
                str(each.claim_version),
                each.heartbeat_at,
                each.lease_expires_at,
            )
        return rows if found else plain("Nothing is claimed.")

    session.show(value, table)


# --- how it looks ---


def trail_json(trail: ObjectiveTrail) -> dict[str, Json]:
    """The objective and all that followed from it."""
    return {
        **trail.objective.as_json(),
        "why": trail.why,
        "events": [each.as_json() for each in trail.events],
        "workorder_trails": [_workorder_json(each) for each in trail.workorders],
        "overdue": None if trail.overdue is None else trail.overdue.as_json(),
        "moves": [move_json(move) for move in trail.moves],
    }


def _workorder_json(trail: WorkorderTrail) -> dict[str, Json]:
    parts = {
        "workorder": trail.workorder,
        "context_snapshot": trail.snapshot,
        "output_bundle": trail.bundle,
        "run_record": trail.run_record,
        "pause_state": trail.pause_state,
    }
    return {name: None if each is None else each.as_json() for name, each in parts.items()}


def _show_one(session: Session, objective: Objective) -> None:
    session.show(objective.as_json(), lambda: _line(objective))


def _line(objective: Objective) -> RenderableType:
    from rich.text import Text

    return Text.assemble(plain(objective.objective_id), " ", _status(objective.status), " ", plain(objective.title))


def _status(status: str) -> Text:
    return plain(status, _STYLES[Status(status)])


def _table(found: list[Objective], more: str | None) -> RenderableType:
    from rich.console import Group

    if not found:
        return plain("No objectives.")
    table = grid("id", "status", "type", ">imp", ">urg", "title", "note")
    for each in found:
        levels = (str(each.importance), str(each.urgency))
        table.add_row(each.objective_id, _status(each.status), each.type, *levels, plain(short(each.title)), plain(_note(each)))
    return Group(table, plain(f"More: treadle objectives list --before {more}", "dim")) if more else table


def _note(objective: Objective) -> str:
    notes = [str(blocker.text) for blocker in objective.open_blockers]
    if objective.status == Status.NEW:
        notes.insert(0, "not approved")
    if objective.overdue_at is not None and objective.status != Status.DONE:
        notes.insert(0, "overdue")
    return short("; ".join(notes), 80)


def _board(found: dict[str, tuple[int, list[Objective]]]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", expand=True)
    cells = []
    for status, (count, objectives) in found.items():
        table.add_column(f"{status} {count}", ratio=1, overflow="fold", header_style=_STYLES[Status(status)])
        more = [plain(f"and {count - len(objectives)} more", "dim")] if count > len(objectives) else []
        cells.append([*(_card(each) for each in objectives), *more])
    for row in range(max((len(cell) for cell in cells), default=0)):
        table.add_row(*(cell[row] if row < len(cell) else "" for cell in cells))
    return table


def _card(objective: Objective) -> RenderableType:
    note = _note(objective)
    return plain(f"{short(objective.title, 80)}\n{objective.objective_id}" + (f"\n{note}" if note else ""))


def _trail(trail: ObjectiveTrail) -> RenderableType:
    from rich.console import Group

    objective = trail.objective
    rows: list[tuple[str, object]] = [
        ("status", objective.status),
        ("why", short(trail.why, 300)),
        ("type", objective.type),
        ("importance", objective.importance),
        ("urgency", objective.urgency),
        ("approved", f"by {objective.approved_by} at {objective.approved_at}" if objective.approved_by else "not yet"),
        ("overdue", objective.overdue_at or "no"),
    ]
    rows += [("done when", text) for text in objective.acceptance_criteria]
    rows += [
        (f"blocker {each.blocker_id}", f"{short(str(each.text), 200)} ({_resolution(each.resolved_by)})")
        for each in objective.blockers
    ]
    parts: list[RenderableType] = [_line(objective), facts(rows)]
    for number, each in enumerate(trail.workorders, 1):
        parts += [plain(f"\nWorkorder {number} {each.workorder.work_order_id}", "bold"), facts(_workorder_rows(each))]
    return Group(*parts)


def _resolution(actor: str | None) -> str:
    return "open" if actor is None else f"resolved by {actor}"


def _workorder_rows(trail: WorkorderTrail) -> list[tuple[str, object]]:
    order, bundle, record, pause = trail.workorder, trail.bundle, trail.run_record, trail.pause_state
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
