"""Schedules: their times, targets, and the policies for missed and overlapping ticks. Pure.

A *tick* is an instant at which a schedule is due. Its *cursor* is the last tick that was considered; it is never set from the
wall clock, so each tick is considered once, even if the clock jumps.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from treadle.model.names import DEFAULT_LIST
from treadle.model.retry import RetryPolicy
from treadle.model.stored import Stored, words

SKIP, LATEST, ALL, WINDOW = "skip", "latest", "all", "window"
CATCH_UP_POLICIES = (SKIP, LATEST, ALL, WINDOW)
"""Policies for missed ticks: none fires; only the newest; all, up to a limit; all within a window."""

ALLOW, QUEUE, CANCEL = "allow", "queue", "cancel"
OVERLAP_POLICIES = (ALLOW, SKIP, QUEUE, CANCEL)
"""Policies for a tick while earlier work still runs: start anyway; skip it; queue one such tick until the end; cancel the
earlier work. Missed ticks that are caught up with under `skip` and `queue` run one after another."""

TASK, WORKFLOW, FUNCTION = "task", "workflow", "function"
TARGETS = (TASK, WORKFLOW, FUNCTION)

GRACE_FOR = 120_000
"""Milliseconds that a tick may be late and still be on time: twice the default lease, so that a takeover misses none."""

CATCH_UP_LIMIT = 100


class When(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The times of a schedule: a cron line in a time zone, an interval from an anchor, or a single instant."""

    cron: str | None = None
    zone: str = "UTC"
    every_for: int | None = None
    anchor_at: int | None = None
    at: int | None = None


class CatchUp(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The policy for missed ticks. A tick is missed when it is more than `grace_for` late."""

    policy: Annotated[str, words(CATCH_UP_POLICIES)] = LATEST
    limit: int = CATCH_UP_LIMIT
    """For `all` and `window`: the maximum number of ticks, newest first; older ones are skipped."""
    window_for: int | None = None
    grace_for: int = GRACE_FOR


def describe_catch_up(catch_up: CatchUp, overlap: str = ALLOW) -> str:
    """Describe the policy for missed ticks, and the effect of the overlap policy on it."""
    late = f"{catch_up.grace_for / 1000:g} s"
    several = {ALLOW: "", CANCEL: "; of several due ticks, only the newest fires"}.get(overlap, ", one after another")
    match catch_up.policy:
        case "skip":
            newest = "" if overlap == ALLOW else "; of several on time, only the newest fires"
            return f"missed ticks (over {late} late) are skipped{newest}"
        case "latest":
            if overlap != ALLOW:
                return "of several due ticks, only the newest fires"
            return f"of missed ticks (over {late} late) only the newest fires"
        case "all":
            return f"all missed ticks fire, up to the newest {catch_up.limit}{several}"
        case _:
            window = f"{(catch_up.window_for or 0) / 1000:g} s"
            return f"missed ticks up to {window} late fire, up to the newest {catch_up.limit}{several}"


class Target(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The work to start: a task of a handler, a run of a workflow, or a run of a durable function."""

    kind: Annotated[str, words(TARGETS)]
    name: str
    flow: str | None = None
    """For a workflow: its published flow, or a flow's digest."""
    version: int | None = None
    inputs: dict[str, Any] = msgspec.field(default_factory=dict)
    given_as: str | None = None
    """The input that receives the tick or the change; None: no input does."""
    task_list: str = DEFAULT_LIST
    priority: int = 0
    retry: RetryPolicy | None = None
    timeout_for: int | None = None
    deadline_for: int | None = None
    fairness_key: str | None = None
    tags: dict[str, Any] = msgspec.field(default_factory=dict)
    """Search attributes of the work (`model.tags`)."""


class Started(Stored, frozen=True, kw_only=True):
    """Started work, and its tick."""

    kind: str
    """`task` or `run`."""
    id: str
    tick: int


class Firing(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a tick: the started work, or the reason why nothing was started."""

    tick: int
    at: int
    kind: str | None = None
    id: str | None = None
    note: str | None = None


class ScheduleDocument(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The document of a schedule's record."""

    when: When
    target: Target
    catch_up: CatchUp = CatchUp()
    overlap: Annotated[str, words(OVERLAP_POLICIES)] = SKIP
    jitter_for: int = 0
    start_at: int | None = None
    end_at: int | None = None
    cursor: int
    """The last tick that was considered, or the instant after which ticks count."""
    live: tuple[Started, ...] = ()
    """Started work that may still be live, if the overlap policy needs it."""
    waiting: int | None = None
    """The next tick to start when earlier work has ended."""
    backlog: tuple[int, ...] = ()
    """Ticks that start after `waiting`, one after another (under `allow`: with the next attempts)."""
    looks: int = 0
    """Number of checks for that end."""
    recent: tuple[Firing, ...] = ()
    fired: int = 0
    skipped: int = 0
    error: dict[str, Any] | None = None
    """Why a tick could not be started; it is retried."""


TIMES = ("when", "start_at", "end_at")
"""The fields that set the ticks: when one of them changes, ticks count from now on."""

DEFINITION = ("when", "target", "catch_up", "overlap", "jitter_for", "start_at", "end_at")
"""The fields that people set; the others are progress."""
