"""Calls about events, on an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from treadle.api.events import Event, EventPage, EventsApi
from treadle.api.wire import record_of
from treadle.kernel.reads.event_pages import EventFilter
from treadle.model.access import Scope
from treadle.model.errors import RestrictedToken
from treadle.model.ids import parse_id
from treadle.model.tasks import Move
from treadle.model.values import decode
from treadle.service.group import Group


class Events(Group, EventsApi):
    """See `EventsApi`."""

    async def list(
        self,
        *,
        after_seq: int | None = None,
        entity: str | None = None,
        entity_id: str | None = None,
        run_id: str | None = None,
        root_id: str | None = None,
        move: str | None = None,
        limit: int = 100,
    ) -> EventPage:
        which = filter_of(entity, entity_id, run_id, root_id, move)
        page = await self.engine.kernel.reads.list_events(which, after_seq=after_seq, limit=limit)
        return EventPage([event_record(each) for each in page.moves], page.next_after, page.resume_after, page.more)

    async def follow(
        self,
        *,
        after_seq: int | None = None,
        entity: str | None = None,
        entity_id: str | None = None,
        run_id: str | None = None,
        root_id: str | None = None,
        move: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        self.access.check(Scope.READ)
        if self.access.task_lists:
            raise RestrictedToken()
        which = filter_of(entity, entity_id, run_id, root_id, move)
        async with self.engine.events(after_seq) as events:
            async for each in events:
                if which.fits(each):
                    yield event_record(each)


def filter_of(entity: str | None, entity_id: str | None, run_id: str | None, root_id: str | None, move: str | None) -> EventFilter:
    """The filter, its ids in their one spelling."""
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
