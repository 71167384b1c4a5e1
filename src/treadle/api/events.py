"""Events: every move of every task, run and other durable thing, as pages or as they happen."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Protocol, TypedDict, Unpack

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.wire import Instant
from treadle.model.values import Json


class EventConditions(TypedDict, total=False):
    """Conditions that an event must meet."""

    entity: Annotated[str | None, Doc("Only this kind of entity", "task")]
    entity_id: Annotated[str | None, Doc("Only the task, run or other entity with this id")]
    run_id: Annotated[str | None, Doc("Only events of this run")]
    root_id: Annotated[str | None, Doc("Only events of this tree")]
    move: Annotated[str | None, Doc("Only this move", "succeed")]


@dataclass(frozen=True, slots=True)
class Event(ApiRecord):
    """A move, as it stands in the log."""

    seq: int
    """Its number: readers tell by it what they have seen."""
    at: Instant
    entity: str
    """`task`, `run`, `approval`, `token` or another thing that has states."""
    entity_id: str
    version: int
    """It is the entity's so-manieth move."""
    move: str
    from_state: str
    to_state: str
    actor: str | None
    """Who did it, if a person or a program outside did."""
    claim_version: int | None
    run_id: str | None
    root_id: str | None
    trace_id: str | None
    data: Json


@dataclass(frozen=True, slots=True)
class EventPage(ApiRecord):
    """Events in the order of seq."""

    events: list[Event]
    next_after: int
    """Pass it as `after_seq` for the next page."""
    resume_after: int
    """Pass it as `after_seq` later to miss nothing: what is on its way may still come before `next_after`."""
    more: bool
    """Whether there is more now. A page looks through 10,000 moves at most, so it may be empty and not the last."""


class EventsApi(Protocol):
    """What happened."""

    @contract.get("/events")
    async def list(
        self,
        *,
        after_seq: Annotated[int | None, Doc("After the event of this number; without it, the last ones", 0)] = None,
        limit: Annotated[int, Doc("Page size, up to 1000", 100)] = 100,
        **which: Unpack[EventConditions],
    ) -> EventPage:
        """What happened after an event, or last. To follow what happens, use `/v1/events/stream`."""

    def follow(self, *, after_seq: int | None = None, **which: Unpack[EventConditions]) -> AsyncGenerator[Event, None]:
        """Events as they happen, each once, from now on or after the event of a number; goes on until it is closed."""
