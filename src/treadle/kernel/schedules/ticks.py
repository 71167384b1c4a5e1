"""Ticks: the instants at which a schedule is due, computed from a cron line and time zone, an interval or an instant. Pure.

cronsim parses cron lines and finds the matching wall-clock times. This module converts those to instants, by the rule of
Debian's cron, so that clock changes neither lose nor repeat daily work:

- A line for fixed times (neither its minute nor its hour begins with `*`) fires once a day for each of its times. A time
  that the clock skips fires right after the gap; one that occurs twice fires the first time.
- Any other line follows real time: `0 * * * *` fires every real hour. Skipped wall-clock times do not fire, and repeated
  ones fire twice.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from treadle.model.errors import InvalidSchedule
from treadle.model.schedules import When

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MIN_EVERY_FOR = 1000

_FIELDS = ("second", "minute", "hour", "day of the month", "month", "day of the week")
_HELP = "A line has five fields, minute hour day-of-month month day-of-week, or six with seconds first; e.g. '30 2 * * MON-FRI'."
_NAIVE_START = datetime(2000, 1, 1)
_SECOND = timedelta(seconds=1)
_STRIDE = timedelta(days=7)
"""No zone changes its offset and changes it back within a week."""
_FIRST_SPAN_FOR = 60_000
_LAST_AT = 253_000_000_000_000
"""Instants from here on (in the year 9987) have no ticks."""


@dataclass(frozen=True, slots=True)
class Once:
    """A single tick."""

    at: int

    def next_after(self, at: int) -> int | None:
        """Return the tick, if it is after that instant."""
        return self.at if at < self.at else None


@dataclass(frozen=True, slots=True)
class Every:
    """A tick every interval, starting with an anchor."""

    every_for: int
    anchor_at: int

    def next_after(self, at: int) -> int | None:
        """Return the first multiple of the interval after that instant."""
        if at < self.anchor_at:
            return self.anchor_at
        return self.anchor_at + ((at - self.anchor_at) // self.every_for + 1) * self.every_for


@dataclass(frozen=True, slots=True)
class Cron:
    """The ticks of a cron line in a time zone."""

    line: str
    zone: ZoneInfo
    _times: CronSim = field(repr=False, compare=False)
    _fixed: bool = field(repr=False, compare=False)

    def next_after(self, at: int) -> int | None:
        """Return the first tick after that instant, by the rule above."""
        if not -_LAST_AT < at < _LAST_AT:
            return None
        moment = datetime.fromtimestamp(at // 1000, UTC)
        tick = self._fixed_after(moment) if self._fixed else self._real_after(moment)
        return None if tick is None else round(tick.timestamp()) * 1000

    def _walls_after(self, wall: datetime) -> Iterator[datetime]:
        """Yield the matching wall-clock times after `wall`."""
        times = copy.copy(self._times)
        times.dt = wall
        try:
            yield from times
        except OverflowError:  # the end of the calendar
            return

    def _fixed_after(self, moment: datetime) -> datetime | None:
        wall = moment.astimezone(self.zone).replace(tzinfo=None, fold=0)
        for candidate in self._walls_after(wall):
            if (instant := self._instant(candidate)) > moment:
                return instant
        return None

    def _instant(self, wall: datetime) -> datetime:
        """Return the first instant at which the clock shows that time, or skips it."""
        early, late = (wall.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (1, 0))
        if late.astimezone(self.zone).replace(tzinfo=None) == wall:
            return late
        return self._change(early, late) or late

    def _real_after(self, moment: datetime) -> datetime | None:
        """Return the first match before the next change of the offset, else after that change, and so on."""
        start, offset = moment, self._offset(moment)
        while True:
            wall = next(self._walls_after((start + offset).replace(tzinfo=None)), None)
            if wall is None:
                return None
            tick = wall.replace(tzinfo=UTC) - offset
            change = self._change(start, tick, offset)
            if change is None:
                return tick
            start, offset = change - _SECOND, self._offset(change)

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self.zone).utcoffset() or timedelta()

    def _change(self, after: datetime, until: datetime, offset: timedelta | None = None) -> datetime | None:
        """Return the first instant in (after, until] with a different offset."""
        offset = self._offset(after) if offset is None else offset
        low = after
        while low < until:
            high = min(low + _STRIDE, until)
            if self._offset(high) != offset:
                while high - low > _SECOND:
                    middle = low + timedelta(seconds=int((high - low).total_seconds()) // 2)
                    low, high = (middle, high) if self._offset(middle) == offset else (low, middle)
                return high
            low = high
        return None


Calendar = Once | Every | Cron
"""A sequence of ticks: `next_after` returns the first tick after an instant, None if there are no more."""


def make_calendar(when: When) -> Calendar:
    """Return the calendar of a schedule, or raise `InvalidSchedule` with the problem and the remedy."""
    options = [name for name, value in (("cron", when.cron), ("every", when.every_for), ("at", when.at)) if value is not None]
    if len(options) != 1:
        wrong = f"not {' and '.join(options)} together" if options else "and needs one of them"
        raise InvalidSchedule(f"A schedule fires by a cron line, at an interval, or once (cron, every or at), {wrong}.")
    if when.at is not None:
        return Once(when.at)
    if when.every_for is not None:
        if when.every_for < MIN_EVERY_FOR:
            raise InvalidSchedule(f"The shortest interval is one second, not {when.every_for} ms.")
        return Every(when.every_for, when.anchor_at or 0)
    return make_cron(when.cron or "", when.zone)


def make_cron(line: str, zone: str = "UTC") -> Cron:
    """Return the calendar of a cron line, or raise `InvalidSchedule`."""
    plain = _plain(line)
    try:
        times = CronSim(plain, _NAIVE_START)
    except CronSimError as error:
        raise InvalidSchedule(_what_is_wrong(line, plain, str(error))) from None
    except (ValueError, AssertionError, TypeError, IndexError):
        raise InvalidSchedule(f"The cron line {line!r} cannot be read. {_HELP}") from None
    minute, hour = times.parts[1], times.parts[2]
    cron = Cron(plain, find_zone(zone), times, not minute.startswith("*") and not hour.startswith("*"))
    if next(cron._walls_after(_NAIVE_START), None) is None:
        raise InvalidSchedule(f"The cron line {line!r} never fires: there is no such day.")
    return cron


def _plain(line: str) -> str:
    """Return the line with its alias expanded."""
    if not isinstance(line, str) or not line.strip():
        raise InvalidSchedule(f"{line!r} is not a cron line. {_HELP}")
    plain = " ".join(line.split())
    if plain.startswith("@"):
        if plain.lower() not in ALIASES:
            raise InvalidSchedule(f"There is no {plain}; use {', '.join(ALIASES)}, or a line like '30 2 * * *'.")
        return ALIASES[plain.lower()]
    return plain


def _what_is_wrong(line: str, plain: str, error: str) -> str:
    parts = plain.split()
    if len(parts) not in (5, 6):
        return f"The cron line {line!r} has {len(parts)} field(s). {_HELP}"
    names = _FIELDS[6 - len(parts) :]
    field = error.removeprefix("Bad ").replace("day-of-month", "day of the month").replace("day-of-week", "day of the week")
    part = f", {parts[names.index(field)]!r}," if field in names else ""
    return f"The {field}{part} of the cron line {line!r} is invalid. {_HELP}"


def find_zone(name: str) -> ZoneInfo:
    """Return the time zone of that IANA name, or raise `InvalidSchedule`."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError):
        pass
    import difflib

    near = difflib.get_close_matches(str(name), available_timezones(), 3)
    hint = f"Did you mean {' or '.join(near)}?" if near else "Use a name of the IANA database, e.g. Europe/Berlin or UTC."
    raise InvalidSchedule(f"There is no time zone {name!r}. {hint}")


