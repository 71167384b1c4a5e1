"""Schedules: work started by time; create, edit, read, preview, pause, run now, backfill."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, Protocol, Unpack

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc, Lookup, Page
from treadle.api.options import ScheduleOptions
from treadle.api.tasks import TransitionRecord
from treadle.api.view import Column, View, words
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.clock import span
from treadle.model.schedules import describe_catch_up
from treadle.model.values import Json

ScheduleName = Annotated[str, Doc("The schedule's name, or its id", "nightly-report")]


class ScheduleTime(ApiRecord, frozen=True):
    """The times at which a schedule fires: a cron expression, an interval, or once. Fields that do not apply are null."""

    cron: str | None = None
    zone: str | None = None
    every_for: int | None = None
    anchor_at: Instant | None = None
    at: Instant | None = None


class Target(ApiRecord, frozen=True):
    """The work that is started."""

    kind: str
    """`task`, `workflow` or `function`."""
    name: str
    flow: str | None
    version: int | None
    inputs: dict[str, Json]
    given_as: str | None
    """The input field that receives the tick or the change; null: none."""
    task_list: str
    priority: int
    timeout_for: int | None


class CatchUp(ApiRecord, frozen=True):
    """Treatment of missed ticks."""

    policy: str
    """`skip`, `latest`, `all` or `window`."""
    limit: int
    window_for: int | None
    grace_for: int


class Firing(ApiRecord, frozen=True):
    """The outcome of a tick."""

    tick: Instant
    at: Instant
    kind: str | None
    """`task` or `run`; null: nothing was started, and `note` has the reason."""
    id: str | None
    note: str | None


class Trigger(ApiRecord, frozen=True):
    """The fields that schedules and watchers share."""

    id: str
    name: str
    state: str
    """`active`, `paused`, `removed`, or `finished` (only schedules)."""
    version: int
    target: Target
    """The work that it starts."""
    fired: int
    error: Json
    """Why it cannot scan its source or start its work; it is retried."""
    task_id: str | None
    created_at: Instant
    updated_at: Instant


class Schedule(Trigger, frozen=True):
    """A schedule."""

    next_at: Instant | None
    """The next tick; null if there is none."""
    when: ScheduleTime
    zone: str
    """The time zone of its times."""
    catch_up: CatchUp
    overlap: str
    """`allow`, `skip`, `queue` or `cancel`."""
    jitter_for: int
    start_at: Instant | None
    end_at: Instant | None
    cursor: Instant
    """The last processed tick."""
    waiting: Instant | None
    """The next tick to start when the previous work has ended."""
    backlog: list[Instant]
    """Ticks that start after `waiting`, one after another."""
    skipped: int
    recent: list[Firing]
    """Outcomes of the last 20 ticks."""
    program: str | None = None
    """The program that declares it."""


class SchedulePage(Page, frozen=True):
    """Schedules, newest first."""

    schedules: list[Schedule]


class ScheduleTransitions(ApiRecord, frozen=True):
    """Operations on a schedule, oldest first."""

    transitions: list[TransitionRecord]


class DueTicks(ApiRecord, frozen=True):
    """Due ticks: those that fire, now or one after another, and the number of skipped ones."""

    fire: list[Instant]
    skipped: int


class SchedulePreview(ApiRecord, frozen=True):
    """The upcoming ticks of a schedule."""

    when: ScheduleTime
    zone: str
    ticks: list[Instant]
    """Upcoming ticks."""
    due: DueTicks
    policy: str
    """The catch-up policy, as text."""


class Started(ApiRecord, frozen=True):
    """The work started for a tick."""

    kind: str
    """`task` or `run`."""
    id: str
    tick: Instant


class Backfilled(ApiRecord, frozen=True):
    """The result of a backfill, or of its dry run."""

    dry_run: bool
    ticks: list[Instant]
    """All ticks of the range."""
    started: list[Started]
    already: list[Instant]
    """Ticks whose work had been started before."""


def describe_time(time: ScheduleTime) -> str:
    """The times at which a schedule fires, in a few words."""
    if time.cron is not None:
        return f"{time.cron} ({time.zone})"
    return f"every {span(time.every_for)}" if time.every_for is not None else f"once at {words(time.at)}"


def describe_target(target: Target) -> str:
    """The started work, in a few words."""
    return f"{target.kind} {target.name}" + (f" of {target.flow}" if target.flow else "")


def brief_target(trigger: Trigger) -> str:
    """The kind and the name of the work that a schedule or a watcher starts."""
    return f"{trigger.target.kind} {trigger.target.name}"


def describe_change(schedule: Schedule) -> str:
    """The state of a schedule after a change, with its next tick."""
    return f"{schedule.name} is {schedule.state} now" + (f"; next tick at {words(schedule.next_at)}" if schedule.next_at else "")


def _note(schedule: Schedule) -> str:
    if schedule.error is not None:
        return str(schedule.error.get("message", ""))
    return f"{1 + len(schedule.backlog)} tick(s) wait for the previous work to end" if schedule.waiting else ""


def _last(schedule: Schedule) -> Instant | None:
    return schedule.recent[-1].at if schedule.recent else None


_WHEN = Column("when", lambda schedule: describe_time(schedule.when))
_STARTS = Column("starts", lambda schedule: describe_target(schedule.target))

View(Started, title="{kind} {id}", columns=(Column("tick", kind="time"), "kind", "id"), changed="Started {kind} {id}")
SCHEDULE = View(
    Schedule,
    columns=(
        Column("name", link="/schedules/{id}"),
        "state",
        _WHEN,
        _STARTS,
        "next_at",
        Column("last", _last, "instant", spare=True),
        "?fired",
        "?skipped",
        Column("declared by", "program", spare=True),
        Column("note", _note, limit=60),
    ),
    facts=(
        "id",
        "state",
        _WHEN,
        "next_at",
        _STARTS,
        Column("catch-up", lambda schedule: describe_catch_up(schedule.catch_up, schedule.overlap)),
        "overlap",
        "fired",
        "skipped",
        Column("declared by", "program"),
        "task_id",
        Column("from", "start_at"),
        Column("until", "end_at"),
        Column("waiting", kind="instant"),
        Column("backlog", lambda schedule: f"{len(schedule.backlog)} more tick(s)" if schedule.backlog else None),
        Column("jitter", lambda schedule: f"up to {span(schedule.jitter_for)}" if schedule.jitter_for else None),
        Column("cannot start", "error"),
        Column("inputs", "target.inputs", "json"),
        Column(
            "recent",
            rows=View(Firing, columns=(Column("tick", kind="time"), "at", "kind", Column("id", link="/{kind}s/{id}"), "note")),
        ),
    ),
    brief=("name", "state", "next_at", Column("target", brief_target), "fired", "skipped", "error"),
    empty="No schedules. Add one with `treadle schedules add NAME --cron '0 3 * * *' --task NAME`.",
    changed=describe_change,
)


class SchedulesApi(Lookup[Schedule], Protocol):
    """Schedules: work started by time."""

    @contract.get("/schedules")
    async def list(
        self,
        *,
        every: Annotated[bool, Doc("Include ended ones")] = False,
        limit: Annotated[int, Doc("Page size, up to 1000", 100)] = 100,
        before: Annotated[str | None, Doc("`next_before` of the previous page")] = None,
    ) -> SchedulePage:
        """Schedules, newest first."""

    @contract.post("/schedules", Scope.OPERATE, status=201, creates=True)
    async def create(
        self,
        name: Annotated[str, Doc("The name", "nightly-report")],
        *,
        paused: Annotated[bool, Doc("Create it paused")] = False,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Create a schedule that starts a task, a workflow or a function: by a cron expression, at an interval, or once."""

    @contract.post("/schedules/preview", Scope.READ)
    async def preview_new(
        self,
        *,
        count: Annotated[int, Doc("Number of ticks, up to 1000", 10)] = 10,
        **options: Unpack[ScheduleOptions],
    ) -> SchedulePreview:
        """Preview a schedule without storing it; the target is optional. Changes nothing."""

    @contract.get("/schedules/{name}")
    async def get(self, name: ScheduleName) -> Schedule:
        """One schedule: times, target, policies, outcomes of its last ticks, and its error, if any."""

    @contract.get("/schedules/{name}/transitions")
    async def transitions(self, name: ScheduleName) -> ScheduleTransitions:
        """Operations on a schedule, with their actors."""

    @contract.get("/schedules/{name}/preview")
    async def preview(
        self, name: ScheduleName, *, count: Annotated[int, Doc("Number of ticks, up to 1000", 10)] = 10
    ) -> SchedulePreview:
        """Preview a schedule: the missed ticks that fire now, and the next ones. Changes nothing."""

    @contract.post("/schedules/{name}/edit", Scope.OPERATE)
    async def edit(
        self,
        name: ScheduleName,
        *,
        clear: Annotated[Sequence[Literal["start", "end", "version", "retry"]], Doc("Options to remove", ["end"])] = (),
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Edit a schedule, effective immediately; omitted or null options stay. New times apply from now on."""

    @contract.post("/schedules/{name}/pause", Scope.OPERATE)
    async def pause(self, name: ScheduleName) -> Schedule:
        """Pause a schedule: no tick fires until it is resumed; started work continues."""

    @contract.post("/schedules/{name}/resume", Scope.OPERATE)
    async def resume(self, name: ScheduleName) -> Schedule:
        """Resume a paused schedule; its catch-up policy applies to missed ticks."""

    @contract.delete("/schedules/{name}", Scope.OPERATE)
    async def remove(self, name: ScheduleName) -> Schedule:
        """Remove a schedule; started work continues, and its name becomes free."""

    @contract.post("/schedules/{name}/run", Scope.OPERATE, status=201, creates=True)
    async def run_now(self, name: ScheduleName) -> Started:
        """Start the schedule's work once, now; its ticks are not affected."""

    @contract.post("/schedules/{name}/backfill", Scope.OPERATE)
    async def backfill(
        self,
        name: ScheduleName,
        start: Annotated[datetime, Doc("Ticks at or after this time", "2026-01-01T00:00:00Z")],
        end: Annotated[datetime, Doc("Ticks at or before this time, which must be in the past", "2026-01-31T00:00:00Z")],
        *,
        dry_run: Annotated[bool, Doc("Return the result without changing anything")] = False,
    ) -> Backfilled:
        """Start the schedule's work for past ticks of a range, at most 1000; ticks that fired already are skipped."""
