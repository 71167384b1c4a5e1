"""The log of state changes as pages and as a stream of public records.

Polling readers get pages, after a seq or latest first. A page scans a bounded part of the log, so that a narrow filter costs no
more than a broad one: it may hold few events or none before the end. `events.py` follows the log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Unpack

from treadle.api import events as api
from treadle.api.events import AuditConditions, AuditEntry, AuditPage, EventConditions, EventPage
from treadle.api.wire import record_of
from treadle.kernel.core import Service
from treadle.kernel.operations import audit_entry
from treadle.kernel.reads.events import GIVE_UP_FOR, Events, canonical, fits
from treadle.kernel.store.lookups import check_limit
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TransitionEvent
from treadle.model.access import Access, Scope
from treadle.model.clock import instant
from treadle.model.errors import InvalidInput
from treadle.model.tasks import Transition
from treadle.model.values import decode_or_error

SCAN_LIMIT = 10_000
"""Limit on the transitions that one page scans."""

LAST_SEQ = 2**63 - 1
_BATCH = 1000


class EventLog(Service):
    """The log of one namespace."""

    async def list(self, *, after_seq: int | None = None, limit: int = 100, **which: Unpack[EventConditions]) -> EventPage:
        """Return a page of events after a seq, or without one the latest."""
        if after_seq is None:
            return await _last_page(self._store, self._namespace, canonical(which), limit)
        return await _page_after(self._store, self._namespace, canonical(which), after_seq, limit)

    async def audit(self, *, limit: int = 50, before: str | None = None, **which: Unpack[AuditConditions]) -> AuditPage:
        """Return a page of changes by operators, newest first."""
        check_limit(limit)
        actor, operation, since, until = which.get("actor"), which.get("operation"), which.get("since"), which.get("until")
        span = 0 if since is None else instant(since, "since"), LAST_SEQ if until is None else instant(until, "until")
        changes: list[AuditEntry] = []
        position, searched, batch = _read_cursor(before), 0, max(limit + 1, 250)
        while searched < SCAN_LIMIT:
            events = await self._store.log.list_changes(position, actor, *span, batch)
            for event in events:
                if len(changes) == limit:
                    return AuditPage(changes, searched, next_before=str(position))
                position, searched = event.transition.seq, searched + 1
                change = audit_entry(event)
                if event.namespace == self._namespace and operation in (None, change.operation, change.operation.partition(".")[0]):
                    changes.append(change)
            if len(events) < batch:
                return AuditPage(changes, searched, next_before=None)
        return AuditPage(changes, searched, complete=False, next_before=str(position))

    async def follow(
        self, *, after_seq: int | None = None, access: Access | None = None, **which: Unpack[EventConditions]
    ) -> AsyncGenerator[api.Event, None]:
        """Yield new events, each once, from now on or after a number, until the generator is closed."""
        if access is not None:
            access.check(Scope.READ, lists=False)
        async with Events(self._core, after=after_seq, **which) as transitions:
            async for transition in transitions:
                yield event_record(transition)


async def _page_after(store: Store, namespace: str, which: EventConditions, after_seq: int, limit: int) -> EventPage:
    """The first matching transitions after a seq."""
    _check(after_seq, limit)
    transitions: list[Transition] = []
    position, gap_free, whole, scanned = after_seq, after_seq, store.log.seqs_in_order, 0
    old_at = 0 if whole else await store.now() - GIVE_UP_FOR
    broken = False
    while scanned < SCAN_LIMIT:
        events = await store.log.list_events(position, LAST_SEQ, _BATCH)
        for event in events:
            if len(transitions) == limit:
                return _page(transitions, position, gap_free, more=True)
            # An old gap in the seqs has no transition: no transaction lives that long.
            broken = broken or not (whole or event.transition.seq == position + 1 or event.transition.at <= old_at)
            position = event.transition.seq
            gap_free = gap_free if broken else position
            if event.namespace == namespace and fits(event.transition, which):
                transitions.append(event.transition)
        scanned += len(events)
        if len(events) < _BATCH:
            return _page(transitions, position, gap_free, more=False)
    return _page(transitions, position, gap_free, more=True)


async def _last_page(store: Store, namespace: str, which: EventConditions, limit: int) -> EventPage:
    """The last matching transitions, as far as a bounded scan finds them."""
    _check(0, limit)
    last = until = await store.log.find_last_seq()
    transitions: list[Transition] = []
    for _ in range(SCAN_LIMIT // _BATCH):
        events: list[TransitionEvent] = await store.log.list_events(max(until - _BATCH, 0), until, _BATCH)
        transitions[:0] = [event.transition for event in events if event.namespace == namespace and fits(event.transition, which)]
        until -= _BATCH
        if len(transitions) >= limit or until <= 0:
            break
    return _page(transitions[-limit:], last, last, more=False)


def _read_cursor(before: str | None) -> int:
    if before is None:
        return LAST_SEQ
    if not (before.isascii() and before.isdecimal() and len(before) < 19):
        raise InvalidInput(f"before must be the cursor of a page, not {before[:100]!r}.")
    return int(before)


def _check(after_seq: int, limit: int) -> None:
    if not 0 <= after_seq <= LAST_SEQ:
        raise InvalidInput(f"after_seq is the seq of an event, zero or more, not {after_seq}.")
    check_limit(limit)


def _page(transitions: list[Transition], next_after: int, resume_after: int, *, more: bool) -> EventPage:
    return EventPage([event_record(transition) for transition in transitions], next_after, resume_after, more)


def event_record(transition: Transition) -> api.Event:
    """The public record of a row of the log."""
    return record_of(api.Event, transition, data=decode_or_error(transition.data) or None)
