"""Ticks: from a cron line and a time zone, an interval or an instant to the instants at which a schedule is due. Pure.

Cron lines are read by cronsim, which also says which wall-clock times match. From wall-clock times to instants goes this
module, by the rule of Debian's cron, so that changes of the clock lose and double nothing that people would miss:

- A line for fixed times (neither its minute nor its hour begins with `*`) fires once a day for each of its times. A time
  that the clock skips fires right after the gap; one that comes twice fires the first time.
- Any other line goes by real time: `0 * * * *` fires every real hour. Wall-clock times that are skipped do not fire, and
  those that come twice fire twice.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from treadle.model.clock import as_text
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
SHORTEST_EVERY_FOR = 1000

_FIELDS = ("second", "minute", "hour", "day of the month", "month", "day of the week")
_HELP = "A line has five fields, minute hour day-of-month month day-of-week, or six with seconds first; e.g. '30 2 * * MON-FRI'."
_NAIVE_START = datetime(2000, 1, 1)
_SECOND = timedelta(seconds=1)
_STRIDE = timedelta(days=7)
"""No zone changes its offset and changes it back within a week."""
_FIRST_SPAN_FOR = 60_000
_LAST_AT = 253_000_000_000_000
"""Instants from here on (in the year 9987) have no ticks."""


class Calendar(Protocol):
    """Knows its ticks."""

    def next_after(self, at: int) -> int | None:
        """The first tick after that instant, or None if there is none any more."""


@dataclass(frozen=True, slots=True)
class Once:
    """One tick."""

    at: int

    def next_after(self, at: int) -> int | None:
        """The tick, if it is still to come."""
        return self.at if at < self.at else None


@dataclass(frozen=True, slots=True)
class Every:
    """A tick every so often, counted from an anchor that is the first."""

    every_for: int
    anchor_at: int

    def next_after(self, at: int) -> int | None:
        """The first multiple after it."""
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
        """The first tick after it, by the rule above."""
        if not -_LAST_AT < at < _LAST_AT:
            return None
        moment = datetime.fromtimestamp(at // 1000, UTC)
        found = self._fixed_after(moment) if self._fixed else self._real_after(moment)
        return None if found is None else round(found.timestamp()) * 1000

    def _walls_after(self, wall: datetime) -> Iterator[datetime]:
        """The wall-clock times that match, from the first after `wall` on."""
        times = copy.copy(self._times)
        times.dt = wall
        try:
            yield from times
        except OverflowError:  # the end of the calendar
            return

    def _fixed_after(self, moment: datetime) -> datetime | None:
        wall = moment.astimezone(self.zone).replace(tzinfo=None, fold=0)
        for each in self._walls_after(wall):
            if (instant := self._instant(each)) > moment:
                return instant
        return None

    def _instant(self, wall: datetime) -> datetime:
        """When the clock shows that for the first time, or jumps over it."""
        early, late = (wall.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (1, 0))
        if late.astimezone(self.zone).replace(tzinfo=None) == wall:
            return late
        return self._change(early, late) or late

    def _real_after(self, moment: datetime) -> datetime | None:
        """The first match in the time until the offset changes, else in the time after that, and so on."""
        start, offset = moment, self._offset(moment)
        while True:
            wall = next(self._walls_after((start + offset).replace(tzinfo=None)), None)
            if wall is None:
                return None
            found = wall.replace(tzinfo=UTC) - offset
            change = self._change(start, found, offset)
            if change is None:
                return found
            start, offset = change - _SECOND, self._offset(change)

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self.zone).utcoffset() or timedelta()

    def _change(self, after: datetime, until: datetime, offset: timedelta | None = None) -> datetime | None:
        """The first instant in (after, until] at which the offset is another one."""
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


def make_calendar(when: When) -> Calendar:
    """The calendar of a schedule, or `InvalidSchedule`, which says what is wrong and what would be right."""
    given = [name for name, value in (("cron", when.cron), ("every", when.every_for), ("at", when.at)) if value is not None]
    if len(given) != 1:
        said = f"not {' and '.join(given)} together" if given else "and one of them is needed"
        raise InvalidSchedule(f"A schedule fires by a cron line, every so often, or once (cron, every or at), {said}.")
    if when.at is not None:
        return Once(when.at)
    if when.every_for is not None:
        if when.every_for < SHORTEST_EVERY_FOR:
            raise InvalidSchedule(f"The shortest interval is one second, not {when.every_for} ms.")
        return Every(when.every_for, when.anchor_at or 0)
    return make_cron(when.cron or "", when.zone)


def make_cron(line: str, zone: str = "UTC") -> Cron:
    """The calendar of a cron line, checked."""
    plain = _plain(line)
    try:
        times = CronSim(plain, _NAIVE_START)
    except CronSimError as error:
        raise InvalidSchedule(_what_is_wrong(line, plain, str(error))) from None
    except (ValueError, AssertionError, TypeError, IndexError):
        raise InvalidSchedule(f"The cron line {line!r} cannot be read. {_HELP}") from None
    minute, hour = times.parts[1], times.parts[2]
    made = Cron(plain, find_zone(zone), times, not minute.startswith("*") and not hour.startswith("*"))
    if next(made._walls_after(_NAIVE_START), None) is None:
        raise InvalidSchedule(f"The cron line {line!r} never fires: there is no such day.")
    return made


def _plain(line: str) -> str:
    """The line with an alias written out."""
    if not isinstance(line, str) or not line.strip():
        raise InvalidSchedule(f"{line!r} is no cron line. {_HELP}")
    plain = " ".join(line.split())
    if plain.startswith("@"):
        if plain.lower() not in ALIASES:
            raise InvalidSchedule(f"There is no {plain}; there are {', '.join(ALIASES)}, and lines like '30 2 * * *'.")
        return ALIASES[plain.lower()]
    return plain


def _what_is_wrong(line: str, plain: str, error: str) -> str:
    parts = plain.split()
    if len(parts) not in (5, 6):
        return f"The cron line {line!r} has {len(parts)} field(s). {_HELP}"
    names = _FIELDS[6 - len(parts) :]
    said = error.removeprefix("Bad ").replace("day-of-month", "day of the month").replace("day-of-week", "day of the week")
    part = f", {parts[names.index(said)]!r}," if said in names else ""
    return f"The {said}{part} of the cron line {line!r} makes no sense. {_HELP}"


def find_zone(name: str) -> ZoneInfo:
    """The time zone of that IANA name, or `InvalidSchedule`."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError):
        pass
    import difflib

    near = difflib.get_close_matches(str(name), available_timezones(), 3)
    hint = f"Did you mean {' or '.join(near)}?" if near else "Names are those of the IANA database, e.g. Europe/Berlin or UTC."
    raise InvalidSchedule(f"There is no time zone {name!r}. {hint}")


