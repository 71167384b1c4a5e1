"""`treadle schedules ...`: work that starts by time: add, edit, show, preview, pause, run now, backfill."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from treadle.api.options import ScheduleOptions, TimeOptions
from treadle.api.schedules import SCHEDULE, Backfilled, Started, describe_change, describe_time
from treadle.api.tasks import MOVES
from treadle.api.view import words
from treadle.api.wire import to_builtins
from treadle.engine import Engine
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import ago, details, grid, plain, table, together
from treadle.interfaces.cli.messages import tell_note
from treadle.interfaces.cli.session import Session
from treadle.interfaces.cli.values import moment
from treadle.model.errors import InvalidInput
from treadle.model.names import check_name
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.facade import Api
    from treadle.api.schedules import Schedule, SchedulePreview

Name = Annotated[str, argument(metavar="NAME", help="The schedule's name, or its id")]
DryRun = Annotated[bool, option("--dry-run", help="Change nothing; print the result")]

_BATCH = 50
"""Ticks that one call of a backfill starts."""


async def add(
    session: Session,
    name: Annotated[str, argument(metavar="NAME", help="A name for it, e.g. nightly-report")],
    paused: Annotated[bool, option("--paused", help="Add it paused")] = False,
    dry_run: DryRun = False,
    **options: Unpack[ScheduleOptions],
) -> None:
    """Start a task, a workflow or a function by time: by a cron line, at an interval, or once.

    A DURATION is 90, 1.5s, 5m, 2h or 1d; a TIME is 2027-01-15T09:00 in the time zone of --zone, or has its own offset.
    """
    if dry_run:
        await _preview_new(session, name, options)
        return
    async with session.api(migrate=True, first=lambda engine: _check(engine, name, options)) as api:
        schedule = await api.schedules.create(name, paused=paused, **options)
    session.show(as_json(schedule), lambda: plain(describe_change(schedule)))


def _check(engine: Engine, name: str, options: Mapping[str, Any]) -> None:
    """Check the options before the database is created."""
    from treadle.kernel.schedules.options import make_body

    check_name(name, "schedule name")
    engine.schedules.check(make_body(options, engine.kernel.clock.now()))


async def _preview_new(session: Session, name: str, options: Mapping[str, Any]) -> None:
    """Preview a schedule that is not stored."""
    from treadle.kernel.schedules.options import make_body

    check_name(name, "schedule name")
    make_body(options, 0)  # raises if it names nothing to start
    async with session.api(scratch=True) as api:
        found = await api.schedules.preview_new(**options)
        now = (await api.system.time()).now
    value = {"name": name, "dry_run": True} | as_json(found)
    session.show(value, lambda: show_preview(f"{name} (not added)", found, now))


async def preview(
    session: Session,
    name: Annotated[str | None, argument(metavar="[NAME]", help="A schedule; or give --cron, --every or --at")] = None,
    count: Annotated[int, option("--count", "-n", help="Number of ticks")] = 10,
    **options: Unpack[TimeOptions],
) -> None:
    """Show the missed ticks that fire now and the next ticks of a schedule. Changes nothing."""
    if (name is None) == (not options):
        raise InvalidInput("Give either the name of a schedule, or --cron, --every or --at.")
    async with session.api(scratch=name is None) as api:
        now = (await api.system.time()).now
        if name is None:
            title, told = "ticks", {}
            found = await api.schedules.preview_new(**options, count=count)
        else:
            schedule = await api.schedules.get(name)
            title, told = f"{schedule.name} ({schedule.state})", {"name": schedule.name, "state": schedule.state}
            found = await api.schedules.preview(schedule.id, count=count)
    session.show(told | as_json(found), lambda: show_preview(title, found, now))


async def backfill(
    session: Session,
    name: Name,
    start: Annotated[str, option("--from", metavar="TIME", help="First tick at or after this time")],
    end: Annotated[str, option("--to", metavar="TIME", help="Last tick at or before this time; a day includes that day")],
    dry_run: DryRun = False,
) -> None:
    """Start the schedule's work for the past ticks of a range; ticks that were already started are skipped."""
    async with session.api() as api:
        schedule = await api.schedules.get(name)
        since, until = moment(start, "--from", schedule.zone), moment(end, "--to", schedule.zone)
        assert since is not None
        assert until is not None
        if (after := moment(end, "--to", schedule.zone, end=True) or until) != until:
            until = min(after - timedelta(milliseconds=1), (await api.system.time()).now)
        done = await api.schedules.backfill(schedule.id, since, until, dry_run=True)
        if not dry_run:
            done = await _backfill(session, api, schedule.id, done)
    session.show(done, lambda: show_backfill(done, schedule.zone))


