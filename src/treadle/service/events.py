"""Calls about events, on an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Unpack

from treadle.api.events import Event, EventConditions, EventPage, EventsApi
from treadle.api.wire import record_of
from treadle.kernel.reads.events import EventFilter
from treadle.model.access import Scope
from treadle.model.errors import RestrictedToken
from treadle.model.ids import parse_id
from treadle.model.tasks import Move
from treadle.model.values import decode
from treadle.service.group import Group


class Events(Group, EventsApi):
    """See `EventsApi`."""

    async def list(self, *, after_seq: int | None = None, limit: int = 100, **which: Unpack[EventConditions]) -> EventPage:
        page = await self.engine.kernel.reads.list_events(filter_of(**which), after_seq=after_seq, limit=limit)
        return EventPage([event_record(each) for each in page.moves], page.next_after, page.resume_after, page.more)

    async def follow(self, *, after_seq: int | None = None, **which: Unpack[EventConditions]) -> AsyncGenerator[Event, None]:
        self.access.check(Scope.READ)
        if self.access.task_lists:
            raise RestrictedToken()
        wanted = filter_of(**which)
        async with self.engine.events(after_seq) as events:
            async for each in events:
                if wanted.fits(each):
                    yield event_record(each)


def filter_of(
    entity: str | None = None,
    entity_id: str | None = None,
    run_id: str | None = None,
    root_id: str | None = None,
    move: str | None = None,
) -> EventFilter:
    """The filter, with its ids in canonical form."""
    return EventFilter(
        entity,
        None if entity_id is None else parse_id(entity_id),
        None if run_id is None else parse_id(run_id, "run id"),
        None if root_id is None else parse_id(root_id, "root id"),
        move,
    )


def event_record(move: Move) -> Event:
    """The public record of a row of the log."""
    return record_of(Event, move, data=decode(move.data))
