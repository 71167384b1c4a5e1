"""Schedules: work that is started by time: create, edit, look, preview, pause, run now, backfill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, Protocol, Unpack

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.options import ScheduleOptions
from treadle.api.tasks import MoveMade
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

ScheduleName = Annotated[str, Doc("The schedule's name, or its id", "nightly-report")]


@dataclass(frozen=True, slots=True)
class ScheduleTime(ApiRecord):
    """When a schedule fires: by a cron line in a zone, every so often, or once. What does not apply is null."""

    cron: str | None = None
    zone: str | None = None
    every_for: int | None = None
    anchor_at: Instant | None = None
    at: Instant | None = None


@dataclass(frozen=True, slots=True)
class Target(ApiRecord):
    """What is started."""

    kind: str
    """`task`, `workflow` or `function`."""
    name: str
    flow: str | None
    version: int | None
    inputs: dict[str, Json]
    given_as: str | None
    """The field of the inputs that gets the tick or the change; null: none."""
    task_list: str
    priority: int
    timeout_for: int | None


@dataclass(frozen=True, slots=True)
class CatchUp(ApiRecord):
    """What becomes of missed ticks."""

    policy: str
    """`skip`, `latest`, `all` or `window`."""
    limit: int
    window_for: int | None
    grace_for: int


@dataclass(frozen=True, slots=True)
class Firing(ApiRecord):
    """What became of a tick."""

    tick: Instant
    at: Instant
    kind: str | None
    """`task` or `run`; null: nothing was started, and `note` says why."""
    id: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Schedule(ApiRecord):
    """A schedule."""

    id: str
    name: str
    state: str
    """`active`, `paused`, `finished` or `removed`."""
    version: int
    next_at: Instant | None
    """The tick that comes next; null when none comes by itself."""
    when: ScheduleTime
    zone: str
    """The time zone that its times are said in."""
    target: Target
    catch_up: CatchUp
    overlap: str
    """`allow`, `skip`, `queue` or `cancel`."""
    jitter_for: int
    start_at: Instant | None
    end_at: Instant | None
    cursor: Instant
    """The last tick that was considered."""
    waiting: Instant | None
    """The tick that waits for the end of what was started before."""
    fired: int
    skipped: int
    recent: list[Firing]
    """What became of the last 20 ticks."""
    error: Json
    """Why a tick could not be started; it is tried again."""
    task_id: str | None
    created_at: Instant
    updated_at: Instant


@dataclass(frozen=True, slots=True)
class SchedulePage(ApiRecord):
    """Schedules, newest first."""

    schedules: list[Schedule]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class ScheduleMoves(ApiRecord):
    """What was done with a schedule, oldest first."""

    moves: list[MoveMade]


@dataclass(frozen=True, slots=True)
class DueTicks(ApiRecord):
    """What was missed: what fires for it now, and how many ticks are skipped."""

    fire: list[Instant]
    skipped: int


@dataclass(frozen=True, slots=True)
class SchedulePreview(ApiRecord):
    """What a schedule will do."""

    when: ScheduleTime
    zone: str
    ticks: list[Instant]
    """Those to come."""
    due: DueTicks
    policy: str
    """What becomes of missed ticks, in words."""


@dataclass(frozen=True, slots=True)
class Started(ApiRecord):
    """What was started for a tick."""

    kind: str
    """`task` or `run`."""
    id: str
    tick: Instant


@dataclass(frozen=True, slots=True)
class Backfilled(ApiRecord):
    """What a backfill did, or would do."""

    dry_run: bool
    ticks: list[Instant]
    """All of the range."""
    started: list[Started]
    already: list[Instant]
    """Those for which something had been started before."""


class SchedulesApi(Protocol):
    """Schedules: work that is started by time."""

    @contract.get("/schedules")
    async def list(
        self,
        *,
        every: Annotated[bool, Doc("Those that have ended too")] = False,
        limit: Annotated[int, Doc("At most so many, up to 1000", 100)] = 100,
        before: Annotated[str | None, Doc("The `next_before` of the page before")] = None,
    ) -> SchedulePage:
        """Schedules, newest first."""

    @contract.post("/schedules", Scope.OPERATE, status=201, creates=True)
    async def create(
        self,
        name: Annotated[str, Doc("A name for it", "nightly-report")],
        *,
        paused: Annotated[bool, Doc("Begin paused")] = False,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Start a task, a workflow or a function by time: by a cron line, at an interval, or once."""

    @contract.post("/schedules/preview", Scope.READ)
    async def preview_new(
        self,
        *,
        count: Annotated[int, Doc("Number of ticks, up to 1000", 10)] = 10,
        **options: Unpack[ScheduleOptions],
    ) -> SchedulePreview:
        """What a schedule would do that is not stored; what it starts need not be said. Changes nothing."""

    @contract.get("/schedules/{name}")
    async def get(self, name: ScheduleName) -> Schedule:
        """One schedule: when, what, how, what became of its last ticks, and why if it cannot go on."""

    @contract.get("/schedules/{name}/moves")
    async def moves(self, name: ScheduleName) -> ScheduleMoves:
        """What was done with a schedule, and by whom."""

    @contract.get("/schedules/{name}/preview")
    async def preview(
        self, name: ScheduleName, *, count: Annotated[int, Doc("So many ticks, up to 1000", 10)] = 10
    ) -> SchedulePreview:
        """What a schedule will do: which missed ticks fire now, and when the next ones come. Changes nothing."""

    @contract.post("/schedules/{name}/edit", Scope.OPERATE)
    async def edit(
        self,
        name: ScheduleName,
        *,
        clear: Annotated[Sequence[Literal["start", "end", "version", "retry"]], Doc("Options to remove", ["end"])] = (),
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Change a schedule, at once; what is not given, or null, stays. A new time counts from now on."""

    @contract.post("/schedules/{name}/pause", Scope.OPERATE)
    async def pause(self, name: ScheduleName) -> Schedule:
        """Let no tick fire until it is resumed; what was started goes on."""

    @contract.post("/schedules/{name}/resume", Scope.OPERATE)
    async def resume(self, name: ScheduleName) -> Schedule:
        """Let a paused schedule go on; what it missed is made up for as its catch-up policy says."""

    @contract.delete("/schedules/{name}", Scope.OPERATE)
    async def remove(self, name: ScheduleName) -> Schedule:
        """End a schedule; what it started goes on, and its name is free."""

    @contract.post("/schedules/{name}/run", Scope.OPERATE, status=201, creates=True)
    async def run_now(self, name: ScheduleName) -> Started:
        """Start what the schedule starts, once more, now; its ticks are left alone."""

    @contract.post("/schedules/{name}/backfill", Scope.OPERATE)
    async def backfill(
        self,
        name: ScheduleName,
        start: Annotated[datetime, Doc("The first tick from then on", "2026-01-01T00:00:00Z")],
        end: Annotated[datetime, Doc("The last tick up to then, which is past", "2026-01-31T00:00:00Z")],
        *,
        dry_run: Annotated[bool, Doc("Say what would be done, and do nothing")] = False,
    ) -> Backfilled:
        """Start what a schedule starts for past ticks of a range, at most 1000; those that were started already are left alone."""
