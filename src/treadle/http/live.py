"""Live events for many: one reader of the store for the whole server, and a bounded buffer for each who follows.

An event is made into text once, however many follow. Who takes events more slowly than they come is let go when its buffer is
full: it may come again and resume, and neither the reader nor anybody else has waited for it. Places to resume at are numbers
below which nothing is missing and nothing will come (D9); whoever resumes may get some events again, and tells by their seq.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple

from treadle.api.wire import to_json
from treadle.engine import Engine
from treadle.kernel.reads.event_pages import LAST_SEQ, EventFilter
from treadle.kernel.reads.events import GIVE_UP_FOR, Events
from treadle.kernel.store.queries import Event
from treadle.model.errors import StoreError
from treadle.model.tasks import Move
from treadle.service.events import event_record

BUFFER = 2000
"""Events that wait for one follower at most."""

BEAT_EVERY = 15.0
"""Seconds between two signs of life for followers for whom nothing happens."""

PAGE = 500
_AT_A_TIME = 100
"""Events after which followers get a turn."""

_LOG = logging.getLogger("treadle.http")


class Told(NamedTuple):
    """An event as it is sent."""

    seq: int
    text: bytes
    """The event as JSON."""
    resume_after: int
    """Where to resume once it has arrived."""


class Follower:
    """One who follows; `follow` tells it everything that fits."""

    def __init__(self, live: Live, which: EventFilter) -> None:
        self.which = which
        self.resume_after = 0
        """Where to resume once all that was told so far has arrived."""
        self.lagging = asyncio.Event()
        """Set when its buffer was full: it is told no more."""
        self._live = live
        self._waiting: deque[Told] = deque()
        self._heard = asyncio.Event()
        self._ended = False

    async def follow(self, after_seq: int | None) -> AsyncGenerator[list[Told], None]:
        """Events in portions, an empty one as a sign of life; ends when the server stops, its store fails, or it lags behind."""
        live, position, seen = self._live, after_seq or 0, set[int]()
        if after_seq is not None:
            async for events in live.settled_after(after_seq):
                if self._ended:
                    return  # it is told from there when it comes again
                position = self.resume_after = events[-1].move.seq
                if told := self._told(events, position):
                    yield told
        await live.join(self)
        try:
            gap_free = live.gap_free
            if after_seq is not None:
                # What is left of the past; what is told from now on waits meanwhile, and may be the same.
                while events := await live.events_after(position):
                    if self._ended:
                        return  # it is told from there when it comes again
                    position = events[-1].move.seq
                    self.resume_after = min(position, gap_free)
                    told = self._told(events, gap_free)
                    seen.update(each.seq for each in told if each.seq > gap_free)
                    if told:
                        yield told
            self.resume_after = gap_free
            yield []
            while not self._ended:
                await self._heard.wait()
                self._heard.clear()
                told = [each for each in self._waiting if each.seq not in seen and each.seq > (after_seq or 0)]
                seen.difference_update(each.seq for each in self._waiting)
                if self._waiting:
                    self.resume_after = self._waiting[-1].resume_after
                elif not self._ended:
                    self.resume_after = live.gap_free
                self._waiting.clear()
                if told or not self._ended:
                    yield told
        finally:
            live.leave(self)

    def hear(self, told: Told) -> None:
        """Something happened that fits."""
        if len(self._waiting) >= BUFFER:
            self.lagging.set()
            self.dismiss()
        else:
            self._waiting.append(told)
            self._heard.set()

    def beat(self) -> None:
        """Nothing may have happened for a while."""
        self._heard.set()

    def dismiss(self) -> None:
        """It is told no more, nor what waits for it."""
        self._waiting.clear()
        self.end()

    def end(self) -> None:
        """It is told no more than what waits for it."""
        self._ended = True
        self._live.leave(self)
        self._heard.set()

    def _told(self, events: list[Event], gap_free: int) -> list[Told]:
        """Those of the past that fit."""
        moves = [event.move for event in events if event.namespace == self._live.namespace and self.which.fits(event.move)]
        return [Told(move.seq, text_of(move), min(move.seq, gap_free)) for move in moves]


class Live:
    """The one reader of a server, which reads while somebody follows."""

    def __init__(self, engine: Engine) -> None:
        self.namespace = engine.kernel.settings.namespace
        self._engine = engine
        self._followers: set[Follower] = set()
        self._reader: Events | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._joining = asyncio.Lock()
        self._closed = False

    @property
    def gap_free(self) -> int:
        """Everything up to here has been told, or will never be."""
        return 0 if self._reader is None else self._reader.last_gap_free

    @property
    def followers(self) -> int:
        """How many follow."""
        return len(self._followers)

    def follower(self, which: EventFilter) -> Follower:
        """Somebody who is about to follow."""
        return Follower(self, which)

    async def join(self, follower: Follower) -> None:
        """From now on it hears what happens."""
        async with self._joining:
            if self._closed:
                follower.end()
                return
            if self._reader is None:
                reader = self._engine.events()
                await reader.__aenter__()
                self._reader = reader
                self._tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._beat())]
            self._followers.add(follower)

    def leave(self, follower: Follower) -> None:
        """It hears no more; with the last one the reader stops. Idempotent."""
        self._followers.discard(follower)
        if not self._followers:
            self._stop()

    async def close(self) -> None:
        """Let all of them go, for good."""
        self._closed = True
        tasks = self._tasks
        for follower in list(self._followers):
            follower.end()
        self._stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settled_after(self, after_seq: int) -> AsyncIterator[list[Event]]:
        """Whole pages of the past, as long as nothing can come before their ends any more."""
        while not self._closed:
            events = await self.events_after(after_seq)
            if len(events) < PAGE or events[-1].move.at > await self._engine.store.now() - GIVE_UP_FOR:
                return
            yield events
            after_seq = events[-1].move.seq

    async def events_after(self, after_seq: int) -> list[Event]:
        """A page of what is there after a seq, of all namespaces."""
        return await self._engine.store.list_events(after_seq, LAST_SEQ, PAGE)

    def _stop(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._tasks = []

    async def _read(self, reader: Events) -> None:
        count = 0
        try:
            async for move in reader:
                self._tell(move, reader.last_gap_free)
                count += 1
                if count % _AT_A_TIME == 0:
                    await asyncio.sleep(0)
        except StoreError as error:
            _LOG.warning("live events stop, as the store cannot be read: %s", error)
        finally:
            if self._reader is reader:
                for follower in list(self._followers):
                    follower.end()  # they come again and resume

    def _tell(self, move: Move, resume_after: int) -> None:
        told: Told | None = None
        for follower in list(self._followers):
            if follower.which.fits(move):
                told = told or Told(move.seq, text_of(move), resume_after)
                follower.hear(told)

    async def _beat(self) -> None:
        while True:
            await self._engine.kernel.clock.sleep(BEAT_EVERY)
            for follower in self._followers:
                follower.beat()


def text_of(move: Move) -> bytes:
    """The event as JSON."""
    return to_json(event_record(move))
