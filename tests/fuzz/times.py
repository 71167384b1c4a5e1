"""Targets about time: cron lines, options of schedules, durations and instants as people type them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from tests.fuzz.language import text_of

from treadle.api.schedules import describe_time
from treadle.interfaces.cli import values as inputs
from treadle.kernel.schedules.decide import plan
from treadle.kernel.schedules.options import make_document
from treadle.kernel.schedules.service import time_record
from treadle.kernel.schedules.ticks import Calendar, last_ticks, make_calendar, make_cron, ticks_after
from treadle.model.clock import LATEST_AT, instant, milliseconds
from treadle.model.errors import InvalidInput, InvalidPolicy, InvalidSchedule, TreadleError
from treadle.testing.clock import START_AT

YEAR = 366 * 86_400_000
INSTANTS = ("anchor", "at", "start", "end")


def cron(data: bytes) -> None:
    """A cron line, and on the next line a time zone: refused with `InvalidSchedule`, or its ticks come.

    There is a next tick, later than now, in whole seconds; ticks go up; the last ones are the last of all; the line as it is
    kept means the same.
    """
    line, _, zone = text_of(data).partition("\n")
    try:
        calendar = make_cron(line, zone or "UTC")
    except InvalidSchedule as error:
        assert str(error)
        return
    ticks = check_ticks(calendar, START_AT)
    assert ticks, "a line that was taken never fires"
    assert all(tick % 1000 == 0 for tick in ticks)
    assert ticks_after(make_cron(calendar.line, zone or "UTC"), START_AT, LATEST_AT, 5) == ticks


def check_ticks(calendar: Calendar, now: int) -> list[int]:
    """The next five ticks, once it is sure that they are in order and that both ways to find them agree."""
    ticks = ticks_after(calendar, now, LATEST_AT, 5)
    assert [now, *ticks] == sorted({now, *ticks})
    if ticks:
        assert last_ticks(calendar, now, ticks[-1], 2) == ticks[-2:]
    return ticks


def schedule(data: bytes) -> None:
    """The options of a schedule as JSON: refused with an error of ours, or what it plans to do makes sense.

    Whatever it missed, a plan fires in order, never early, no more than the limit, and goes on after what it fired.
    """
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(given, dict):
        return
    try:
        options = {name: _moment(value) if name in INSTANTS else value for name, value in given.items()}
        document = make_document(options, START_AT)
        calendar = make_calendar(document.when)
    except TreadleError:
        return
    assert describe_time(time_record(document.when))
    check_ticks(calendar, START_AT)
    for now in (START_AT, START_AT + YEAR):
        planned = plan(calendar, document.catch_up, document.cursor, now, end_at=document.end_at)
        assert list(planned.fire) == sorted(set(planned.fire))
        assert len(planned.fire) <= max(document.catch_up.limit, 1)
        assert all(document.cursor < tick <= now for tick in planned.fire)
        assert planned.next_at is None or planned.next_at > planned.cursor


def _moment(value: object) -> object:
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise InvalidInput("no time") from None


def duration(data: bytes) -> None:
    """Durations and instants as people type them: refused with `InvalidPolicy`, or a number that the engine can use."""
    text, _, zone = text_of(data).partition("\n")
    try:
        found = inputs.seconds(text, "--after")
        assert found is not None
        assert milliseconds(found) >= 0
        timedelta(seconds=found)
    except InvalidPolicy as error:
        assert "--after" in str(error) or "duration" in str(error)
    try:
        moment = inputs.moment(text, "--at", zone or "UTC")
        assert moment is not None
        assert 0 <= instant(moment) < LATEST_AT
    except (InvalidPolicy, InvalidSchedule) as error:
        assert str(error)
