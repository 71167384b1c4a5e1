"""The system as a whole: its clock, how it is, and why anything is where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import Why
from treadle.api.wire import Instant


@dataclass(frozen=True, slots=True)
class Time(ApiRecord):
    """The store's clock, by which all instants are."""

    now: Instant


@dataclass(frozen=True, slots=True)
class PaceMinute(ApiRecord):
    """What tasks came to in one minute; those of the engine's own kinds are not counted."""

    at: Instant
    """When it began."""
    completed: int
    failed: int
    """For good; those that somebody has retried or discarded since are among them."""
    retried: int
    """Attempts that failed and are tried again."""
    taken_over: int
    """Attempts whose lease ran out."""
    waited_for: int
    """Milliseconds: the longest that a task had been due when it was first taken, of those that ended in this minute."""


@dataclass(frozen=True, slots=True)
class Pace(ApiRecord):
    """How fast work got done in the last hour, in the whole store, whoever did it."""

    minutes: list[PaceMinute]
    """Oldest first; the last one still runs."""
    since_at: Instant
    """What came before has not been counted yet: a later call reaches further back."""


@dataclass(frozen=True, slots=True)
class StoreState(ApiRecord):
    """The store, as far as a moment's look tells; durations are milliseconds."""

    kind: str
    """`sqlite`, `postgresql` or `memory`."""
    latency_for: int
    """How long it took for a small read."""
    overdue_for: int
    """For how long the first thing that is due has been due."""


@dataclass(frozen=True, slots=True)
class TaskCounts(ApiRecord):
    """Live tasks, without those of the engine itself."""

    ready: int
    running: int
    waiting: int
    """Those that sleep: a delay, a backoff, a poll, an approval."""
    held: int
    """Those that a pause or a limit holds back."""
    oldest_due_at: Instant | None
    """Since when the longest ready one is due."""


@dataclass(frozen=True, slots=True)
class ScheduleFiring(ApiRecord):
    """A schedule, and when it fires next."""

    schedule: str
    at: Instant


@dataclass(frozen=True, slots=True)
class Status(ApiRecord):
    """How the system is."""

    health: str
    """`ok` or `degraded`."""
    reasons: list[str]
    """Why it is degraded, a line each."""
    version: str
    """Of who answers."""
    namespace: str
    now: Instant
    store: StoreState
    tasks: TaskCounts
    engine_tasks: int
    """Live tasks of the engine itself, in its own list: it prunes, fires schedules, looks at what is watched, sends notices."""
    runs: dict[str, int]
    """Runs by state: `pending`, `running`, `paused`, `completed`, `failed`, `canceled`."""
    dead_letters: int
    approvals: int
    """Those that wait for a decision."""
    blocked_objectives: int
    servers: dict[str, int]
    """Servers by shown state: `starting`, `running`, `draining`, `stopped`, `error`, `lost`."""
    live_servers: int
    lost_servers: int
    next_firings: list[ScheduleFiring]
    """The next five."""


class SystemApi(Protocol):
    """The system as a whole."""

    @contract.get("/time", lists=True)
    async def time(self) -> Time:
        """What time it is by the store's clock."""

    @contract.get("/status")
    async def status(self) -> Status:
        """How the system is: whether something is wrong, and what there is to do.

        Finished tasks are not counted, so that it stays cheap however long the history is.
        """

    @contract.get("/why/{any_id}")
    async def why(self, any_id: Annotated[str, Doc("The id of a task, a run, an objective, an approval or an outside job")]) -> Why:
        """Why a task, a run or an objective is where it is, in one line; of an approval or an outside job: its task."""

    @contract.get("/pace")
    async def pace(self) -> Pace:
        """What tasks came to in each minute of the last hour, counted from the moves themselves.

        What was counted is remembered by the process that answers; a call takes no longer than a moment, whatever the history,
        and says how far back it reaches.
        """
