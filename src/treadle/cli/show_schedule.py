"""Schedules as people see them, and as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from treadle.api.wire import to_builtins
from treadle.cli.format import ago, facts, grid, ms, plain, pretty, short, state, when
from treadle.model.clock import as_text, span
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.schedules import Backfilled, Schedule, SchedulePage, SchedulePreview, ScheduleTime, Target
    from treadle.api.tasks import MoveMade


def schedule_json(schedule: Schedule) -> dict[str, Json]:
    """A schedule; of its times only those that apply."""
    return _bare(schedule)


def preview_json(preview: SchedulePreview) -> dict[str, Json]:
    """What a schedule will do."""
    return _bare(preview)


def _bare(record: Any) -> dict[str, Json]:
    value: dict[str, Json] = to_builtins(record)
    value["when"] = {name: each for name, each in value["when"].items() if each is not None}
    return value


def target_words(target: Target) -> str:
    """What is started, in a few words."""
    return f"{target.kind} {target.name}" + (f" of {target.flow}" if target.flow else "")


def when_words(said: ScheduleTime) -> str:
    """When it fires, in a few words."""
    if said.cron is not None:
        return f"{said.cron} ({said.zone})"
    return f"every {span(said.every_for)}" if said.every_for is not None else f"once at {_text(said.at)}"


def _text(at: datetime | None) -> str:
    return "-" if at is None else as_text(ms(at)) or ""


def local(tick: datetime, zone: str) -> str:
    """What the clock of the zone shows at the tick."""
    from treadle.kernel.schedules.ticks import find_zone

    return tick.astimezone(find_zone(zone)).strftime("%a %Y-%m-%d %H:%M:%S %Z (%z)")


def schedules_table(page: SchedulePage, now: datetime, more: str) -> RenderableType:
    """Schedules in a list."""
    from rich.console import Group

    if not page.schedules:
        return plain("No schedules. Add one with `treadle schedules add NAME --cron '0 3 * * *' --task NAME`.")
    table = grid("name", "state", "when", "starts", "next", ">fired", ">skipped", "note")
    for each in page.schedules:
        note = (each.error or {}).get("message", "") or ("a tick waits for the last one's end" if each.waiting else "")
        table.add_row(
            plain(each.name),
            state(each.state),
            plain(when_words(each.when)),
            plain(target_words(each.target)),
            ago(each.next_at, now),
            str(each.fired),
            str(each.skipped),
            plain(short(note)),
        )
    return Group(table, plain(f"More: {more}", "dim")) if page.next_before else table


def show_schedule(schedule: Schedule, moves: list[MoveMade], now: datetime) -> RenderableType:
    """One schedule with all there is to say."""
    from rich.console import Group

    from treadle.kernel.schedules.decide import describe
    from treadle.model.schedules import CatchUp

    said = schedule.catch_up
    policy = CatchUp(policy=said.policy, limit=said.limit, window_for=said.window_for, grace_for=said.grace_for)
    rows: list[tuple[str, object]] = [
        ("id", schedule.id),
        ("state", state(schedule.state)),
        ("when", when_words(schedule.when)),
        ("next", when(schedule.next_at, now)),
        ("starts", target_words(schedule.target)),
        ("catch-up", describe(policy)),
        ("overlap", schedule.overlap),
        ("fired", f"{schedule.fired}, skipped {schedule.skipped}"),
        ("task", schedule.task_id or "-"),
    ]
    for name, at in (("from", schedule.start_at), ("until", schedule.end_at), ("waiting", schedule.waiting)):
        if at is not None:
            rows.append((name, when(at, now)))
    if schedule.jitter_for:
        rows.append(("jitter", f"up to {span(schedule.jitter_for)}"))
    parts: list[RenderableType] = [plain(schedule.name, "bold"), facts(rows)]
    if schedule.target.inputs:
        parts += [plain("inputs", "bold"), pretty(schedule.target.inputs)]
    if schedule.error is not None:
        parts.append(
            plain(f"cannot start: {schedule.error.get('code')}: {schedule.error.get('message')}; it is tried again", "red")
        )
    if schedule.recent:
        table = grid("tick", "at", "came to")
        for firing in schedule.recent:
            came = f"{firing.kind} {firing.id}" if firing.id else ""
            table.add_row(_text(firing.tick), _text(firing.at), plain(" ".join(part for part in (came, firing.note) if part)))
        parts.append(table)
    if moves:
        table = grid("at", "move", "by")
        for move in moves:
            table.add_row(_text(move.at), plain(move.move), plain(move.actor or ""))
        parts.append(table)
    return Group(*parts)


def show_preview(title: str, preview: SchedulePreview, now: datetime) -> RenderableType:
    """What a schedule will do."""
    from rich.console import Group

    due = preview.due
    parts: list[RenderableType] = [plain(f"{title}: {when_words(preview.when)}", "bold")]
    if due.fire or due.skipped:
        skipped = f"; {due.skipped} would be skipped" if due.skipped else ""
        parts.append(plain(f"due now: {len(due.fire)} would fire{skipped} ({preview.policy})", "yellow"))
    table = grid("tick", f"in {preview.zone}", "from now")
    for tick in due.fire:
        table.add_row(_text(tick), local(tick, preview.zone), plain("due", "yellow"))
    for tick in preview.ticks:
        table.add_row(_text(tick), local(tick, preview.zone), ago(tick, now))
    return Group(*parts, table if preview.ticks or due.fire else plain("No more ticks."))


def show_backfill(done: Backfilled, zone: str) -> RenderableType:
    """What a backfill did, or would do."""
    from rich.console import Group

    verb = "Would start" if done.dry_run else "Started"
    head = plain(f"{verb} {len(done.started)} of {len(done.ticks)} tick(s); {len(done.already)} had been started before.")
    table = grid("tick", f"in {zone}", "kind", "id")
    for each in done.started:
        table.add_row(_text(each.tick), local(each.tick, zone), plain(each.kind), each.id)
    return Group(head, table) if done.started else head
