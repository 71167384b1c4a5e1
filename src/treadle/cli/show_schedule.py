"""Schedules as JSON and as people see them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from treadle.cli.words import ago, facts, grid, plain, pretty, short, span, state, when
from treadle.model.clock import as_text
from treadle.model.schedules import Firing, ScheduleBody, Target, When
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.kernel.schedules import Backfill, Preview, Schedule
    from treadle.model.tasks import Move


def target_json(target: Target) -> dict[str, Json]:
    """What is started."""
    return {
        "kind": target.kind,
        "name": target.name,
        "flow": target.flow,
        "version": target.version,
        "inputs": target.inputs,
        "given_as": target.given_as,
        "task_list": target.task_list,
        "priority": target.priority,
        "timeout_for": target.timeout_for,
    }


def schedule_json(schedule: Schedule) -> dict[str, Json]:
    """A schedule."""
    body = schedule.body
    return {
        "id": schedule.id,
        "name": schedule.name,
        "state": schedule.state,
        "version": schedule.version,
        "next_at": as_text(schedule.next_at),
        "when": _when_json(body.when),
        "target": target_json(body.target),
        "catch_up": {
            "policy": body.catch_up.policy,
            "limit": body.catch_up.limit,
            "window_for": body.catch_up.window_for,
            "grace_for": body.catch_up.grace_for,
        },
        "overlap": body.overlap,
        "jitter_for": body.jitter_for,
        "start_at": as_text(body.start_at),
        "end_at": as_text(body.end_at),
        "cursor": as_text(body.cursor),
        "waiting": as_text(body.waiting),
        "fired": body.fired,
        "skipped": body.skipped,
        "recent": [_firing_json(firing) for firing in body.recent],
        "error": body.error,
        "task_id": schedule.task_id,
        "created_at": as_text(schedule.created_at),
        "updated_at": as_text(schedule.updated_at),
    }


def _when_json(said: When) -> dict[str, Json]:
    if said.cron is not None:
        return {"cron": said.cron, "zone": said.zone}
    if said.every_for is not None:
        return {"every_for": said.every_for, "anchor_at": as_text(said.anchor_at)}
    return {"at": as_text(said.at)}


def _firing_json(firing: Firing) -> dict[str, Json]:
    return {
        "tick": as_text(firing.tick),
        "at": as_text(firing.at),
        "kind": firing.kind,
        "id": firing.id,
        "note": firing.note,
    }


def preview_json(body: ScheduleBody, preview: Preview) -> dict[str, Json]:
    """What a schedule will do."""
    return {
        "when": _when_json(body.when),
        "ticks": [as_text(tick) for tick in preview.ticks],
        "due": {
            "fire": [as_text(tick) for tick in preview.due.fire],
            "skipped": preview.due.skipped,
        },
        "policy": preview.policy,
    }


def backfill_json(done: Backfill) -> dict[str, Json]:
    """What a backfill did, or would do."""
    return {
        "dry_run": done.dry_run,
        "ticks": [as_text(tick) for tick in done.ticks],
        "started": [{"kind": each.kind, "id": each.id, "tick": as_text(each.tick)} for each in done.started],
        "already": [as_text(tick) for tick in done.already],
    }


def target_words(target: Target) -> str:
    """What is started, in a few words."""
    return f"{target.kind} {target.name}" + (f" of {target.flow}" if target.flow else "")


def when_words(said: When) -> str:
    """When it fires, in a few words."""
    if said.cron is not None:
        return f"{said.cron} ({said.zone})"
    return f"every {span(said.every_for)}" if said.every_for is not None else f"once at {as_text(said.at)}"


def local(tick: int, zone: str) -> str:
    """What the clock of the zone shows at the tick."""
    from treadle.kernel.calendar import find_zone

    return datetime.fromtimestamp(tick / 1000, UTC).astimezone(find_zone(zone)).strftime("%a %Y-%m-%d %H:%M:%S %Z (%z)")


def schedules_table(found: list[Schedule], now: int, more: str | None) -> RenderableType:
    """Schedules in a list."""
    from rich.console import Group

    if not found:
        return plain("No schedules. Add one with `treadle schedules add NAME --cron '0 3 * * *' --task NAME`.")
    table = grid("name", "state", "when", "starts", "next", ">fired", ">skipped", "note")
    for each in found:
        body = each.body
        note = (body.error or {}).get("message", "") or ("a tick waits for the last one's end" if body.waiting else "")
        table.add_row(
            plain(each.name),
            state(each.state),
            plain(when_words(body.when)),
            plain(target_words(body.target)),
            ago(each.next_at, now),
            str(body.fired),
            str(body.skipped),
            plain(short(note)),
        )
    return Group(table, plain(f"More: treadle schedules list --before {more}", "dim")) if more else table


def show_schedule(schedule: Schedule, moves: list[Move], now: int) -> RenderableType:
    """One schedule with all there is to say."""
    from rich.console import Group

    from treadle.kernel.catchup import describe

    body = schedule.body
    rows: list[tuple[str, object]] = [
        ("id", schedule.id),
        ("state", state(schedule.state)),
        ("when", when_words(body.when)),
        ("next", when(schedule.next_at, now)),
        ("starts", target_words(body.target)),
        ("catch-up", describe(body.catch_up)),
        ("overlap", body.overlap),
        ("fired", f"{body.fired}, skipped {body.skipped}"),
        ("task", schedule.task_id or "-"),
    ]
    for name, at in (("from", body.start_at), ("until", body.end_at), ("waiting", body.waiting)):
        if at is not None:
            rows.append((name, when(at, now)))
    if body.jitter_for:
        rows.append(("jitter", f"up to {span(body.jitter_for)}"))
    parts: list[RenderableType] = [plain(schedule.name, "bold"), facts(rows)]
    if body.target.inputs:
        parts += [plain("inputs", "bold"), pretty(body.target.inputs)]
    if body.error is not None:
        parts.append(plain(f"cannot start: {body.error.get('code')}: {body.error.get('message')}; it is tried again", "red"))
    if body.recent:
        table = grid("tick", "at", "came to")
        for firing in body.recent:
            came = f"{firing.kind} {firing.id}" if firing.id else ""
            table.add_row(as_text(firing.tick), as_text(firing.at), plain(" ".join(part for part in (came, firing.note) if part)))
        parts.append(table)
    if moves:
        table = grid("at", "move", "by")
        for move in moves:
            table.add_row(as_text(move.at), plain(move.move), plain(move.actor or ""))
        parts.append(table)
    return Group(*parts)


def show_preview(title: str, body: ScheduleBody, preview: Preview, now: int) -> RenderableType:
    """What a schedule will do."""
    from rich.console import Group

    due = preview.due
    parts: list[RenderableType] = [plain(f"{title}: {when_words(body.when)}", "bold")]
    if due.fire or due.skipped:
        skipped = f"; {due.skipped} would be skipped" if due.skipped else ""
        parts.append(plain(f"due now: {len(due.fire)} would fire{skipped} ({preview.policy})", "yellow"))
    table = grid("tick", f"in {body.when.zone}", "from now")
    for tick in due.fire:
        table.add_row(as_text(tick), local(tick, body.when.zone), plain("due", "yellow"))
    for tick in preview.ticks:
        table.add_row(as_text(tick), local(tick, body.when.zone), ago(tick, now))
    return Group(*parts, table if preview.ticks or due.fire else plain("No more ticks."))


def show_backfill(done: Backfill, zone: str) -> RenderableType:
    """What a backfill did, or would do."""
    from rich.console import Group

    verb = "Would start" if done.dry_run else "Started"
    head = plain(f"{verb} {len(done.started)} of {len(done.ticks)} tick(s); {len(done.already)} had been started before.")
    table = grid("tick", f"in {zone}", "kind", "id")
    for each in done.started:
        table.add_row(as_text(each.tick), local(each.tick, zone), plain(each.kind), each.id)
    return Group(head, table) if done.started else head
