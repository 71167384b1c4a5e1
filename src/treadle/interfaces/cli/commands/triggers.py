"""`treadle schedules ...`, `treadle watchers ...` and `treadle alerts ...`: the commands that are more than one call."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from click.exceptions import Exit

from treadle.api.alerts import ALERT, RULE
from treadle.api.options import ScheduleOptions, TimeOptions, WatcherOptions
from treadle.api.schedules import SCHEDULE, Backfilled, Started, describe_change, describe_time
from treadle.api.tasks import TRANSITIONS
from treadle.api.view import words
from treadle.api.watchers import WATCHER
from treadle.api.wire import to_builtins
from treadle.engine import Engine
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import ago, details, facts, grid, plain, table, together, when
from treadle.interfaces.cli.messages import FAILED, TIME_RAN_OUT, print_note
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.cli.values import moment
from treadle.model.errors import InvalidInput, InvalidWatcher, TaskNotFound
from treadle.model.names import ENGINE_LIST, check_name
from treadle.model.values import Json
from treadle.model.watchers import DIRECTORY, FILE, SEEN, WatcherDocument

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.alerts import AlertRule, AlertTest
    from treadle.api.facade import Api
    from treadle.api.schedules import Schedule, SchedulePreview
    from treadle.api.watchers import Watcher


Name = Annotated[str, argument(metavar="NAME", help="The schedule's name, or its id")]
DryRun = Annotated[bool, option("--dry-run", help="Change nothing; print the result")]

_BATCH = 50
"""Ticks that one call of a backfill starts."""


async def add_schedule(
    session: CommandSession,
    name: Annotated[str, argument(metavar="NAME", help="A name for it, e.g. nightly-report")],
    paused: Annotated[bool, option("--paused", help="Add it paused")] = False,
    dry_run: DryRun = False,
    **options: Unpack[ScheduleOptions],
) -> None:
    """Start a task, a workflow or a function by time: by a cron line, at an interval, or once.

    A DURATION is 90, 1.5s, 5m, 2h or 1d; a TIME is 2027-01-15T09:00 in the time zone of --zone, or has its own offset.
    """
    if dry_run:
        _check_name_and_target(name, options)
        await _preview_new(session, f"{name} (not added)", {"name": name, "dry_run": True}, options)
        return
    async with session.api(migrate=True, first=lambda engine: _check_schedule(engine, name, options)) as api:
        schedule = await api.schedules.create(name, paused=paused, **options)
    session.show(as_json(schedule), lambda: plain(describe_change(schedule)))


def _check_schedule(engine: Engine, name: str, options: Mapping[str, Any]) -> None:
    """Check the options before the database is created."""
    from treadle.kernel.schedules.options import make_document

    check_name(name, "schedule name")
    engine.schedules.check(make_document(options, engine.kernel.clock.now()))


def _check_name_and_target(name: str, options: Mapping[str, Any]) -> None:
    """Check the name, and that the options name something to start."""
    from treadle.kernel.schedules.options import make_document

    check_name(name, "schedule name")
    make_document(options, 0)


async def _preview_new(session: CommandSession, title: str, value: dict[str, Json], options: Mapping[str, Any]) -> None:
    """Preview a schedule that is not stored."""
    async with session.api(scratch=True) as api:
        ticks = await api.schedules.preview_new(**options)
        now = (await api.system.time()).now
    session.show(value | as_json(ticks), lambda: show_preview(title, ticks, now))


async def preview(
    session: CommandSession,
    name: Annotated[str | None, argument(metavar="[NAME]", help="A schedule; or give --cron, --every or --at")] = None,
    count: Annotated[int, option("--count", "-n", help="Number of ticks")] = 10,
    **options: Unpack[TimeOptions],
) -> None:
    """Show the missed ticks that fire now and the next ticks of a schedule. Changes nothing."""
    if (name is None) == (not options):
        raise InvalidInput("Give either the name of a schedule, or --cron, --every or --at.")
    if name is None:
        await _preview_new(session, "ticks", {}, {**options, "count": count})
        return
    async with session.api() as api:
        schedule = await api.schedules.get(name)
        ticks = await api.schedules.preview(schedule.id, count=count)
        now = (await api.system.time()).now
    value = {"name": schedule.name, "state": schedule.state} | as_json(ticks)
    session.show(value, lambda: show_preview(f"{schedule.name} ({schedule.state})", ticks, now))


async def backfill(
    session: CommandSession,
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


async def _backfill(session: CommandSession, api: Api, schedule_id: str, would: Backfilled) -> Backfilled:
    """Start the ticks that the dry run listed, in batches."""
    wanted = [start.tick for start in would.started]
    started: list[Started] = []
    for first in range(0, len(wanted), _BATCH):
        part: list[datetime] = list(wanted[first : first + _BATCH])
        started += (await api.schedules.backfill(schedule_id, part[0], part[-1])).started
        if len(wanted) > _BATCH and not session.json:
            print_note(f"started {len(started)} of {len(wanted)}")
    done = {start.tick for start in started}
    return Backfilled(False, would.ticks, started, [tick for tick in would.ticks if tick not in done])


def as_json(result: Any) -> dict[str, Json]:
    """A schedule, a page of them or a preview as JSON, with only the times that apply."""
    value: dict[str, Json] = to_builtins(result)
    for record in (value, *value.get("schedules", ())):
        if "when" in record:
            record["when"] = {name: time for name, time in record["when"].items() if time is not None}
    return value


async def show_schedule(session: CommandSession, api: Api, schedule: Schedule) -> None:
    """Show one schedule, with the operations on it."""
    transitions = (await api.schedules.transitions(schedule.id)).transitions
    now = (await api.system.time()).now
    session.show(as_json(schedule), lambda: together(details(SCHEDULE, schedule, now), table(TRANSITIONS, transitions, now)))


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
    for start in done.started:
        rows.add_row(_text(start.tick), local(start.tick, zone), plain(start.kind), start.id)
    return Group(head, rows) if done.started else head


async def add_watcher(
    session: CommandSession,
    name: Annotated[str, argument(metavar="NAME", help="A name for it, e.g. incoming")],
    paused: Annotated[bool, option("--paused", help="Add it paused")] = False,
    dry_run: Annotated[
        bool, option("--dry-run", help="Change nothing; print the items that the first scan would find here")
    ] = False,
    **options: Unpack[WatcherOptions],
) -> None:
    """Start a task, a workflow or a function when files or a URL change.

    A DURATION is 90, 1.5s, 5m, 2h or 1d.
    """
    chosen: dict[str, Any] = dict(options)
    if not session.chosen.remote:  # a server's paths are not this machine's
        chosen |= _absolute(chosen)
    if dry_run:
        _try_out(session, name, chosen)
        return
    async with session.api(migrate=True, first=lambda engine: _check_here(engine, name, chosen)) as api:
        watcher = await api.watchers.create(name, paused=paused, **chosen)
    session.show(watcher, lambda: plain(_added(watcher)))


def _absolute(options: Mapping[str, Any]) -> dict[str, str]:
    """The paths among the options as this machine sees them."""
    return {kind: str(Path(options[kind]).absolute()) for kind in (DIRECTORY, FILE) if kind in options}


def _added(watcher: Watcher) -> str:
    existing = "count as seen; --existing new starts work for them too" if watcher.existing == SEEN else "start work too"
    lines = [f"{watcher.name} is {watcher.state} now; items that already exist {existing}."]
    if watcher.error is not None:
        lines.append(f"It cannot scan on this machine: {watcher.error.get('message')}")
    return "\n".join(lines)


def _check_watcher(engine: Engine, name: str, options: Mapping[str, Any]) -> WatcherDocument:
    """Check the options."""
    from treadle.kernel.watchers.service import make_document

    check_name(name, "watcher name")
    document = make_document(options)
    engine.watchers.check(document)
    return document


def _check_here(engine: Engine, name: str, options: Mapping[str, Any]) -> None:
    """Check the options, and the path if workers are on this machine, before the database is created."""
    document = _check_watcher(engine, name, options)
    if document.scan_on == ENGINE_LIST and not engine.kernel.store.url.startswith("postgresql"):
        place = Path(document.source.place)
        if document.source.kind == DIRECTORY and not place.is_dir():
            raise InvalidWatcher(f"There is no directory {place}. Create it first.")
        if document.source.kind == FILE and not place.parent.is_dir():
            raise InvalidWatcher(f"There is no directory {place.parent}. Create it first.")


def _try_out(session: CommandSession, name: str, options: Mapping[str, Any]) -> None:
    """Print the items that a scan would find on this machine now."""
    from treadle.model.watchers import HTTP, NEW
    from treadle.workers.scanner import fetch, scan

    if session.chosen.remote:
        raise InvalidInput(
            "A dry run scans this machine, not the server's: omit --server (and TREADLE_SERVER).", code="not_over_http"
        )
    engine = Engine("memory://", settings=session.settings)
    document = _check_watcher(engine, name, options)
    if document.source.kind == HTTP:
        names, problem = ([] if fetch(document.source, None, engine.kernel.clock.monotonic).gone else [document.source.place]), None
    else:
        scan_result = scan(document.source)
        names, problem = [item.name for item in scan_result.found], scan_result.problem
    started = len(names) if document.existing == NEW else 0
    counts = f"each would start {document.target.kind} {document.target.name}" if started else "they would count as seen"
    value = {"name": name, "dry_run": True, "found": len(names), "names": names[:100], "started": started, "problem": problem}
    message = "\n".join([f"{name} (not added): the first scan would find {len(names)} here; {counts}.", *names[:20]])
    session.show(value, lambda: plain(message if problem is None else f"{message}\n{problem}"))


async def show_watcher(session: CommandSession, api: Api, watcher: Watcher) -> None:
    """Show one watcher, with its last and its next scan."""
    try:
        task = None if watcher.task_id is None else await api.tasks.get(watcher.task_id)
    except TaskNotFound:  # the watcher has ended
        task = None
    now = (await api.system.time()).now
    scans: list[tuple[str, object]] = []
    if task is not None and task.finished_at is None:
        next_scan = when(task.wake_at or task.due_at, now)
        scans = [("last scan", when(task.claimed_at, now)), ("next scan", next_scan), ("task", task.id)]
    session.show(watcher, lambda: together(details(WATCHER, watcher, now), facts(scans)))


async def list_alerts(session: CommandSession) -> None:
    """List the alert rules, and the alerts that fire now."""
    async with session.api() as api:
        rules = (await api.alerts.rules()).rules
        firing = (await api.alerts.list(firing=True, limit=1000)).alerts
        now = (await api.system.time()).now
    alerts = table(ALERT, firing, now) if firing else plain("No alert fires now.")
    session.show(
        {"rules": to_builtins(rules), "firing": to_builtins(firing)},
        lambda: together(table(RULE, rules, now), *(["", alerts] if rules else [])),
    )


async def show_silence(session: CommandSession, api: Api, rule: AlertRule) -> None:
    """Report the end of the silence."""
    now = (await api.system.time()).now
    silence = f"is silenced; it sends messages again at {when(rule.silenced_until, now)}"
    session.show(rule, lambda: plain(f"{rule.name} {silence if rule.silenced_until else 'sends messages again'}"))


async def show_test(session: CommandSession, _: Api, test: AlertTest) -> None:
    """Print the response to a test message; exit 1 if it was not accepted, 6 if no worker sends it."""
    session.show(test, lambda: plain(_tested(test)))
    if test.state != "completed":
        raise Exit(TIME_RAN_OUT if test.state == "pending" else FAILED)


def _tested(test: AlertTest) -> str:
    if test.state != "completed":
        return f"The test message {'failed' if test.state == 'failed' else f'is {test.state}'}: {test.error}"
    response = test.response if isinstance(test.response, dict) else {}
    status = f" answered {response['status']}" if "status" in response else " accepted it"
    text = f": {response['response']}" if response.get("response") else ""
    return f"{response.get('to', 'The target')}{status}{text}"
