"""Time as the engine sees it: instants are whole milliseconds since 1970 UTC, durations are `timedelta` or milliseconds.

Names ending in `_at` are instants, names ending in `_for` are durations, both as integer milliseconds unless typed otherwise.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

from treadle.model.errors import InvalidPolicy

Duration = timedelta | float | int
"""What callers may pass for a duration: a `timedelta`, or a number of seconds."""

LONGEST_FOR = 100 * 366 * 24 * 3600 * 1000
"""No duration is longer than about a century: what is longer is a mistake in units."""


LATEST_AT = 221_845_392_000_000
"""The year 9000: so far from where calendars end that no sum of an instant and a duration gets there."""


class Clock(Protocol):
    """The only source of time and the only way to wait; simulation and tests bring their own."""

    def now(self) -> int:
        """The wall clock, in milliseconds since 1970 UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back and do not follow the wall clock's jumps."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` on this clock."""


def milliseconds(duration: Duration, what: str = "duration", *, positive: bool = False) -> int:
    """The duration in whole milliseconds; refuses negative, non-finite and absurd ones with `InvalidPolicy`."""
    try:
        value = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
        result = round(value * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidPolicy(f"{what} must be a timedelta or a number of seconds, not {duration!r}.") from None
    if result < 0 or (positive and result == 0) or result > LONGEST_FOR:
        bound = "more than zero" if positive else "zero or more"
        raise InvalidPolicy(f"{what} must be {bound} and under a century, not {duration!r}.")
    return result


def instant(at: datetime, what: str = "time") -> int:
    """The instant in milliseconds; a time without a zone is refused, as it would mean something else on each machine."""
    if not isinstance(at, datetime):
        raise InvalidPolicy(f"{what} must be a datetime with a time zone, not {at!r}.")
    if at.tzinfo is None:
        raise InvalidPolicy(f"{what} must carry a time zone, e.g. datetime(..., tzinfo=UTC); got {at.isoformat()}.")
    found = round(at.timestamp() * 1000)
    if not 0 <= found < LATEST_AT:
        raise InvalidPolicy(f"{what} must be in the years from 1970 to 8999, not {at.isoformat()}.")
    return found


def as_text(at: int | None) -> str | None:
    """The instant as RFC 3339 in UTC with milliseconds, or None."""
    if at is None:
        return None
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span(for_ms: float) -> str:
    """A duration in its largest sensible unit: `450 ms`, `3.2 s`, `12 min`, `5 h`, `3 d`."""
    for_ms = abs(for_ms)
    for limit, divisor, unit, digits in (
        (1_000, 1, "ms", 0),
        (60_000, 1_000, "s", 1),
        (3_600_000, 60_000, "min", 0),
        (172_800_000, 3_600_000, "h", 0),
    ):
        if for_ms < limit:
            return f"{round(for_ms / divisor, digits):g} {unit}"
    return f"{for_ms / 86_400_000:.0f} d"
