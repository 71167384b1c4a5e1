"""Rows of units for records, messages to function runs, and outcomes of effects; and the filter for records.

A store writes these rows with their unit (`store.units`): under its guard, or not at all.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from treadle.model.errors import TreadleError, UnreadableValue
from treadle.model.records import EffectOutcome, Message, Record
from treadle.model.stored import AnyStored, read

S = TypeVar("S", bound=AnyStored)


def read_document(kind: type[S], record: Record) -> S:
    """Decode the document of a record, or raise `UnreadableValue`."""
    try:
        return read(kind, record.document)
    except UnreadableValue as error:
        raise unreadable(record, error) from None


def unreadable(record: Record, error: TreadleError) -> UnreadableValue:
    """Return the error for a record with an unreadable document."""
    return UnreadableValue(f"The {record.entity} {record.name or record.id} cannot be read. {error} It can be canceled or removed.")


class PutRecord(msgspec.Struct, frozen=True):
    """Insert a new record, at version 0 and with 0 transitions.

    If the id exists, the unit was sent before, and the store writes nothing of it. If a live record of the entity has the
    same name, the store writes nothing of the unit either, and `existing` names that record.
    """

    record: Record


class ChangeRecord(msgspec.Struct, frozen=True):
    """Replace the document of a record that is still at `version`, and raise its version; otherwise the unit is `deferred`.

    With a `transition`, the record makes that transition, with a row in the log. `ended` means that `to_state` is final. `task_id`,
    if given, replaces the task that the record refers to.
    """

    record_id: str
    version: int
    document: str
    transition: str | None = None
    from_state: str | None = None
    to_state: str | None = None
    ended: bool = False
    actor: str | None = None
    data: str | None = None
    task_id: str | None = None


class PutItems(msgspec.Struct, frozen=True):
    """Store values of a record apart from its document, by key; None removes one. They are deleted with the record."""

    record_id: str
    items: tuple[tuple[str, str | None], ...]


class PutMessage(msgspec.Struct, frozen=True):
    """Deliver a message to an unfinished run, once per id; a message to a finished or missing run is dropped.

    Delivery raises the run's version and lowers its `awaiting`. When that reaches 0, the run's own task (the one without
    a step) becomes ready if it sleeps without an owner; the answer names its queue.
    """

    message: Message


class TakeMessages(msgspec.Struct, frozen=True):
    """Delete messages that this unit consumed."""

    run_id: str
    message_ids: tuple[str, ...]


class Await(msgspec.Struct, frozen=True):
    """Wake the run's own task only after `count` more messages (0: at the first one). `added` steps are new."""

    run_id: str
    count: int
    added: int = 0


class PutOutcome(msgspec.Struct, frozen=True):
    """Record the outcome of an effect; a resolved outcome never changes again. `in_doubt`: it is unknown from now on.

    An effect that is in progress when its claim ends otherwise (expiry, cancellation, release, retry, failure) becomes unknown
    with it: the store logs the transition `tool_call.unknown` of its task before the transition that ends the claim, and sets
    `unknown_at`.
    """

    outcome: EffectOutcome
    in_doubt: bool = False


class EffectFilter(msgspec.Struct, frozen=True):
    """The effects of unknown outcome to list; None means any."""

    namespace: str | None = None
    task_id: str | None = None
    run_id: str | None = None
    before: tuple[int, str] | None = None
    """Only those that became unknown before this instant and key: the cursor of the next page, newest first."""


class AppendStream(msgspec.Struct, frozen=True):
    """Append entries to a stream (`model.streams`); the first append creates it. Its units have a claim as guard.

    A session is one attempt of the writer, and `start` the number of its entries before these: entries that are sent again
    are not appended again. The first append of another session begins a generation of the writer, with the notice `abandoned`,
    unless the session before it `continues`. Entries that do not fit into `limit` bytes are dropped, as are all after them,
    and the first time the notice `truncated` is appended. Abandoned entries do not count; once there are some, entries that
    fit are appended again.
    """

    owner_id: str
    name: str
    namespace: str
    root_id: str
    writer: str
    session: str
    start: int
    entries: str
    """A JSON list."""
    count: int
    limit: int
    continues: bool = False
    """Whether the writer's next session continues this one instead of replacing it."""
    truncated: bool = False
    """Whether the writer has dropped entries after these."""


EntityRow = PutRecord | ChangeRecord | PutItems | PutMessage | TakeMessages | Await | PutOutcome | AppendStream


class RecordFilter(msgspec.Struct, frozen=True):
    """The records to list; None means any."""

    entity: str
    namespace: str | None = None
    states: tuple[str, ...] = ()
    live: bool | None = None
    task_id: str | None = None
    run_id: str | None = None
    before_id: str | None = None
    """Only records with a smaller id: the cursor of the next page, since records are listed newest first."""
