"""Operator settings of task lists, queues and limit keys: pauses, rates, caps and concurrency limits."""

from __future__ import annotations

import math

import msgspec

from treadle.model.errors import InvalidPolicy
from treadle.model.names import QueueKey
from treadle.model.values import shown

HANDLER_KEY = "handler:"
"""Prefix of the limit key shared by all tasks of a handler that have no key of their own."""

WAIT, IGNORE = "wait", "ignore"
NO_HANDLER_POLICIES = (WAIT, IGNORE)
"""Policies for tasks that no live worker handles."""


TARGET_LATENCY = 30.0
"""Target in seconds within which a ready task should start, by default."""

MAX_WORKERS = 1000
"""Default maximum number of servers for scaling advice."""

MAX_COUNT = 1_000_000_000
"""The largest limit, cap or burst."""


def check_count(count: int, what: str) -> int:
    """Return the count, or raise `InvalidPolicy`: a whole number from 1."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MAX_COUNT:
        raise InvalidPolicy(
            f"{what} must be a whole number from 1 to {MAX_COUNT}, not {shown(count)}; to stop work altogether, pause its list."
        )
    return count


STUCK_FOR = 5_000
"""Milliseconds after which admitted tasks of a key with a rate that nobody claims go to the end of the line."""

AHEAD_FOR = 60_000
"""Milliseconds by which the time of a key's tokens may be ahead of the clock; if it is more, the clock was set back."""

ROUNDING = 0.000_001
"""Tokens by which a sum of fractions may fall short of a whole number."""

SLOWEST, FASTEST = 1 / 86_400, 1_000_000.0
"""Rates in tasks per second: from one a day to a million a second."""


_PER = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86_400, "day": 86_400}


def parse_rate(rate: float | str) -> float:
    """Return the rate per second of a number or of a text such as `10/s`, `100/min`, `5/hour`, or raise `InvalidPolicy`."""
    if not isinstance(rate, str):
        return rate
    count, slash, unit = rate.strip().partition("/")
    try:
        return float(count) / (_PER[unit.strip()] if slash else 1)
    except (KeyError, ValueError):
        raise InvalidPolicy(
            f"A rate is a number per second, or a text such as 10/s, 100/min or 5/hour, not {shown(rate)}."
        ) from None


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


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A token bucket: a rate, and the tokens that were left at an instant."""

    rate: float | None = None
    """Tasks per second that may start on average."""
    burst: int | None = None
    """Tasks that may start in one burst after idle time."""
    tokens: float | None = None
    tokens_at: int | None = None

    def tokens_left(self, now: int) -> float:
        """Return how many tasks may start now; infinite without a rate."""
        if self.rate is None or self.burst is None:
            return math.inf
        since = max(now - (self.tokens_at or 0), 0)
        return min(float(self.burst), (self.tokens or 0.0) + self.rate * since / 1000)

    def next_token_for(self, now: int, reserved: int = 0) -> int:
        """Return the milliseconds until a task may start besides the `reserved` ones; 0 if one may start now."""
        missing = 1 + reserved - self.tokens_left(now) - ROUNDING
        return 0 if missing <= 0 or self.rate is None else math.ceil(missing * 1000 / self.rate)

    @property
    def rate_text(self) -> str:
        """The rate for people, such as `10 per second, bursts of 20`."""
        if self.rate is None:
            return "none"
        units = (("second", 1), ("minute", 60), ("hour", 3600), ("day", 86_400))
        unit, seconds = next((pair for pair in units if self.rate * pair[1] >= 1), units[-1])
        return f"{self.rate * seconds:g} per {unit}, bursts of {self.burst}"


class QueueRule(Bucket, frozen=True, kw_only=True):
    """A queue and its settings."""

    queue_id: int
    queue: QueueKey
    paused: bool = False
    accepting: bool = True
    backlog_limit: int | None = None
    limit_key: str | None = None


class Limit(Bucket, frozen=True, kw_only=True):
    """The maximum number of admitted tasks with a key, the rate at which they may start, or both."""

    namespace: str
    key: str
    max_running: int | None = None
    by_operator: bool = False
    """Whether an operator set the maximum; then `enqueue` does not change it."""
    admitted: int = 0
    waiting: int = 0
    """Tasks that only the limit keeps from being ready."""
    unclaimed: int = 0
    """Admitted tasks that no worker has claimed; each reserves a token."""

    def next_start_for(self, now: int) -> int | None:
        """Return the milliseconds until another task may be admitted; None: only once an admitted one ends."""
        if self.max_running is not None and self.admitted >= self.max_running:
            return None
        if self.burst is not None and self.unclaimed >= self.burst:  # a full bucket gains no token
            return self.stuck_for(now) or STUCK_FOR
        return self.next_token_for(now, self.unclaimed)

    def stuck_for(self, now: int) -> int | None:
        """Return the milliseconds until the tasks that nobody claims count as stuck: 0 if they do, None if others may start.

        They are stuck if they take all the room, and the bucket has been full for a while.
        """
        if self.rate is None or self.burst is None or not self.unclaimed:
            return None
        if self.unclaimed < self.burst and (self.max_running is None or self.admitted < self.max_running):
            return None
        full_at = (self.tokens_at or 0) + math.ceil(max(self.burst - (self.tokens or 0.0), 0) * 1000 / self.rate)
        return max(full_at + STUCK_FOR - now, 0)

    @property
    def text(self) -> str:
        """The limit for people, such as `3 running and 10 per second, bursts of 20`."""
        parts = [] if self.max_running is None else [f"{self.max_running} running"]
        return " and ".join(parts if self.rate is None else [*parts, self.rate_text])
