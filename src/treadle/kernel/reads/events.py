"""The event stream: every transition, once, as it happens, resumable (D9).

Seqs are assigned before commits, so on PostgreSQL a transition may become visible after one with a greater seq. A reader gets every
transition as soon as it is visible; gaps are remembered and read again for 15 s, which no transaction outlives. `last_gap_free` is
the position to resume from: a resumed reader may get some transitions again and recognises them by their seq.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

import msgspec

from treadle.api.events import EventConditions
from treadle.kernel.core import Core, Service
from treadle.kernel.store.process import wait_or_sleep
from treadle.kernel.store.queries import TransitionEvent
from treadle.model.errors import InvalidInput
from treadle.model.ids import parse_id
from treadle.model.tasks import Transition

GIVE_UP_FOR = 15_000
"""Milliseconds after which a gap is taken as permanent."""

POLL_EVERY = 0.5
"""Seconds between polls without a hint."""

PAGE = 500
LOOK_BACK = 10_000
"""Number of seqs before the last one that a new reader scans for transitions still being committed."""

_LAST = 2**63 - 1


class _Gap(msgspec.Struct):
    """Seqs from `first` to `last` without a transition so far, noticed at `since` on the monotonic clock."""

    first: int
    last: int
    since: float


class Events(Service):
    """Transitions as they happen: `async for transition in events`. Ends when closed; closing is optional.

    `last_gap_free`: every transition up to this seq was delivered or does not exist.
    """

    def __init__(
        self,
        core: Core,
        *,
        after: int | None = None,
        **which: Any,
    ) -> None:
        """`which` are `EventConditions`; in place of an id, they may have a record."""
        self._stops: list[Callable[[], None]] = []
        if after is not None and after < 0:
            raise InvalidInput(f"after is the seq of an event, zero or more, not {after}.")
        super().__init__(core)
        self._which = canonical(which)
        self._after = after
        self._high = after or 0
        self._gaps: list[_Gap] = []
        self._ready: deque[Transition] = deque()
        self._hinted = asyncio.Event()
        self._begun = self._closed = False

    @property
    def last_gap_free(self) -> int:
        """The position to resume from without missing anything."""
        bounds = [gap.first - 1 for gap in self._gaps] + [transition.seq - 1 for transition in self._ready]
        return min([self._high, *bounds])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Transition:
        while not self._ready:
            if self._closed:
                raise StopAsyncIteration
            if not self._begun:
                await self._begin()
            self._hinted.clear()
            more = await self._poll()
            if not self._ready and not more and not self._closed:
                await wait_or_sleep(self._hinted, self._clock, POLL_EVERY)
        return self._ready.popleft()

    async def __aenter__(self) -> Self:
        if not self._begun:
            await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the stream and release a waiting reader. Idempotent."""
        self._closed = True
        self._unsubscribe()
        self._hinted.set()

    def __del__(self) -> None:
        self._unsubscribe()

    def _unsubscribe(self) -> None:
        while self._stops:
            self._stops.pop()()

    # start

    async def _begin(self) -> None:
        self._unsubscribe()  # of an interrupted start
        self._gaps = []
        hinted = self._hinted.set  # holds no reference to this object, so that it can be collected without its reader
        for hooks in (self._committer.on_ready, self._committer.on_finished, self._committer.on_fenced):
            self._hook(hooks, lambda _: hinted())
        self._stops.append(await self._store.subscribe(lambda _: hinted()))
        if self._after is None:
            await self._begin_now()
        self._begun = True

    def _hook(self, hooks: list[Callable[..., None]], listener: Callable[..., None]) -> None:
        hooks.append(listener)
        self._stops.append(lambda: hooks.remove(listener) if listener in hooks else None)

    async def _begin_now(self) -> None:
        """Start after the last visible transition; transitions still being committed with smaller seqs will be delivered."""
        last = await self._store.log.find_last_seq()
        self._high = last
        if not self._store.log.seqs_in_order:
            self._high = max(last - LOOK_BACK, 0)
            while events := await self._store.log.list_events(self._high, last, PAGE):
                await self._note(events)
            self._pass_over(last + 1)
            self._high = last

    # polling

    async def _poll(self) -> bool:
        """Read new transitions and filled gaps; returns whether more are available immediately."""
        events = await self._store.log.list_events(self._high, _LAST, PAGE)
        await self._note(events)
        self._deliver(events)
        await self._look_into_gaps()
        return len(events) == PAGE

    async def _note(self, events: list[TransitionEvent]) -> None:
        """Remember new gaps, except those too old to fill."""
        if not events:
            return
        if self._store.log.seqs_in_order:
            self._high = events[-1].transition.seq
            return
        seqs = [event.transition.seq for event in events]
        # Read the clock before noting anything: an interrupted or failed call finds the same events again.
        old_at = await self._store.now() - GIVE_UP_FOR if seqs[-1] > self._high + len(seqs) else 0
        for seq, event in zip(seqs, events, strict=True):
            if seq > self._high + 1 and event.transition.at > old_at:
                self._pass_over(seq)
            self._high = seq

    def _pass_over(self, seq: int) -> None:
        if seq > self._high + 1:
            self._gaps.append(_Gap(self._high + 1, seq - 1, self._clock.monotonic()))

    async def _look_into_gaps(self) -> None:
        if not self._gaps:
            return
        now = self._clock.monotonic()
        remaining: list[_Gap] = []
        checked = 0
        try:
            for gap in self._gaps:
                events = await self._store.log.list_events(gap.first - 1, gap.last, PAGE)
                self._deliver(events)
                if now - gap.since < GIVE_UP_FOR / 1000 or len(events) == PAGE:
                    remaining += _without(gap, [event.transition.seq for event in events])
                checked += 1
        finally:
            self._gaps = remaining + self._gaps[checked:]

    def _deliver(self, events: list[TransitionEvent]) -> None:
        self._ready += [
            event.transition for event in events if event.namespace == self._namespace and fits(event.transition, self._which)
        ]


def _without(gap: _Gap, seqs: list[int]) -> list[_Gap]:
    """The remaining gaps after transitions appeared in one."""
    gaps = []
    first = gap.first
    for seq in seqs:
        if seq > first:
            gaps.append(_Gap(first, seq - 1, gap.since))
        first = seq + 1
    if first <= gap.last:
        gaps.append(_Gap(first, gap.last, gap.since))
    return gaps


def canonical(which: Mapping[str, Any]) -> EventConditions:
    """The conditions, with their ids in canonical form; raise `TypeError` for one that does not exist."""
    if unknown := which.keys() - EventConditions.__annotations__.keys():
        raise TypeError(f"Events have no condition {', '.join(sorted(unknown))}.")
    ids = {"entity_id": "id", "run_id": "run id", "root_id": "root id"}
    conditions = {name: value for name, value in which.items() if value is not None}
    return cast(EventConditions, conditions | {name: parse_id(conditions[name], ids[name]) for name in ids if name in conditions})


def fits(transition: Transition, which: EventConditions) -> bool:
    """Whether the transition meets the conditions, whose ids are canonical."""
    return all(getattr(transition, name) == value for name, value in which.items())
