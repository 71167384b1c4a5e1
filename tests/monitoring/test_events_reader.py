"""A reader of events loses nothing and gets nothing twice when it is interrupted, or the store cannot be reached, in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.limits import BOUND

from treadle.kernel.core import Core
from treadle.kernel.reads.events import Events
from treadle.kernel.store.queries import TransitionEvent
from treadle.model.errors import StoreUnavailable
from treadle.model.tasks import Transition
from treadle.testing import ManualClock

FIELDS = ("entity", "entity_id", "transition", "from_state", "to_state")


class HalfStore:
    """Has transitions of these seqs; what is named in `broken` fails once."""

    seqs_in_order = False

    def __init__(self, *seqs: int) -> None:
        self.seqs = set(seqs)
        self.broken: list[tuple[Any, ...]] = []
        self.log = self

    def _reach(self, *asked: Any) -> None:
        if asked in self.broken:
            self.broken.remove(asked)
            raise StoreUnavailable("not now")

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        return lambda: None

    async def now(self) -> int:
        self._reach("now")
        return 0

    async def find_last_seq(self) -> int:
        self._reach("find_last_seq")
        return max(self.seqs)

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[TransitionEvent]:
        self._reach("list_events", after_seq)
        found = sorted(seq for seq in self.seqs if after_seq < seq <= until_seq)[:limit]
        return [TransitionEvent("default", Transition(seq=seq, at=0, version=1, **dict.fromkeys(FIELDS, "task"))) for seq in found]


class Quiet:
    """A committer that commits nothing."""

    def __init__(self) -> None:
        self.on_ready: list[Any] = []
        self.on_finished: list[Any] = []
        self.on_fenced: list[Any] = []


def reader_of(store: HalfStore, after: int | None = 0) -> Events:
    return Events(Core(cast(Any, store), cast(Any, Quiet()), cast(Any, None), cast(Any, None), ManualClock()), after=after)


async def read(events: Events, count: int) -> list[int]:
    return [(await asyncio.wait_for(anext(events), BOUND)).seq for _ in range(count)]


async def test_events_read_before_a_failed_gap_check_are_still_delivered():
    store = HalfStore(1, 2, 5)
    store.broken = [("now",)]
    events = reader_of(store)
    with pytest.raises(StoreUnavailable):
        await read(events, 1)
    assert events.last_gap_free == 0
    assert await read(events, 3) == [1, 2, 5]


async def test_late_events_of_one_gap_are_delivered_once_when_reading_the_next_gap_fails():
    store = HalfStore(1, 3, 5)
    events = reader_of(store)
    assert await read(events, 3) == [1, 3, 5]
    store.seqs |= {2, 4, 6}
    store.broken = [("list_events", 3)]
    with pytest.raises(StoreUnavailable):
        await events._poll()
    assert await read(events, 3) == [6, 2, 4]
    assert events.last_gap_free == 6


async def test_a_reader_that_failed_to_start_restarts_at_the_current_position():
    store = HalfStore(1, 2, 3)
    store.broken = [("find_last_seq",)]
    events = reader_of(store, after=None)
    with pytest.raises(StoreUnavailable):
        await read(events, 1)
    async with events:
        store.seqs.add(4)
        assert await read(events, 1) == [4]
