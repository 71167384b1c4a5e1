"""What a schedule is: when it fires, what it starts, and what becomes of ticks that were missed or that overlap. Pure.

A *tick* is an instant at which a schedule is due. Its *cursor* is the last tick that was considered; it is never set from the
wall clock, so that each tick is considered once, whatever the clock does.
"""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.model.names import DEFAULT_LIST
from treadle.model.retry import RetryPolicy

SKIP, LATEST, ALL, WINDOW = "skip", "latest", "all", "window"
CATCH_UP_POLICIES = (SKIP, LATEST, ALL, WINDOW)
"""What becomes of missed ticks: none fires; only the newest; all, up to a number; all that are not too old."""

ALLOW, QUEUE, CANCEL = "allow", "queue", "cancel"
OVERLAP_POLICIES = (ALLOW, SKIP, QUEUE, CANCEL)
"""What becomes of a tick while what was started before still goes on: it starts all the same; it is skipped; one such tick
waits for the end; what was started before is canceled."""

TASK, WORKFLOW, FUNCTION = "task", "workflow", "function"
TARGETS = (TASK, WORKFLOW, FUNCTION)

GRACE_FOR = 120_000
"""Milliseconds that a tick may be late and still count as on time: twice the usual lease, so that a takeover misses none."""

CATCH_UP_LIMIT = 100


class When(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule fires: by a cron line in a time zone, every so often from an anchor, or once."""

    cron: str | None = None
    zone: str = "UTC"
    every_for: int | None = None
    anchor_at: int | None = None
    at: int | None = None


class CatchUp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes of ticks that nobody was there for. A tick is missed when it is more than `grace_for` late."""

    policy: str = LATEST
    limit: int = CATCH_UP_LIMIT
    """Of `all` and `window`: the newest so many; older ones are skipped."""
    window_for: int | None = None
    grace_for: int = GRACE_FOR


class Target(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is started: a task of a handler, a run of a workflow, or a run of a durable function."""

    kind: str
    name: str
    flow: str | None = None
    """Of a workflow: the published flow that it is in, or a flow's digest."""
    version: int | None = None
    inputs: dict[str, Any] = {}
    given_as: str | None = None
    """The name under which the tick or the change is among the inputs; None: it is not."""
    task_list: str = DEFAULT_LIST
    priority: int = 0
    retry: RetryPolicy | None = None
    timeout_for: int | None = None


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was started, and the tick that it was started for."""

    kind: str
    """`task` or `run`."""
    id: str
    tick: int


class Firing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a tick: what was started for it, or why nothing was."""

    tick: int
    at: int
    kind: str | None = None
    id: str | None = None
    note: str | None = None


class ScheduleBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a schedule's record."""

    when: When
    target: Target
    catch_up: CatchUp = CatchUp()
    overlap: str = SKIP
    jitter_for: int = 0
    start_at: int | None = None
    end_at: int | None = None
    cursor: int
    """The last tick that was considered, or the instant from which on ticks count."""
    live: tuple[Started, ...] = ()
    """What may still go on of what was started, where the overlap policy needs to know."""
    waiting: int | None = None
    """The tick that waits for the end of what was started before."""
    looks: int = 0
    """How often that end was looked for, for the tick that waits."""
    recent: tuple[Firing, ...] = ()
    fired: int = 0
    skipped: int = 0
    error: dict[str, Any] | None = None
    """Why a tick could not be started; it is tried again."""
