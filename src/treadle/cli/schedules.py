"""`treadle schedules ...`: what is started by time: add, edit, look, preview, pause, run now, backfill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli.inputs import moment, payload, seconds
from treadle.cli.session import Session
from treadle.cli.show_schedule import (
    backfill_json,
    preview_json,
    schedule_json,
    schedules_table,
    show_backfill,
    show_preview,
    show_schedule,
)
from treadle.cli.words import plain
from treadle.model.clock import as_text
from treadle.model.errors import InvalidInput
from treadle.model.names import check_name
from treadle.wiring.engine import Engine

if TYPE_CHECKING:
    from treadle.kernel.schedules import Schedule

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name, or its id")]

_WHEN, _WHAT, _HOW = "When", "What", "How"

CronOption = Annotated[
    str | None,
    typer.Option(metavar="LINE", help="minute hour day month weekday, seconds first if six; or @daily", rich_help_panel=_WHEN),
]
ZoneOption = Annotated[
    str | None, typer.Option(metavar="ZONE", help="Time zone of the line and of times here; default UTC", rich_help_panel=_WHEN)
]
EveryOption = Annotated[str | None, typer.Option(metavar="DURATION", help="An interval: 90, 5m, 2h, 1d", rich_help_panel=_WHEN)]
AtOption = Annotated[str | None, typer.Option(metavar="TIME", help="Once, then: 2027-01-15T09:00", rich_help_panel=_WHEN)]
StartOption = Annotated[str | None, typer.Option(metavar="TIME", help="Not before that", rich_help_panel=_WHEN)]
EndOption = Annotated[str | None, typer.Option(metavar="TIME", help="Not after that", rich_help_panel=_WHEN)]
TaskOption = Annotated[str | None, typer.Option(metavar="NAME", help="Start a task of this handler", rich_help_panel=_WHAT)]
WorkflowOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Start a run of this workflow of --flow", rich_help_panel=_WHAT)
]
FunctionOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Start a run of this durable function", rich_help_panel=_WHAT)
]
FlowOption = Annotated[str | None, typer.Option(metavar="FLOW", help="The published flow of the workflow", rich_help_panel=_WHAT)]
PayloadOption = Annotated[
    str | None,
    typer.Option("--payload", metavar="JSON", help="Payload or inputs: a JSON object, @file, -", rich_help_panel=_WHAT),
]
ParamOption = Annotated[
    list[str] | None, typer.Option("--param", "-p", metavar="KEY=VALUE", help="One field of it", rich_help_panel=_WHAT)
]
TickAsOption = Annotated[
    str | None, typer.Option(metavar="KEY", help="The field that gets the tick's time; tasks: tick", rich_help_panel=_WHAT)
]
ListOption = Annotated[str | None, typer.Option("--list", metavar="LIST", help="The task list", rich_help_panel=_WHAT)]
PriorityOption = Annotated[int | None, typer.Option(help="Smaller runs first", rich_help_panel=_WHAT)]
RetryOption = Annotated[int | None, typer.Option(metavar="N", help="Retries of the task", rich_help_panel=_WHAT)]
TimeoutOption = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Longest time for one attempt of the task", rich_help_panel=_WHAT)
]
CatchUpOption = Annotated[
    str | None,
    typer.Option(metavar="skip|latest|all|window", help="Missed ticks: none, the newest, all, the recent", rich_help_panel=_HOW),
]
LimitOption = Annotated[
    int | None, typer.Option("--catch-up-limit", metavar="N", help="Of all: the newest so many", rich_help_panel=_HOW)
]
WindowOption = Annotated[
    str | None, typer.Option("--catch-up-window", metavar="DURATION", help="Of window: not older than that", rich_help_panel=_HOW)
]
GraceOption = Annotated[
    str | None, typer.Option(metavar="DURATION", help="How late a tick may be and not count as missed; 2m", rich_help_panel=_HOW)
]
OverlapOption = Annotated[
    str | None,
    typer.Option(metavar="allow|skip|queue|cancel", help="While the last one goes on; default skip", rich_help_panel=_HOW),
]
JitterOption = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Later by up to that, fixed per schedule", rich_help_panel=_HOW)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing")]


def _options(whole: str | None, pairs: list[str] | None, **given: Any) -> dict[str, Any]:
    """What was said, in the words of `ScheduleOptions`; what was not said is not in it."""
    for name in ("every", "timeout", "catch_up_window", "grace", "jitter"):
        given[name] = seconds(given[name], f"--{name.replace('_', '-')}")
    for name in ("at", "start", "end"):
        given[name] = moment(given[name], f"--{name}", given["zone"] or "UTC")
    given["inputs"] = payload(whole, pairs or ())
    return {name: value for name, value in given.items() if value is not None}


async def add(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for it, e.g. nightly-report")],
    cron: CronOption = None,
    zone: ZoneOption = None,
    every: EveryOption = None,
    at: AtOption = None,
    start: StartOption = None,
    end: EndOption = None,
    task: TaskOption = None,
    workflow: WorkflowOption = None,
    function: FunctionOption = None,
    flow: FlowOption = None,
    whole: PayloadOption = None,
    pairs: ParamOption = None,
    tick_as: TickAsOption = None,
    task_list: ListOption = None,
    priority: PriorityOption = None,
    retry: RetryOption = None,
    timeout: TimeoutOption = None,
    catch_up: CatchUpOption = None,
    catch_up_limit: LimitOption = None,
    catch_up_window: WindowOption = None,
    grace: GraceOption = None,
    overlap: OverlapOption = None,
    jitter: JitterOption = None,
    paused: Annotated[bool, typer.Option("--paused", help="Begin paused")] = False,
    dry_run: DryRun = False,
) -> None:
    """Start a task, a workflow or a function by time: by a cron line, at an interval, or once."""
    options = _options(
        whole,
        pairs,
        cron=cron,
        zone=zone,
        every=every,
        at=at,
        start=start,
        end=end,
        task=task,
        workflow=workflow,
        function=function,
        flow=flow,
        tick_as=tick_as,
        task_list=task_list,
        priority=priority,
        retry=retry,
        timeout=timeout,
        catch_up=catch_up,
        catch_up_limit=catch_up_limit,
        catch_up_window=catch_up_window,
        grace=grace,
        overlap=overlap,
        jitter=jitter,
    )
    if dry_run:
        _preview_options(session, name, options)
        return
    async with session.engine(migrate=True, first=lambda engine: _check(engine, name, options)) as engine:
        made = await engine.schedules.create(name, paused=paused, actor=session.actor, **options)
        _done(session, made)


def _check(engine: Engine, name: str, options: dict[str, Any]) -> None:
    """Bad input does not even make the database."""
    from treadle.kernel.schedule_options import make_body

    check_name(name, "schedule name")
    engine.schedules.check(make_body(options, engine.clock.now()))


def _preview_options(session: Session, name: str, options: dict[str, Any]) -> None:
    """What a schedule would do that is not stored."""
    from treadle.kernel.schedule_options import make_body

    engine = Engine("memory://", settings=session.settings)
    now = engine.clock.now()
    body = make_body(options, now)
    engine.schedules.check(body)
    found = engine.schedules.preview_body(body, now)
    value = {"name": name, "dry_run": True} | preview_json(body, found)
    session.show(value, lambda: show_preview(f"{name} (not added)", body, found, now))


async def edit(
    session: Session,
    name: Name,
    cron: CronOption = None,
    zone: ZoneOption = None,
    every: EveryOption = None,
    at: AtOption = None,
    start: StartOption = None,
    end: EndOption = None,
    task: TaskOption = None,
    workflow: WorkflowOption = None,
    function: FunctionOption = None,
    flow: FlowOption = None,
    whole: PayloadOption = None,
    pairs: ParamOption = None,
    tick_as: TickAsOption = None,
    task_list: ListOption = None,
    priority: PriorityOption = None,
    retry: RetryOption = None,
    timeout: TimeoutOption = None,
    catch_up: CatchUpOption = None,
    catch_up_limit: LimitOption = None,
    catch_up_window: WindowOption = None,
    grace: GraceOption = None,
    overlap: OverlapOption = None,
    jitter: JitterOption = None,
) -> None:
    """Change a schedule; what is not given stays. A new time counts from now on."""
    options = _options(
        whole,
        pairs,
        cron=cron,
        zone=zone,
        every=every,
        at=at,
        start=start,
        end=end,
        task=task,
        workflow=workflow,
        function=function,
        flow=flow,
        tick_as=tick_as,
        task_list=task_list,
        priority=priority,
        retry=retry,
        timeout=timeout,
        catch_up=catch_up,
        catch_up_limit=catch_up_limit,
        catch_up_window=catch_up_window,
        grace=grace,
        overlap=overlap,
        jitter=jitter,
    )
    async with session.engine() as engine:
        _done(session, await engine.schedules.edit(name, actor=session.actor, **options))


async def list_schedules(
    session: Session,
    ended: Annotated[bool, typer.Option("--all", help="Those that have ended, too")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most that many")] = 100,
    before: Annotated[str | None, typer.Option(metavar="ID", help="The next page: only older ones than this")] = None,
) -> None:
    """List schedules, newest first."""
    async with session.engine() as engine:
        found = await engine.schedules.list_schedules(ended=ended, limit=limit, before_id=before)
        now = await engine.store.now()
    more = found[-1].id if len(found) == limit else None
    value = {"schedules": [schedule_json(each) for each in found], "next_before": more}
    session.show(value, lambda: schedules_table(found, now, more))


async def show(session: Session, name: Name) -> None:
    """Everything about one schedule: when, what, how, what became of its last ticks, and why if it cannot go on."""
    async with session.engine() as engine:
        schedule = await engine.schedules.get(name)
        moves = await engine.store.list_moves(schedule.id)
        now = await engine.store.now()
    session.show(schedule_json(schedule), lambda: show_schedule(schedule, moves, now))


async def preview(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A schedule; or give --cron, --every or --at")] = None,
    count: Annotated[int, typer.Option("--count", "-n", help="So many ticks")] = 10,
    cron: CronOption = None,
    zone: ZoneOption = None,
    every: EveryOption = None,
    at: AtOption = None,
) -> None:
    """Show what a schedule will do: which missed ticks fire now, and when the next ones come. Changes nothing."""
    given = {"cron": cron, "zone": zone, "every": seconds(every, "--every"), "at": moment(at, "--at", zone or "UTC")}
    options = {option: value for option, value in given.items() if value is not None}
    if (name is None) == (not options):
        raise InvalidInput("Give either the name of a schedule, or --cron, --every or --at.")
    if name is None:
        from treadle.kernel.schedule_options import make_body

        engine = Engine("memory://", settings=session.settings)
        now = engine.clock.now()
        body = make_body({**options, "task": "preview"}, now)
        engine.schedules.check(body)
        found = engine.schedules.preview_body(body, now, count)
        session.show(preview_json(body, found), lambda: show_preview("ticks", body, found, now))
        return
    async with session.engine() as engine:
        schedule = await engine.schedules.get(name)
        seen = await engine.schedules.preview(name, count)
        now = await engine.store.now()
    value = {"name": schedule.name, "state": schedule.state} | preview_json(schedule.body, seen)
    session.show(value, lambda: show_preview(f"{schedule.name} ({schedule.state})", schedule.body, seen, now))


async def pause(session: Session, name: Name) -> None:
    """Let no tick fire until it is resumed; what was started goes on."""
    async with session.engine() as engine:
        _done(session, await engine.schedules.pause(name, actor=session.actor))


async def resume(session: Session, name: Name) -> None:
    """Let a paused schedule go on; what it missed is made up for as its catch-up policy says."""
    async with session.engine() as engine:
        _done(session, await engine.schedules.resume(name, actor=session.actor))


async def remove(session: Session, name: Name) -> None:
    """End a schedule; what it started goes on."""
    async with session.engine() as engine:
        _done(session, await engine.schedules.remove(name, actor=session.actor))


async def run_now(session: Session, name: Name) -> None:
    """Start what the schedule starts, once more, now; its ticks are left alone."""
    async with session.engine() as engine:
        started = await engine.schedules.run_now(name, actor=session.actor)
    value = {"kind": started.kind, "id": started.id, "tick": as_text(started.tick)}
    session.show(value, lambda: plain(f"Started {started.kind} {started.id}"))


async def backfill(
    session: Session,
    name: Name,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="The first tick from then on")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="The last tick up to then")],
    dry_run: DryRun = False,
) -> None:
    """Start what a schedule starts for past ticks of a range; those that were started already are left alone."""
    async with session.engine() as engine:
        schedule = await engine.schedules.get(name)
        zone = schedule.body.when.zone
        since, until = moment(start, "--from", zone), moment(end, "--to", zone)
        assert since is not None
        assert until is not None
        done = await engine.schedules.backfill(name, since, until, dry_run=dry_run, actor=session.actor)
    session.show(backfill_json(done), lambda: show_backfill(done, zone))


def _done(session: Session, schedule: Schedule) -> None:
    following = "" if schedule.next_at is None else f"; next tick at {as_text(schedule.next_at)}"
    session.show(schedule_json(schedule), lambda: plain(f"{schedule.name} is {schedule.state} now{following}"))
