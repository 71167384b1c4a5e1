"""Schedules: work that is started by time: create, edit, look, preview, pause, run now, backfill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import Says, Shape
from treadle.api.tasks import MoveMade
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

ScheduleName = Annotated[str, Says("The schedule's name, or its id", "nightly-report")]

# When it fires: one of `cron`, `every` and `at`.
Cron = Annotated[
    str | None, Says("minute hour day month weekday, with seconds first if there are six fields; or `@daily`", "0 3 * * *")
]
Zone = Annotated[str | None, Says("The time zone of the cron line; `UTC` by default", "Europe/Berlin")]
Every = Annotated[float | None, Says("An interval in seconds")]
Anchor = Annotated[datetime | None, Says("What the interval is counted from; else from `start`, or from now")]
At = Annotated[datetime | None, Says("Once, then; a time that has passed is due at once")]
Start = Annotated[datetime | None, Says("Only ticks from then on count")]
End = Annotated[datetime | None, Says("Only ticks up to then count")]

# What it starts: one of `task`, `workflow` and `function`.
TaskName = Annotated[str | None, Says("Start a task of this handler", "billing.Report")]
WorkflowName = Annotated[str | None, Says("Start a run of this workflow of `flow`")]
FunctionName = Annotated[str | None, Says("Start a run of this durable function")]
FlowName = Annotated[str | None, Says("The published flow that the workflow is in")]
Version = Annotated[int | None, Says("The version of the flow or of the function; the newest by default")]
Inputs = Annotated[dict[str, Json] | None, Says("The payload of the task, or the inputs of the run", {"region": "eu"})]
TaskList = Annotated[str | None, Says("The task list that workers choose")]
Priority = Annotated[int | None, Says("Smaller runs first")]
Retry = Annotated[int | None, Says("Of a task: retries after a failure; null: what its handler says")]
Timeout = Annotated[float | None, Says("Of a task: longest time for one attempt, in seconds")]
TickAs = Annotated[str | None, Says("The field of the inputs that gets the tick's time; `tick` for tasks, none for others")]

# How it does so.
CatchUpPolicy = Annotated[
    Literal["skip", "latest", "all", "window"] | None,
    Says("What becomes of ticks that are more than `grace` late: none fires, the newest, all, those that are not too old"),
]
CatchUpLimit = Annotated[int | None, Says("Of `all` and `window`: the newest so many, up to 10000")]
CatchUpWindow = Annotated[float | None, Says("Of `window`: not older than so many seconds")]
Grace = Annotated[float | None, Says("How many seconds a tick may be late and not count as missed; 120 by default")]
Overlap = Annotated[
    Literal["allow", "skip", "queue", "cancel"] | None,
    Says("What becomes of a tick while what was started last goes on: started too, skipped, waits for its end, ends it"),
]
Jitter = Annotated[float | None, Says("Later by up to so many seconds; by how much is fixed for the schedule")]


@dataclass(frozen=True, slots=True)
class ScheduleTime(Shape):
    """When a schedule fires: by a cron line in a zone, every so often, or once. What does not apply is null."""

    cron: str | None = None
    zone: str | None = None
    every_for: int | None = None
    anchor_at: Instant | None = None
    at: Instant | None = None


@dataclass(frozen=True, slots=True)
class Target(Shape):
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
class CatchUp(Shape):
    """What becomes of missed ticks."""

    policy: str
    """`skip`, `latest`, `all` or `window`."""
    limit: int
    window_for: int | None
    grace_for: int


@dataclass(frozen=True, slots=True)
class Firing(Shape):
    """What became of a tick."""

    tick: Instant
    at: Instant
    kind: str | None
    """`task` or `run`; null: nothing was started, and `note` says why."""
    id: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Schedule(Shape):
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
class SchedulePage(Shape):
    """Schedules, newest first."""

    schedules: list[Schedule]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class ScheduleMoves(Shape):
    """What was done with a schedule, oldest first."""

    moves: list[MoveMade]


@dataclass(frozen=True, slots=True)
class DueTicks(Shape):
    """What was missed: what fires for it now, and how many ticks are skipped."""

    fire: list[Instant]
    skipped: int


@dataclass(frozen=True, slots=True)
class SchedulePreview(Shape):
    """What a schedule will do."""

    when: ScheduleTime
    zone: str
    ticks: list[Instant]
    """Those to come."""
    due: DueTicks
    policy: str
    """What becomes of missed ticks, in words."""


@dataclass(frozen=True, slots=True)
class Started(Shape):
    """What was started for a tick."""

    kind: str
    """`task` or `run`."""
    id: str
    tick: Instant


@dataclass(frozen=True, slots=True)
class Backfilled(Shape):
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
        every: Annotated[bool, Says("Those that have ended too")] = False,
        limit: Annotated[int, Says("At most so many, up to 1000", 100)] = 100,
        before: Annotated[str | None, Says("The `next_before` of the page before")] = None,
    ) -> SchedulePage:
        """Schedules, newest first."""

    @contract.post("/schedules", Scope.OPERATE, status=201, creates=True)
    async def create(
        self,
        name: Annotated[str, Says("A name for it", "nightly-report")],
        *,
        cron: Cron = None,
        zone: Zone = None,
        every: Every = None,
        anchor: Anchor = None,
        at: At = None,
        start: Start = None,
        end: End = None,
        task: TaskName = None,
        workflow: WorkflowName = None,
        function: FunctionName = None,
        flow: FlowName = None,
        version: Version = None,
        inputs: Inputs = None,
        tick_as: TickAs = None,
        task_list: TaskList = None,
        priority: Priority = None,
        retry: Retry = None,
        timeout: Timeout = None,
        catch_up: CatchUpPolicy = None,
        catch_up_limit: CatchUpLimit = None,
        catch_up_window: CatchUpWindow = None,
        grace: Grace = None,
        overlap: Overlap = None,
        jitter: Jitter = None,
        paused: Annotated[bool, Says("Begin paused")] = False,
    ) -> Schedule:
        """Start a task, a workflow or a function by time: by a cron line, at an interval, or once."""

    @contract.post("/schedules/preview", Scope.READ)
    async def preview_new(
        self,
        *,
        cron: Cron = None,
        zone: Zone = None,
        every: Every = None,
        anchor: Anchor = None,
        at: At = None,
        start: Start = None,
        end: End = None,
        task: TaskName = None,
        workflow: WorkflowName = None,
        function: FunctionName = None,
        flow: FlowName = None,
        version: Version = None,
        inputs: Inputs = None,
        tick_as: TickAs = None,
        task_list: TaskList = None,
        priority: Priority = None,
        retry: Retry = None,
        timeout: Timeout = None,
        catch_up: CatchUpPolicy = None,
        catch_up_limit: CatchUpLimit = None,
        catch_up_window: CatchUpWindow = None,
        grace: Grace = None,
        overlap: Overlap = None,
        jitter: Jitter = None,
        count: Annotated[int, Says("So many ticks, up to 1000", 10)] = 10,
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
        self, name: ScheduleName, *, count: Annotated[int, Says("So many ticks, up to 1000", 10)] = 10
    ) -> SchedulePreview:
        """What a schedule will do: which missed ticks fire now, and when the next ones come. Changes nothing."""

    @contract.post("/schedules/{name}/edit", Scope.OPERATE)
    async def edit(
        self,
        name: ScheduleName,
        *,
        cron: Cron = None,
        zone: Zone = None,
        every: Every = None,
        anchor: Anchor = None,
        at: At = None,
        start: Start = None,
        end: End = None,
        task: TaskName = None,
        workflow: WorkflowName = None,
        function: FunctionName = None,
        flow: FlowName = None,
        version: Version = None,
        inputs: Inputs = None,
        tick_as: TickAs = None,
        task_list: TaskList = None,
        priority: Priority = None,
        retry: Retry = None,
        timeout: Timeout = None,
        catch_up: CatchUpPolicy = None,
        catch_up_limit: CatchUpLimit = None,
        catch_up_window: CatchUpWindow = None,
        grace: Grace = None,
        overlap: Overlap = None,
        jitter: Jitter = None,
        clear: Annotated[
            Sequence[Literal["start", "end", "version", "retry"]], Says("What is not to be said any more", ["end"])
        ] = (),
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
        start: Annotated[datetime, Says("The first tick from then on", "2026-01-01T00:00:00Z")],
        end: Annotated[datetime, Says("The last tick up to then, which is past", "2026-01-31T00:00:00Z")],
        *,
        dry_run: Annotated[bool, Says("Say what would be done, and do nothing")] = False,
    ) -> Backfilled:
        """Start what a schedule starts for past ticks of a range, at most 1000; those that were started already are left alone."""