async def _backfill(session: Session, api: Api, schedule_id: str, would: Backfilled) -> Backfilled:
    """Start the ticks that the dry run listed, in batches."""
    wanted = [each.tick for each in would.started]
    started: list[Started] = []
    for first in range(0, len(wanted), _BATCH):
        part: list[datetime] = list(wanted[first : first + _BATCH])
        started += (await api.schedules.backfill(schedule_id, part[0], part[-1])).started
        if len(wanted) > _BATCH and not session.json:
            tell_note(f"started {len(started)} of {len(wanted)}")
    done = {each.tick for each in started}
    return Backfilled(False, would.ticks, started, [tick for tick in would.ticks if tick not in done])


def as_json(result: Any) -> dict[str, Json]:
    """A schedule, a page of them or a preview as JSON, with only the times that apply."""
    value: dict[str, Json] = to_builtins(result)
    for record in (value, *value.get("schedules", ())):
        if "when" in record:
            record["when"] = {name: time for name, time in record["when"].items() if time is not None}
    return value


async def show_schedule(session: Session, api: Api, schedule: Schedule) -> None:
    """Show one schedule, with the operations on it."""
    moves = (await api.schedules.moves(schedule.id)).moves
    now = (await api.system.time()).now
    session.show(as_json(schedule), lambda: together(details(SCHEDULE, schedule, now), table(MOVES, moves, now)))


def _text(at: datetime | None) -> str:
    return words(at) or "-"


def local(tick: datetime, zone: str) -> str:
    """Local time of the tick in the zone."""
    from treadle.kernel.schedules.ticks import find_zone

    return tick.astimezone(find_zone(zone)).strftime("%a %Y-%m-%d %H:%M:%S %Z (%z)")


def show_preview(title: str, preview: SchedulePreview, now: datetime) -> RenderableType:
    """The due and the next ticks of a schedule."""
    from rich.console import Group

    due = preview.due
    parts: list[RenderableType] = [plain(f"{title}: {describe_time(preview.when)}", "bold")]
    if due.fire or due.skipped:
        skipped = f"; {due.skipped} would be skipped" if due.skipped else ""
        parts.append(plain(f"due now: {len(due.fire)} would fire{skipped} ({preview.policy})", "yellow"))
    rows = grid("tick", f"in {preview.zone}", "from now")
    for tick in due.fire:
        rows.add_row(_text(tick), local(tick, preview.zone), plain("due", "yellow"))
    for tick in preview.ticks:
        rows.add_row(_text(tick), local(tick, preview.zone), ago(tick, now))
    return Group(*parts, rows if preview.ticks or due.fire else plain("No more ticks."))


def show_backfill(done: Backfilled, zone: str) -> RenderableType:
    """The result of a backfill or of its dry run."""
    from rich.console import Group

    verb = "Would start" if done.dry_run else "Started"
    head = plain(f"{verb} {len(done.started)} of {len(done.ticks)} tick(s); {len(done.already)} were already started.")
    rows = grid("tick", f"in {zone}", "kind", "id")
    for each in done.started:
        rows.add_row(_text(each.tick), local(each.tick, zone), plain(each.kind), each.id)
    return Group(head, rows) if done.started else head
