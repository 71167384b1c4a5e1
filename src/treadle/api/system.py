"""The system as a whole: clock, status, throughput, and reasons for states."""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import TaskCounts, Why
from treadle.api.view import Column, View, words
from treadle.api.wire import Instant
from treadle.model.clock import span


class Time(ApiRecord, frozen=True):
    """The store's clock, the reference of all instants."""

    now: Instant


class ThroughputMinute(ApiRecord, frozen=True):
    """Outcomes of tasks in one minute; the engine's own tasks are not counted."""

    at: Instant
    """Start of the minute."""
    completed: int
    failed: int
    """Permanently failed, including those that were retried or discarded since."""
    retried: int
    """Failed attempts that are retried."""
    taken_over: int
    """Attempts whose lease expired."""
    waited_for: int
    """Longest delay between due time and first start among the tasks that ended in this minute, in milliseconds."""


class Throughput(ApiRecord, frozen=True):
    """Throughput of the whole store in the last hour."""

    minutes: list[ThroughputMinute]
    """Oldest first; the last one is the current minute."""
    since_at: Instant
    """Start of the first minute."""
    counted_at: Instant
    """Work that ended later is not counted yet: a busy store is counted with a delay."""


class StoreState(ApiRecord, frozen=True):
    """A quick measurement of the store; durations are milliseconds."""

    kind: str
    """`sqlite`, `postgresql` or `memory`."""
    latency_for: int
    """Duration of a small read."""
    overdue_for: int
    """How long the most overdue work has been due."""


class ScheduleFiring(ApiRecord, frozen=True):
    """A schedule and its next tick."""

    schedule: str
    at: Instant


class StatusProblem(ApiRecord, frozen=True):
    """A condition that needs an operator; it is named until its cause is gone."""

    code: str
    """`no_worker`, `list_paused`, `rate`, `watcher_failing`, `dead_letters`, ...; the same cause always has the same code."""
    text: str
    remedy: str
    """Commands or actions that solve it."""
    subject: str | None = None
    """The name or id of the one list, schedule, watcher, server, run, task or external job concerned; null if there are several."""
    subjects: list[str] = msgspec.field(default_factory=list)
    """The names or ids of all that are concerned, up to 100."""

    @property
    def line(self) -> str:
        """The problem and its remedy, in one line."""
        return f"{self.text}; {self.remedy}" if self.remedy else self.text


class Status(ApiRecord, frozen=True):
    """Status of the system."""

    health: str
    """`ok` or `degraded`."""
    reasons: list[str]
    """Reasons for `degraded`, one line each: the problems with their remedies."""
    version: str
    """Version of the responding process."""
    namespace: str
    now: Instant
    store: StoreState
    tasks: TaskCounts
    engine_tasks: int
    """Live tasks of the engine itself: pruning, schedules, watchers, notifications."""
    runs: dict[str, int]
    """Runs by state: `pending`, `running`, `paused`, `completed`, `failed`, `canceled`."""
    dead_letters: int
    approvals: int
    """Pending approvals."""
    blocked_objectives: int
    servers: dict[str, int]
    """Servers by state: `starting`, `running`, `draining`, `stopped`, `error`, `lost`."""
    live_servers: int
    lost_servers: int
    next_firings: list[ScheduleFiring]
    """The next five."""
    access: str | None = None
    """`open` if the responding server needs no token (`--open`), `token` if it does; null: no server was asked."""
    open_servers: list[str] = msgspec.field(default_factory=list)
    """Live servers of this store, on any machine, that need no token: their URLs and hosts."""
    problems: list[StatusProblem] = msgspec.field(default_factory=list)
    """The same problems in parts."""


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _access(status: Status) -> str | None:
    if status.open_servers:
        return f"open to every caller, because of --open: {', '.join(status.open_servers)}"
    return {None: None, "open": "open to every caller, because of --open"}.get(status.access, "requires a token")


STATUS = View(
    Status,
    title="{health} (namespace {namespace})",
    facts=(
        Column("problem", "reasons"),
        Column(
            "tasks",
            lambda status: (
                f"{status.tasks.ready} ready; {status.tasks.running} running, {status.tasks.waiting} waiting, "
                f"{status.tasks.blocked} blocked"
            ),
        ),
        Column("oldest due", "tasks.oldest_due_at"),
        Column(
            "engine",
            lambda status: f"{status.engine_tasks} internal (pruning, schedules, watchers)" if status.engine_tasks else None,
        ),
        Column("runs", lambda status: _counts(status.runs)),
        "dead_letters",
        Column("approvals", lambda status: f"{status.approvals} waiting"),
        Column("objectives", lambda status: f"{status.blocked_objectives} blocked"),
        Column("workers", lambda status: _counts(status.servers)),
        Column("store", lambda status: f"{status.store.kind}, responds in {span(status.store.latency_for)}"),
        Column("next", lambda status: [f"{firing.schedule} {words(firing.at)}" for firing in status.next_firings]),
        "version",
        Column("access", _access),
    ),
)


class SystemApi(Protocol):
    """The system as a whole."""

    @contract.get("/time", lists=True)
    async def time(self) -> Time:
        """The time of the store's clock."""

    @contract.get("/status")
    async def status(self) -> Status:
        """Status of the system. Finished tasks are not counted, so the cost does not grow with the history."""

    @contract.get("/why/{any_id}")
    async def why(
        self,
        any_id: Annotated[str, Doc("Id of a task, run, objective, approval or external job, or the name of a schedule or watcher")],
    ) -> Why:
        """The reason for the state of a task, run or objective, in one line; for an approval or external job, that of its task."""

    @contract.get("/pace")
    async def pace(self) -> Throughput:
        """Outcomes of tasks in each minute of the last hour, from metrics. The response is cached for two seconds."""