# --- many ticks ---


def ticks_after(calendar: Calendar, after: int, upto: int, limit: int) -> list[int]:
    """The first `limit` ticks after the one instant and up to the other."""
    found: list[int] = []
    while len(found) < limit and (tick := calendar.next_after(found[-1] if found else after)) is not None and tick <= upto:
        found.append(tick)
    return found


def last_ticks(calendar: Calendar, after: int, upto: int, limit: int) -> list[int]:
    """The last `limit` ticks after the one instant and up to the other, in order; costs as much as these, not as all."""
    if limit < 1 or upto <= after:
        return []
    if isinstance(calendar, Every):
        after = max(after, upto - (limit + 1) * calendar.every_for)
    span_for = _FIRST_SPAN_FOR
    while True:
        begin = max(after, upto - span_for)
        found: list[int] = []
        tick = calendar.next_after(begin)
        while tick is not None and tick <= upto:
            found.append(tick)
            tick = calendar.next_after(tick)
        if len(found) >= limit or begin == after:
            return found[-limit:]
        span_for *= 4 if not found else 2


def count_ticks(calendar: Calendar, after: int, before: int, limit: int) -> int:
    """How many ticks there are between the two, neither counted; `limit` means that many or more."""
    if isinstance(calendar, Every):
        first = calendar.next_after(after)
        if first is None or first >= before:
            return 0
        return min((before - 1 - first) // calendar.every_for + 1, limit)
    return len(ticks_after(calendar, after, before - 1, limit))


def describe(when: When) -> str:
    """The schedule's times in words."""
    if when.cron is not None:
        return f"{when.cron} ({when.zone})"
    if when.every_for is not None:
        return f"every {when.every_for / 1000:g} s from {as_text(when.anchor_at)}"
    return f"once at {as_text(when.at)}"
