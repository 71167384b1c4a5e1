"""Counting the last hour: everything once, whatever the order in which it comes, and never more than a moment at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from treadle.api.system import Throughput
from treadle.kernel.core import Core
from treadle.kernel.reads import throughput
from treadle.kernel.reads.throughput import ThroughputReads
from treadle.kernel.store.queries import Tally
from treadle.testing import ManualClock

MINUTE = 60_000


@dataclass
class Ends:
    """A store that has nothing but ends of tasks: when each came, by its seq."""

    clock: ManualClock
    seqs_in_order: bool = True
    ends: dict[int, tuple[int, str]] = field(default_factory=dict)
    given: int = 0
    longest: int = 0

    @property
    def log(self) -> Ends:
        return self

    def end(self, count: int = 1, state: str = "completed") -> None:
        for _ in range(count):
            self.given += 1
            self.ends[self.given] = (self.clock.now(), state)

    async def now(self) -> int:
        return self.clock.now()

    async def find_last_seq(self) -> int:
        return self.given

    async def tally(self, after_seq: int, until_seq: int) -> list[Tally]:
        self.longest = max(self.longest, until_seq - after_seq)
        counts: dict[tuple[int, str], int] = {}
        for seq, (at, state) in self.ends.items():
            if after_seq < seq <= until_seq:
                key = (at // MINUTE * MINUTE, state)
                counts[key] = counts.get(key, 0) + 1
        return [Tally("default", "handler", at, "end", state, count, None) for (at, state), count in counts.items()]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ends(clock: ManualClock) -> Ends:
    return Ends(clock)


def reads_of(ends: Ends, clock: ManualClock) -> ThroughputReads:
    unused = cast(Any, None)
    return ThroughputReads(Core(cast(Any, ends), unused, unused, unused, clock))


def is_whole(hour: Throughput) -> bool:
    return hour.since_at <= hour.minutes[0].at


def counted(hour: Throughput) -> int:
    return sum(minute.completed + minute.failed for minute in hour.minutes)


async def test_the_last_hour_is_counted_by_minute_without_older_tasks(ends: Ends, clock: ManualClock):
    ends.end(3)
    clock.advance(60 * 60)
    for _ in range(10):
        ends.end(2)
        clock.advance(60)
    ends.end(1, "failed")
    hour = await reads_of(ends, clock).last_hour()
    assert len(hour.minutes) == throughput.MINUTES
    assert [minute.completed for minute in hour.minutes[-11:]] == [2] * 10 + [0]
    assert (hour.minutes[-1].failed, counted(hour), is_whole(hour)) == (1, 21, True)


async def test_each_read_counts_new_tasks_once(ends: Ends, clock: ManualClock):
    looking = reads_of(ends, clock)
    for round_ in range(1, 6):
        ends.end(4)
        assert counted(await looking.last_hour()) == 4 * round_
        clock.advance(throughput.FRESH_FOR)


async def test_a_late_task_with_an_earlier_seq_is_counted(clock: ManualClock):
    ends = Ends(clock, seqs_in_order=False)
    looking = reads_of(ends, clock)
    ends.end(3)
    late = ends.ends.pop(2)
    assert counted(await looking.last_hour()) == 2
    clock.advance(10)
    ends.end()
    assert counted(await looking.last_hour()) == 3
    ends.ends[2] = late
    for _ in range(4):
        clock.advance(10)
        assert counted(await looking.last_hour()) == 4


async def test_a_long_history_is_counted_page_by_page_back_to_an_hour_ago(
    ends: Ends, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(throughput, "PAGE", 10)
    monkeypatch.setattr(throughput, "WITHIN", -1.0)  # each look goes back by one page alone
    ends.end(50)
    clock.advance(2 * 60 * 60)
    for _ in range(30):
        ends.end(1)
        clock.advance(60)
    looking = reads_of(ends, clock)
    first = await looking.last_hour()
    assert (counted(first), is_whole(first)) == (10, False)
    assert first.since_at.ms == clock.now() // MINUTE * MINUTE - 9 * MINUTE
    ends.end(1)
    clock.advance(throughput.FRESH_FOR)
    assert counted(await looking.last_hour()) == 21
    for _ in range(2):
        clock.advance(throughput.FRESH_FOR)
        hour = await looking.last_hour()
    assert (counted(hour), is_whole(hour), ends.longest) == (31, True, 10)


async def test_counting_restarts_after_a_long_absence(ends: Ends, clock: ManualClock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(throughput, "PAGE", 10)
    monkeypatch.setattr(throughput, "FAR_BEHIND", 20)
    looking = reads_of(ends, clock)
    ends.end(5)
    await looking.last_hour()
    ends.end(40)
    clock.advance(throughput.FRESH_FOR)
    assert counted(await looking.last_hour()) == 45
    assert ends.longest == 10
