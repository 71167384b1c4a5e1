"""What operators say about task lists, lanes and limit keys: pausing, rates, caps, and how many may run at once."""

from __future__ import annotations

import math

import msgspec

from treadle.model.errors import InvalidPolicy
from treadle.model.names import Lane

HANDLER_KEY = "handler:"
"""A limit key that begins with this, followed by a name, is that of all tasks of the handler that have no key of their own."""

WAIT, IGNORE = "wait", "ignore"
NO_HANDLER_POLICIES = (WAIT, IGNORE)
"""What becomes of tasks of a name that no live server serves."""


TARGET_LATENCY = 30.0
"""Seconds within which a ready task should be started, unless told otherwise."""

MOST_WORKERS = 1000
"""Nobody is told to start more, unless they say that they can."""

MOST = 1_000_000_000
"""The largest limit, cap or burst."""


def check_count(count: int, what: str) -> int:
    """The count itself, or `InvalidPolicy`: a whole number from 1."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MOST:
        raise InvalidPolicy(
            f"{what} is a whole number from 1 to {MOST}, not {count!r}; to hold work back altogether, pause its list."
        )
    return count


SLOWEST, FASTEST = 1 / 86_400, 1_000_000.0
"""Rates in tasks a second: one a day, a million a second."""


def check_rate(rate: float | None, burst: int | None) -> int | None:
    """The burst that goes with the rate, or `InvalidPolicy`; by default what comes in a second, and at least 1."""
    if rate is None:
        if burst is not None:
            raise InvalidPolicy("A burst needs a rate.")
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not SLOWEST <= rate <= FASTEST:
        raise InvalidPolicy(f"A rate is from one task a day to a million a second (1/86400 to 1000000), not {rate!r}.")
    return check_count(max(1, math.ceil(rate)) if burst is None else burst, "A burst")


def handler_key(name: str) -> str:
    """The limit key of a handler's tasks."""
    return f"{HANDLER_KEY}{name}"


class TaskList(msgspec.Struct, frozen=True, kw_only=True):
    """What was said about a task list."""

    namespace: str
    task_list: str
    paused: bool = False
    """Nothing of it is taken; what runs goes on."""
    accepting: bool = True
    """Whether it takes new work; while it drains, what is there goes on."""
    no_handler: str = WAIT
    keep_completed_for: int | None = None
    """Milliseconds that completed, canceled and ignored ends are kept; None: as the defaults say."""
    keep_failed_for: int | None = None


class LaneRule(msgspec.Struct, frozen=True, kw_only=True):
    """A lane and what was said about it."""

    lane_id: int
    lane: Lane
    paused: bool = False
    accepting: bool = True
    rate: float | None = None
    """Tasks per second that may be taken in the long run."""
    burst: int | None = None
    """Tasks that may be taken at once after a quiet time."""
    tokens: float | None = None
    tokens_at: int | None = None
    backlog_limit: int | None = None
    limit_key: str | None = None

    def tokens_left(self, now: int) -> float:
        """How many tasks may be taken now; infinite without a rate."""
        if self.rate is None or self.burst is None:
            return math.inf
        since = max(now - (self.tokens_at or 0), 0)
        return min(float(self.burst), (self.tokens or 0.0) + self.rate * since / 1000)

    def next_token_for(self, now: int) -> int:
        """Milliseconds until one task may be taken; 0 if one may be taken now."""
        missing = 1 - self.tokens_left(now)
        return 0 if missing <= 0 or self.rate is None else math.ceil(missing * 1000 / self.rate)


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks with the key may be admitted at once."""

    namespace: str
    key: str
    max_running: int
    by_operator: bool = False
    """An operator's limit is not changed by what callers of `enqueue` say."""
    admitted: int = 0
    waiting: int = 0
    """Tasks that would be ready but for the limit."""
