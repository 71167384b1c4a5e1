"""Time in the engine: instants are whole milliseconds since 1970 UTC, durations are `timedelta` or milliseconds.

Names ending in `_at` are instants, names ending in `_for` are durations, both as integer milliseconds unless typed otherwise.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from treadle.model.errors import InvalidPolicy
from treadle.model.values import shown

Duration = timedelta | float | int
"""A duration as callers pass it: a `timedelta`, or a number of seconds."""

MAX_DURATION = 100 * 366 * 24 * 3600 * 1000
"""About a century, the longest allowed duration: a longer one is a mistake in units."""


LATEST_AT = 221_845_392_000_000
"""The year 9000: far enough from the end of the calendar that no sum of an instant and a duration reaches it."""


class Clock(Protocol):
    """The only source of time and the only way to wait; simulation and tests supply their own."""

    def now(self) -> int:
        """Return the wall clock, in milliseconds since 1970 UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back and ignore jumps of the wall clock."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` on this clock."""


def milliseconds(duration: Duration, what: str = "duration", *, positive: bool = False, unit: int = 1000) -> int:
    """Return whole milliseconds; raise `InvalidPolicy` for negative, non-finite and absurd durations.

    `unit` is the number of milliseconds in one unit of a plain number.
    """
    try:
        if isinstance(duration, bool):
            raise ValueError
        value = duration.total_seconds() * 1000 if isinstance(duration, timedelta) else float(duration) * unit
        if math.isnan(value):
            raise ValueError
        result = round(value) if abs(value) <= MAX_DURATION else None
    except OverflowError:
        result = None
    except Exception:  # methods of the value's type may raise anything
        raise InvalidPolicy(f"{what} must be a timedelta or a number of seconds, not {shown(duration)}.") from None
    if result is None or result < 0 or (positive and result == 0):
        bound = "more than zero" if positive else "zero or more"
        raise InvalidPolicy(f"{what} must be {bound} and under a century, not {shown(duration)}.")
    return result


_UNITS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(-?\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")


def parse_duration(text: str, what: str) -> float:
    """Return the seconds of `90`, `1.5s`, `200ms`, `5m`, `2h` or `1d`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidPolicy(f"{what} must be a duration like 90, 1.5s, 200ms, 5m, 2h or 1d, not {text!r}.")
    return float(match[1]) * _UNITS[match[2] or ""]


def instant(at: datetime, what: str = "time") -> int:
    """Return the instant in milliseconds; reject a time without a zone, which would differ between machines."""
    if not isinstance(at, datetime):
        raise InvalidPolicy(f"{what} must be a datetime with a time zone, not {shown(at)}.")
    if at.tzinfo is None:
        raise InvalidPolicy(f"{what} must carry a time zone, e.g. datetime(..., tzinfo=UTC); got {at.isoformat()}.")
    timestamp = round(at.timestamp() * 1000)
    if not 0 <= timestamp < LATEST_AT:
        raise InvalidPolicy(f"{what} must be in the years from 1970 to 8999, not {at.isoformat()}.")
    return timestamp


def as_text(at: int | None) -> str | None:
    """Format the instant as RFC 3339 in UTC with milliseconds, or return None."""
    if at is None:
        return None
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def record_line(record: Any) -> str:
    """Return a record in one line: its id, name and state, and since when; without a state, as `repr` does."""
    state = getattr(record, "shown_state", None) or getattr(record, "state", None)
    if state is None:
        return repr(record)
    names = [getattr(record, field, None) for field in ("id", "name", "workflow", "title")]
    claimed = ("claimed_at",) if state == "running" else ()
    times = [getattr(record, field, None) for field in ("finished_at", *claimed, "created_at")]
    since = next((at if isinstance(at, int) else round(at.timestamp() * 1000) for at in times if at is not None), None)
    return " ".join([*(str(name) for name in names if name), str(state), *([] if since is None else [f"since {as_text(since)}"])])


def span(for_ms: float) -> str:
    """Format a duration in its largest sensible unit: `450 ms`, `3.2 s`, `12 min`, `5 h`, `3 d`."""
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
