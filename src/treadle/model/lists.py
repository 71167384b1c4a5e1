"""Operator settings of task lists, lanes and limit keys: pauses, rates, caps and concurrency limits."""

from __future__ import annotations

import math

import msgspec

from treadle.model.errors import InvalidPolicy
from treadle.model.names import Lane
from treadle.model.user_values import shown

HANDLER_KEY = "handler:"
"""Prefix of the limit key shared by all tasks of a handler that have no key of their own."""

WAIT, IGNORE = "wait", "ignore"
NO_HANDLER_POLICIES = (WAIT, IGNORE)
"""Policies for tasks whose name no live server handles."""


TARGET_LATENCY = 30.0
"""Target in seconds within which a ready task should start, by default."""

MOST_WORKERS = 1000
"""Default maximum number of servers for scaling advice."""

MOST = 1_000_000_000
"""The largest limit, cap or burst."""


def check_count(count: int, what: str) -> int:
    """Return the count, or raise `InvalidPolicy`: a whole number from 1."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MOST:
        raise InvalidPolicy(
            f"{what} must be a whole number from 1 to {MOST}, not {shown(count)}; to stop work altogether, pause its list."
        )
    return count


SLOWEST, FASTEST = 1 / 86_400, 1_000_000.0
"""Rates in tasks per second: from one a day to a million a second."""


def check_rate(rate: float | None, burst: int | None) -> int | None:
    """Return the burst for the rate (default: one second's worth, at least 1), or raise `InvalidPolicy`."""
    if rate is None:
        if burst is not None:
            raise InvalidPolicy("A burst needs a rate.")
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not SLOWEST <= rate <= FASTEST:
        raise InvalidPolicy(f"A rate must be from one task a day to a million a second (1/86400 to 1000000), not {shown(rate)}.")
    return check_count(max(1, math.ceil(rate)) if burst is None else burst, "A burst")


def handler_key(name: str) -> str:
    """Return the limit key of a handler's tasks."""
    return f"{HANDLER_KEY}{name}"


class TaskList(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a task list."""

    namespace: str
    task_list: str
    paused: bool = False
    """Whether workers take none of its tasks; running ones continue."""
    accepting: bool = True
    """Whether it accepts new work; while it drains, existing work continues."""
    no_handler: str = WAIT
    keep_completed_for: int | None = None
    """Milliseconds to keep completed, canceled and ignored tasks; None means the default."""
    keep_failed_for: int | None = None


class LaneRule(msgspec.Struct, frozen=True, kw_only=True):
    """A lane and its settings."""

    lane_id: int
    lane: Lane
    paused: bool = False
    accepting: bool = True
    rate: float | None = None
    """Tasks per second that may be taken on average."""
    burst: int | None = None
    """Tasks that may be taken in one burst after idle time."""
    tokens: float | None = None
    tokens_at: int | None = None
    backlog_limit: int | None = None
    limit_key: str | None = None

    def tokens_left(self, now: int) -> float:
        """Return how many tasks may be taken now; infinite without a rate."""
        if self.rate is None or self.burst is None:
            return math.inf
        since = max(now - (self.tokens_at or 0), 0)
        return min(float(self.burst), (self.tokens or 0.0) + self.rate * since / 1000)

    def next_token_for(self, now: int) -> int:
        """Return the milliseconds until one task may be taken; 0 if one may be taken now."""
        missing = 1 - self.tokens_left(now)
        return 0 if missing <= 0 or self.rate is None else math.ceil(missing * 1000 / self.rate)


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum number of admitted tasks with a key."""

    namespace: str
    key: str
    max_running: int
    by_operator: bool = False
    """Whether an operator set it; then `enqueue` does not change it."""
    admitted: int = 0
    waiting: int = 0
    """Tasks that only the limit keeps from being ready."""
