"""Pages of events, after a seq or latest first, for polling readers; `kernel.reads.events` is for streaming readers.

A page scans a bounded part of the log, so that a narrow filter costs no more than a broad one: it may hold few events or none
before the end.
"""

from __future__ import annotations

import msgspec

from treadle.kernel.reads.events import GIVE_UP_FOR
from treadle.kernel.store.pages import check_limit
from treadle.kernel.store.ports import LogStore
from treadle.kernel.store.queries import Event
from treadle.model.errors import InvalidInput
from treadle.model.tasks import Move

SCAN_LIMIT = 10_000
"""Limit on the moves that one page scans."""

LAST_SEQ = 2**63 - 1
_BATCH = 1000


class EventFilter(msgspec.Struct, frozen=True):
    """Filter of moves; None matches any."""

    entity: str | None = None
    entity_id: str | None = None
    run_id: str | None = None
    root_id: str | None = None
    move: str | None = None

    def fits(self, move: Move) -> bool:
        """Whether the move matches."""
        return (
            (self.entity is None or move.entity == self.entity)
            and (self.entity_id is None or move.entity_id == self.entity_id)
            and (self.run_id is None or move.run_id == self.run_id)
            and (self.root_id is None or move.root_id == self.root_id)
            and (self.move is None or move.move == self.move)
        )


class EventPage(msgspec.Struct, frozen=True):
    """Moves in the order of seq."""

    moves: list[Move]
    next_after: int
    """The page has scanned everything up to this seq."""
    resume_after: int
    """Every move up to this seq is visible; none will appear before it."""
    more: bool
    """Whether there is more to scan now."""


async def page_after(store: LogStore, namespace: str, which: EventFilter, after_seq: int, limit: int) -> EventPage:
    """The first matching moves after a seq."""
    _check(after_seq, limit)
    moves: list[Move] = []
    position, gap_free, whole, scanned = after_seq, after_seq, store.seqs_in_order, 0
    old_at = 0 if whole else await store.now() - GIVE_UP_FOR
    broken = False
    while scanned < SCAN_LIMIT:
        events = await store.list_events(position, LAST_SEQ, _BATCH)
        for event in events:
            if len(moves) == limit:
                return EventPage(moves, position, gap_free, more=True)
            # An old gap in the seqs has no move: no transaction lives that long.
            broken = broken or not (whole or event.move.seq == position + 1 or event.move.at <= old_at)
            position = event.move.seq
            gap_free = gap_free if broken else position
            if event.namespace == namespace and which.fits(event.move):
                moves.append(event.move)
        scanned += len(events)
        if len(events) < _BATCH:
            return EventPage(moves, position, gap_free, more=False)
    return EventPage(moves, position, gap_free, more=True)


async def last_page(store: LogStore, namespace: str, which: EventFilter, limit: int) -> EventPage:
    """The last matching moves, as far as a bounded scan finds them."""
    _check(0, limit)
    last = until = await store.find_last_seq()
    moves: list[Move] = []
    for _ in range(SCAN_LIMIT // _BATCH):
        events: list[Event] = await store.list_events(max(until - _BATCH, 0), until, _BATCH)
        moves[:0] = [event.move for event in events if event.namespace == namespace and which.fits(event.move)]
        until -= _BATCH
        if len(moves) >= limit or until <= 0:
            break
    return EventPage(moves[-limit:], last, last, more=False)


def _check(after_seq: int, limit: int) -> None:
    if not 0 <= after_seq <= LAST_SEQ:
        raise InvalidInput(f"after_seq is the seq of an event, zero or more, not {after_seq}.")
    check_limit(limit)
