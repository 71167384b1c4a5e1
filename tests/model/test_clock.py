"""Durations, instants, and the clock that tests transition."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta, timezone

import pytest

from treadle.model.clock import MAX_DURATION, Clock, as_text, instant, milliseconds
from treadle.model.errors import InvalidPolicy
from treadle.testing import ManualClock


@pytest.mark.parametrize(
    ("duration", "expected"),
    [(0, 0), (1, 1_000), (0.5, 500), (0.0004, 0), (timedelta(minutes=2), 120_000), (timedelta(microseconds=1500), 2)],
)
def test_a_duration_is_whole_milliseconds(duration, expected):
    assert milliseconds(duration) == expected


@pytest.mark.parametrize(
    "duration", [-1, -0.001, math.nan, math.inf, "5 s", None, timedelta(days=-1), MAX_DURATION / 1000 + 1, 10**400, True]
)
def test_an_invalid_duration_is_refused(duration):
    with pytest.raises(InvalidPolicy, match="lease"):
        milliseconds(duration, "lease")


def test_where_a_duration_must_be_positive_zero_is_refused():
    assert milliseconds(0) == 0
    with pytest.raises(InvalidPolicy, match="more than zero"):
        milliseconds(0, positive=True)
    with pytest.raises(InvalidPolicy):
        milliseconds(0.0001, positive=True)


def test_an_instant_needs_a_time_zone():
    assert instant(datetime(2027, 1, 15, 8, tzinfo=UTC)) == 1_800_000_000_000
    assert instant(datetime(2027, 1, 15, 10, tzinfo=timezone(timedelta(hours=2)))) == 1_800_000_000_000
    with pytest.raises(InvalidPolicy, match="time zone"):
        instant(datetime(2027, 1, 15, 8))


def test_an_instant_is_shown_in_utc_with_milliseconds():
    assert as_text(1_800_000_000_007) == "2027-01-15T08:00:00.007Z"
    assert as_text(None) is None


def test_a_manual_clock_is_a_clock():
    clock: Clock = ManualClock()
    assert clock.now() == 1_800_000_000_000


def test_a_manual_clock_stands_still_until_it_is_advanced():
    clock = ManualClock(5_000)
    assert (clock.now(), clock.monotonic()) == (5_000, 0.0)
    clock.advance(1.5)
    clock.advance(timedelta(milliseconds=1))
    assert (clock.now(), clock.monotonic()) == (6_501, 1.501)


def test_a_manual_clock_never_goes_back():
    with pytest.raises(InvalidPolicy):
        ManualClock().advance(-1)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_advancing_wakes_due_sleepers_in_order():
    clock, woken = ManualClock(), []

    async def sleeper(seconds):
        await clock.sleep(seconds)
        woken.append(seconds)

    tasks = [asyncio.ensure_future(sleeper(seconds)) for seconds in (3, 1, 2, 1.0005)]
    await turns()
    assert clock.sleeping == 4
    clock.advance(0.999)
    await turns()
    assert woken == []
    clock.advance(1.001)
    await turns()
    assert woken == [1, 1.0005, 2]
    clock.advance(60)
    await asyncio.gather(*tasks)
    assert woken == [1, 1.0005, 2, 3]
    assert clock.sleeping == 0


async def test_sleeping_for_zero_seconds_yields_to_other_tasks():
    clock = ManualClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.sleeping == 0


async def test_a_sleeper_may_be_cancelled():
    clock = ManualClock()
    task = asyncio.ensure_future(clock.sleep(1))
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.sleeping == 0
    clock.advance(2)
    await turns()


async def test_time_may_be_advanced_in_another_thread():
    """The sleeper is not left waiting."""
    clock = ManualClock()
    task = asyncio.ensure_future(clock.sleep(10))
    await turns()
    await asyncio.to_thread(clock.advance, 10)
    await task


def test_sleepers_of_a_closed_loop_are_dropped():
    """Advancing the clock does not call into the closed loop, which would raise."""
    clock = ManualClock()
    loop = asyncio.new_event_loop()
    task = loop.create_task(clock.sleep(1))
    loop.run_until_complete(turns())
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    clock.advance(2)
