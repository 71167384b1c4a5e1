"""Events: every move of every task, run and other durable thing, as pages or as they happen."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.wire import Instant
from treadle.model.values import Json

Entity = Annotated[str | None, Doc("Only of this entity", "task")]
EntityId = Annotated[str | None, Doc("Only of the task, run or other thing of this id")]
RunId = Annotated[str | None, Doc("Only what belongs to this run")]
RootId = Annotated[str | None, Doc("Only what belongs to this tree")]
MoveName = Annotated[str | None, Doc("Only this move", "succeed")]


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
        entity: Entity = None,
        entity_id: EntityId = None,
        run_id: RunId = None,
        root_id: RootId = None,
        move: MoveName = None,
        limit: Annotated[int, Doc("At most so many, up to 1000", 100)] = 100,
    ) -> EventPage:
        """What happened after an event, or last. To follow what happens, use `/v1/events/stream`."""

    def follow(
        self,
        *,
        after_seq: int | None = None,
        entity: str | None = None,
        entity_id: str | None = None,
        run_id: str | None = None,
        root_id: str | None = None,
        move: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Events as they happen, each once, from now on or after the event of a number; goes on until it is closed."""
