"""Events: every state change of every task, run and other durable entity, in pages or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Annotated, Protocol, TypedDict, Unpack

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc, Page
from treadle.api.tasks import TransitionRecord, describe_data
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.values import Json


class EventConditions(TypedDict, total=False):
    """Conditions that an event must meet."""

    entity: Annotated[str | None, Doc("Only this kind of entity", "task")]
    entity_id: Annotated[str | None, Doc("Only the task, run or other entity with this id")]
    run_id: Annotated[str | None, Doc("Only events of this run")]
    root_id: Annotated[str | None, Doc("Only events of this tree")]
    transition: Annotated[str | None, Doc("Only changes with this name", "succeed")]
    actor: Annotated[str | None, Doc("Only changes by this person or program, such as a token's name", "ada")]


class AuditConditions(TypedDict, total=False):
    """Conditions that a change by an operator must meet."""

    actor: Annotated[str | None, Doc("Only changes by this person or program, such as a token's name", "ada")]
    operation: Annotated[str | None, Doc("Only this operation, or all of a group such as `lists`", "lists.pause")]
    since: Annotated[datetime | None, Doc("Only changes at or after this time")]
    until: Annotated[datetime | None, Doc("Only changes before this time")]


class Event(TransitionRecord, frozen=True):
    """A state change, as recorded in the log."""

    seq: int
    """Its number in the log."""
    entity: str
    """`task`, `run`, `approval`, `token` or another entity with states."""
    entity_id: str
    run_id: str | None
    root_id: str | None
    trace_id: str | None


class EventPage(ApiRecord, frozen=True):
    """Events, ordered by seq."""

    events: list[Event]
    next_after: int
    """Pass it as `after_seq` for the next page."""
    resume_after: int
    """Pass it as `after_seq` later to miss nothing: uncommitted events may still appear before `next_after`."""
    more: bool
    """Whether more events exist now. A page scans at most 10,000 changes, so it can be empty without being the last."""


class Undo(ApiRecord, frozen=True):
    """The operation that restores the values before a change."""

    operation: str
    """Such as `lists.resume`."""
    arguments: dict[str, Json]


class AuditEntry(ApiRecord, frozen=True):
    """A change by an operator."""

    seq: int
    """Its number in the log."""
    at: Instant
    actor: str
    """The name of a token, `cli:USER`, or the part of a program that made it."""
    operation: str
    """Such as `lists.pause` or `schedules.edit`."""
    subject: str
    """The name of what was changed, or its id."""
    entity: str
    entity_id: str
    before: dict[str, Json] | None
    """The values that changed, or the state."""
    after: dict[str, Json] | None
    undo: Undo | None
    """The operation that undoes it, where one exists; it is safe while the subject has no later change."""


class AuditPage(Page, frozen=True):
    """Changes by operators, newest first."""

    changes: list[AuditEntry]
    searched: int
    """The number of changes that were looked at."""
    complete: bool = True
    """False if the search stopped before it had `limit` changes or had looked at all: continue after `next_before`."""


_PAGES = {
    "task": "/tasks/{entity_id}",
    "run": "/runs/{entity_id}",
    "approval": "/approvals/{entity_id}",
    "objective": "/objectives/{entity_id}",
    "schedule": "/schedules/{entity_id}",
    "watcher": "/watchers/{entity_id}",
    "alert_rule": "/alerts?rule={entity_id}",
    "external_production_record": "/external-jobs/{entity_id}",
}


def _change(event: Event) -> str | None:
    """The operation of an operator, with the values before and after."""
    is_change = isinstance(event.data, dict) and not {"operation", "before", "after"}.isdisjoint(event.data)
    return describe_data(event) if is_change else None


def _named(event: Event, name: str, otherwise: str) -> str:
    """The operation of an operator, or its subject; of other events, what is given."""
    is_operation = event.entity == "operation" and isinstance(event.data, dict)
    return event.data.get(name, otherwise) if is_operation else otherwise


EVENT = View(
    Event,
    columns=(
        "seq",
        "at",
        "entity",
        Column("id", lambda event: _named(event, "subject", event.entity_id), link=lambda event: _PAGES.get(event.entity, "")),
        Column("transition", lambda event: _named(event, "operation", event.transition)),
        Column("from", "from_state"),
        Column("to", "to_state", "state"),
        Column("run", "run_id", spare=True, link="/runs/{run_id}"),
        Column("by", "actor"),
        Column("change", _change, spare=True, limit=120),
    ),
    empty="No events.",
)


_SUBJECTS = {"flows": "/flows/{subject}", "handlers": "/handlers", "lists": "/lists", "store": "/settings/retention"}
"""Pages of what has no history of its own, by the group of the operation."""

View(
    AuditEntry,
    columns=(
        Column("when", "at", "instant"),
        Column("by", "actor"),
        "operation",
        Column(
            "subject",
            link=lambda entry: _PAGES.get(entry.entity) or _SUBJECTS.get(entry.operation.partition(".")[0], ""),
        ),
        Column("before", limit=80),
        Column("after", limit=80),
        Column("seq", spare=True),
    ),
    empty="No changes.",
)


class EventsApi(Protocol):
    """The log of all state changes."""

    @contract.get("/events")
    async def list(
        self,
        *,
        after_seq: Annotated[int | None, Doc("Events after this number; default: the latest events", 0)] = None,
        limit: Annotated[int, Doc("Page size, up to 1000", 100)] = 100,
        **which: Unpack[EventConditions],
    ) -> EventPage:
        """Events after a number, or the latest ones. Use `/v1/events/stream` to follow new events."""

    @contract.get("/audit")
    async def audit(
        self,
        *,
        limit: Annotated[int, Doc("Page size, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("`next_before` of the previous page")] = None,
        **which: Unpack[AuditConditions],
    ) -> AuditPage:
        """Changes by operators and tokens, newest first, with the values before and after."""

    def follow(
        self,
        *,
        after_seq: Annotated[int | None, Doc("Only events after this `seq`; without it, from now on")] = None,
        **which: Unpack[EventConditions],
    ) -> AsyncGenerator[Event, None]:
        """Yield new events, each once, from now on or after a number, until the generator is closed."""
