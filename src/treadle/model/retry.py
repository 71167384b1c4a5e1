"""Retry policies: a pure function from the number of failures to the next delay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from treadle.model.clock import MAX_DURATION, Duration, milliseconds
from treadle.model.errors import InvalidPolicy
from treadle.model.stored import Stored
from treadle.model.values import CODE_LIMIT, class_name, shown


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

    `on` and `never` are qualified names of exception classes, which include their subclasses: only those in `on` are retried
    (empty: all), and none in `never`.
    """

    retries: int = 0
    first_for: int = 1000
    factor: float = 2.0
    cap_for: int = 15 * 60 * 1000
    jitter: float = 0.0
    on: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

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
            (
                all(type(name) is str and 0 < len(name) <= CODE_LIMIT for name in (*self.on, *self.never)),
                "on and never take exception classes, or their names",
            ),
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
        on: Iterable[type[BaseException] | str] = (),
        never: Iterable[type[BaseException] | str] = (),
        should_retry: Callable[[Any], bool] | None = None,
    ) -> RetryPolicy:
        """Return a policy from seconds or timedeltas, and from exception classes or their names.

        `should_retry` is called with the exception in the worker; only handlers and steps can have it.
        """
        delays = milliseconds(first, "first delay"), factor, milliseconds(longest, "longest delay")
        policy = cls(retries, *delays, jitter, _names(on), _names(never))
        return policy if should_retry is None else PolicyWithCode(**msgspec.structs.asdict(policy), should_retry=should_retry)

    def delay_for(self, failures: int, jitter_fraction: float = 0.0) -> int | None:
        """Return the milliseconds until the attempt after `failures` failures, or None when the retries are used up."""
        if failures > self.retries:
            return None
        return Backoff(self.first_for, self.cap_for, self.factor, self.jitter).delay_for(failures - 1, jitter_fraction)

    def refusal_in_code(self, error: BaseException) -> str | None:
        """Return why code on the worker refuses to retry the exception; None if it agrees, or if there is none."""
        return None

    def refusal(self, classes: Sequence[str]) -> str | None:
        """Return why an exception with classes of these names, its own first, is not retried; None if it is, or has no class."""
        if not classes:
            return None
        own = _short(classes[0])
        if refused := _first_of(classes, self.never):
            return f"{own} is in never" if refused == own else f"{own} is a {refused}, which is in never"
        return f"{own} is not in on" if self.on and _first_of(classes, self.on) is None else None


class PolicyWithCode(RetryPolicy, frozen=True, kw_only=False):
    """A policy with a function that decides about the exception itself; it is never stored."""

    should_retry: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.should_retry):
            raise InvalidPolicy(f"should_retry must be a function, not {shown(self.should_retry)}.")

    def refusal_in_code(self, error: BaseException) -> str | None:
        """Return why the function refuses to retry the exception, or how it failed; None if it agrees."""
        try:
            return None if self.should_retry(error) else "should_retry returned false"
        except Exception as raised:
            return f"should_retry raised {shown(raised)}"


def _names(kinds: Iterable[type[BaseException] | str]) -> tuple[str, ...]:
    names: Any = kinds if isinstance(kinds, Iterable) and not isinstance(kinds, str | type) else (kinds,)
    return tuple(class_name(kind) if isinstance(kind, type) and issubclass(kind, BaseException) else kind for kind in names)


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _first_of(classes: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the short name of the first class that is among the names; a name without a module is that of any module."""
    for kind in classes:
        if any(kind == name or (_short(kind) == _short(name) and ("." not in kind or "." not in name)) for name in names):
            return _short(kind)
    return None


NO_RETRY = RetryPolicy()
"""One attempt and no implicit retries: the default of every task."""


def as_policy(retry: RetryPolicy | int | None, *, stored: bool = True) -> RetryPolicy | None:
    """Return a policy from a policy, a number of retries, or None for the default; one that is `stored` has no code."""
    if isinstance(retry, int) and not isinstance(retry, bool):
        return RetryPolicy(retries=retry)
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidPolicy(f"retry must be a RetryPolicy or a number of retries, not {shown(retry)}.")
    if stored and isinstance(retry, PolicyWithCode):
        raise InvalidPolicy("A policy with should_retry cannot be stored; give it to the handler or the step, or use on and never.")
    return retry
