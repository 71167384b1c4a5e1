"""Broadcast of live events: one reader of the store per server, and a bounded buffer per subscriber.

Each event is encoded once. A subscriber that is slower than the events is dismissed when its buffer is full, so neither the reader
nor other subscribers wait for it; it may reconnect and resume. Resume positions are sequence numbers below which nothing is missing
and nothing will be added (D9); a subscriber that resumes may receive some events again, and recognises them by their seq.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple

from treadle.api.events import EventConditions
from treadle.api.wire import to_json
from treadle.engine import Engine
from treadle.kernel.reads.event_log import LAST_SEQ, event_record
from treadle.kernel.reads.events import GIVE_UP_FOR, Events, fits
from treadle.kernel.store.queries import TransitionEvent
from treadle.model.errors import StoreError
from treadle.model.tasks import Transition
from treadle.model.text import safe_logger

BUFFER = 2000
"""Maximum number of events buffered for one subscriber."""

HEARTBEAT_EVERY = 15.0
"""Seconds between two heartbeats to idle subscribers."""

PAGE = 500
_AT_A_TIME = 100
"""Events after which the reader yields to subscribers."""

_LOG = safe_logger("treadle.http")


class EncodedEvent(NamedTuple):
    """An encoded event."""

    seq: int
    text: bytes
    """The event as JSON."""
    resume_after: int
    """The position to resume from once it has arrived."""


class Subscriber:
    """A subscriber; `receive` yields the events that match its filter."""

    def __init__(self, broadcast: Broadcast, which: EventConditions) -> None:
        self.which = which
        self.resume_after = 0
        """The position to resume from once all messages so far have arrived."""
        self.lagging = asyncio.Event()
        """Set when its buffer was full: it receives nothing more."""
        self._broadcast = broadcast
        self._buffer: deque[EncodedEvent] = deque()
        self._heard = asyncio.Event()
        self._ended = False

    async def receive(self, after_seq: int | None) -> AsyncGenerator[list[EncodedEvent], None]:
        """Batches of events, an empty one as a heartbeat; ends when the server stops, the store fails, or the subscriber lags."""
        broadcast, position, seen = self._broadcast, after_seq or 0, set[int]()
        if after_seq is not None:
            async for events in broadcast.settled_after(after_seq):
                if self._ended:
                    return  # it resumes from there when it reconnects
                position = self.resume_after = events[-1].transition.seq
                if messages := self._past(events, position):
                    yield messages
        await broadcast.join(self)
        try:
            gap_free = broadcast.gap_free
            if after_seq is not None:
                # The rest of the past. New events are buffered meanwhile, and may be the same.
                while events := await broadcast.events_after(position):
                    if self._ended:
                        return  # it resumes from there when it reconnects
                    position = events[-1].transition.seq
                    self.resume_after = min(position, gap_free)
                    messages = self._past(events, gap_free)
                    seen.update(message.seq for message in messages if message.seq > gap_free)
                    if messages:
                        yield messages
            self.resume_after = gap_free
            yield []
            while not self._ended:
                await self._heard.wait()
                self._heard.clear()
                messages = [message for message in self._buffer if message.seq not in seen and message.seq > (after_seq or 0)]
                seen.difference_update(message.seq for message in self._buffer)
                if self._buffer:
                    self.resume_after = self._buffer[-1].resume_after
                elif not self._ended:
                    self.resume_after = broadcast.gap_free
                self._buffer.clear()
                if messages or not self._ended:
                    yield messages
        finally:
            broadcast.leave(self)

    def hear(self, messages: EncodedEvent) -> None:
        """Buffer a matching event."""
        if len(self._buffer) >= BUFFER:
            self.lagging.set()
            self.dismiss()
        else:
            self._buffer.append(messages)
            self._heard.set()

    def beat(self) -> None:
        """Send a heartbeat if there are no events."""
        self._heard.set()

    def dismiss(self) -> None:
        """End without the buffered events."""
        self._buffer.clear()
        self.end()

    def end(self) -> None:
        """End after the buffered events."""
        self._ended = True
        self._broadcast.leave(self)
        self._heard.set()

    def _past(self, events: list[TransitionEvent], gap_free: int) -> list[EncodedEvent]:
        """The matching events of the past."""
        transitions = [
            event.transition
            for event in events
            if event.namespace == self._broadcast.namespace and fits(event.transition, self.which)
        ]
        return [EncodedEvent(transition.seq, text_of(transition), min(transition.seq, gap_free)) for transition in transitions]


class Broadcast:
    """The reader of a server, which runs while there are subscribers."""

    def __init__(self, engine: Engine) -> None:
        self.namespace = engine.kernel.settings.namespace
        self._engine = engine
        self._subscribers: set[Subscriber] = set()
        self._reader: Events | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._joining = asyncio.Lock()
        self._closed = False

    @property
    def gap_free(self) -> int:
        """Every event up to this one has been sent."""
        return 0 if self._reader is None else self._reader.last_gap_free

    @property
    def subscribers(self) -> int:
        """The number of subscribers."""
        return len(self._subscribers)

    def subscriber(self, which: EventConditions) -> Subscriber:
        """A new subscriber, which is not joined yet."""
        return Subscriber(self, which)

    async def join(self, subscriber: Subscriber) -> None:
        """Send new events to the subscriber."""
        async with self._joining:
            if self._closed:
                subscriber.end()
                return
            if self._reader is None:
                reader = self._engine.events()
                await reader.__aenter__()
                self._reader = reader
                self._tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._beat())]
            self._subscribers.add(subscriber)

    def leave(self, subscriber: Subscriber) -> None:
        """Remove the subscriber; the reader stops with the last one. Idempotent."""
        self._subscribers.discard(subscriber)
        if not self._subscribers:
            self._stop()

    async def close(self) -> None:
        """End all subscribers and accept no more."""
        self._closed = True
        tasks = self._tasks
        for subscriber in list(self._subscribers):
            subscriber.end()
        self._stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settled_after(self, after_seq: int) -> AsyncIterator[list[TransitionEvent]]:
        """Full pages of the past to which nothing can be added any more."""
        while not self._closed:
            events = await self.events_after(after_seq)
            if len(events) < PAGE or events[-1].transition.at > await self._engine.kernel.store.now() - GIVE_UP_FOR:
                return
            yield events
            after_seq = events[-1].transition.seq

    async def events_after(self, after_seq: int) -> list[TransitionEvent]:
        """A page of events after a seq, of all namespaces."""
        return await self._engine.kernel.store.log.list_events(after_seq, LAST_SEQ, PAGE)

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
            async for transition in reader:
                self._send(transition, reader.last_gap_free)
                count += 1
                if count % _AT_A_TIME == 0:
                    await asyncio.sleep(0)
        except StoreError as error:
            _LOG.warning("live events stop: the store cannot be read: %s", error)
        finally:
            if self._reader is reader:
                for subscriber in list(self._subscribers):
                    subscriber.end()  # they reconnect and resume

    def _send(self, transition: Transition, resume_after: int) -> None:
        messages: EncodedEvent | None = None
        for subscriber in list(self._subscribers):
            if fits(transition, subscriber.which):
                messages = messages or EncodedEvent(transition.seq, text_of(transition), resume_after)
                subscriber.hear(messages)

    async def _beat(self) -> None:
        while True:
            await self._engine.kernel.clock.sleep(HEARTBEAT_EVERY)
            for subscriber in self._subscribers:
                subscriber.beat()


def text_of(transition: Transition) -> bytes:
    """The event as JSON."""
    return to_json(event_record(transition))