# --- ranges of ticks ---


def ticks_after(calendar: Calendar, after: int, upto: int, limit: float = math.inf) -> list[int]:
    """Return the first `limit` ticks after one instant and up to another."""
    ticks: list[int] = []
    while len(ticks) < limit and (tick := calendar.next_after(ticks[-1] if ticks else after)) is not None and tick <= upto:
        ticks.append(tick)
    return ticks


def last_ticks(calendar: Calendar, after: int, upto: int, limit: int) -> list[int]:
    """Return the last `limit` ticks after one instant and up to another, in order; the cost does not depend on the others."""
    if limit < 1 or upto <= after:
        return []
    if isinstance(calendar, Every):
        after = max(after, upto - (limit + 1) * calendar.every_for)
    span_for = _FIRST_SPAN_FOR
    while True:
        begin = max(after, upto - span_for)
        ticks = ticks_after(calendar, begin, upto)
        if len(ticks) >= limit or begin == after:
            return ticks[-limit:]
        span_for *= 4 if not ticks else 2


def count_ticks(calendar: Calendar, after: int, before: int, limit: int) -> int:
    """Count the ticks between two instants, both excluded; `limit` means that many or more."""
    if isinstance(calendar, Every):
        first = calendar.next_after(after)
        if first is None or first >= before:
            return 0
        return min((before - 1 - first) // calendar.every_for + 1, limit)
    return len(ticks_after(calendar, after, before - 1, limit))
