"""Retry policies: a pure function from the number of failures to the next delay."""

from __future__ import annotations

import msgspec

from treadle.model.clock import MAX_DURATION, Duration, milliseconds
from treadle.model.errors import InvalidPolicy
from treadle.model.stored import Stored
from treadle.model.values import shown


def _within(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _whole(value: object, high: float) -> bool:
    """Whether the value can be read again after it was stored as a whole number."""
    return isinstance(value, int) and _within(value, 0, high)


class Backoff(msgspec.Struct, frozen=True):
    """Delays that grow from `first` by `factor` up to `cap`; `jitter` is the share of a delay that may be subtracted from it."""

    first: float
    cap: float
    factor: float = 2.0
    jitter: float = 0.0

    def delay(self, number: int, jitter_fraction: float = 0.0) -> float:
        """Return the delay with that number, counted from 0, less that fraction of the jitter."""
        try:
            full = min(self.first * float(self.factor) ** number, self.cap)
        except OverflowError:
            full = self.cap
        return full * (1 - self.jitter * jitter_fraction)

    def delay_for(self, number: int, jitter_fraction: float = 0.0) -> int:
        """Return the same in whole milliseconds."""
        return round(self.delay(number, jitter_fraction))

    def after(self, delay: float) -> float:
        """Return the delay that follows the given one."""
        return min(delay * self.factor, self.cap)


STORE_BACKOFF = Backoff(0.1, 2.0)
"""Seconds between attempts to reach a store that does not answer."""


class RetryPolicy(Stored, frozen=True, omit_defaults=True, kw_only=False):
    """`retries` further attempts after the first one; the n-th after `first_for * factor ** (n - 1)`, at most `cap_for`.

    Durations are milliseconds; use `RetryPolicy.of` to give seconds or timedeltas. `jitter` subtracts a random part of up to
    that share from each delay, so that tasks that failed together do not retry together.
    """

    retries: int = 0
    first_for: int = 1000
    factor: float = 2.0
    cap_for: int = 15 * 60 * 1000
    jitter: float = 0.0

    def __post_init__(self) -> None:
        rules = (
            (_whole(self.retries, 1_000_000), "retries must be a whole number from 0 to 1,000,000"),
            (
                _whole(self.first_for, MAX_DURATION),
                "the first delay must be zero or more and under a century, in whole milliseconds",
            ),
            (_within(self.factor, 1, 100), "factor must be from 1 to 100"),
            (
                _whole(self.cap_for, MAX_DURATION) and _within(self.first_for, 0, self.cap_for),
                "the longest delay must be under a century, in whole milliseconds, and not shorter than the first",
            ),
            (_within(self.jitter, 0, 1), "jitter must be from 0 to 1"),
        )
        for holds, rule in rules:
            if not holds:
                raise InvalidPolicy(f"This retry policy is invalid: {rule}; got {shown(self)}.")

    @classmethod
    def of(
        cls,
        retries: int,
        *,
        first: Duration = 1,
        factor: float = 2.0,
        longest: Duration = 15 * 60,
        jitter: float = 0.0,
    ) -> RetryPolicy:
        """Return a policy from seconds or timedeltas."""
        return cls(retries, milliseconds(first, "first delay"), factor, milliseconds(longest, "longest delay"), jitter)

    def delay_for(self, failures: int, jitter_fraction: float = 0.0) -> int | None:
        """Return the milliseconds until the attempt after `failures` failures, or None when the retries are used up."""
        if failures > self.retries:
            return None
        return Backoff(self.first_for, self.cap_for, self.factor, self.jitter).delay_for(failures - 1, jitter_fraction)


NO_RETRY = RetryPolicy()
"""One attempt and no implicit retries: the default of every task."""


def as_policy(retry: RetryPolicy | int | None) -> RetryPolicy | None:
    """Return a policy from a policy, a number of retries, or None for the default."""
    if retry is None or isinstance(retry, RetryPolicy):
        return retry
    if isinstance(retry, int) and not isinstance(retry, bool):
        return RetryPolicy(retries=retry)
    raise InvalidPolicy(f"retry must be a RetryPolicy or a number of retries, not {shown(retry)}.")
