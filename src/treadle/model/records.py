"""Records: small durable documents with a state machine, such as approvals, schedules and watchers; messages; effect outcomes.

One table holds all records. `model.states` defines the states and transitions of each entity; only the service that writes a record
knows its document. A record has two counters: `version` rises with every write and guards the next one; `transitions` counts its
transitions in the log.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from treadle.model.errors import InvalidName, UnreadableValue
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.stored import Stored
from treadle.model.values import UNREADABLE_MARK, shown

UNREADABLE = "unreadable"
"""The displayed state of a record whose document cannot be read; it can be canceled or removed."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record as stored; `document` is JSON text."""

    id: str
    namespace: str = DEFAULT_NAMESPACE
    entity: str
    name: str | None = None
    """Unique among the live records of the entity in the namespace; None for records identified only by id."""
    state: str
    version: int = 0
    transitions: int = 0
    document: str = "{}"
    task_id: str | None = None
    """The task that it concerns, such as the one that waits for an approval."""
    run_id: str | None = None
    root_id: str | None = None
    """The tree that it is pruned with; None: it stays until its service removes it."""
    trace_id: str | None = None
    created_at: int = 0
    updated_at: int = 0
    ended_at: int | None = None
    """When it reached a final state: it is no longer live, and its name is free."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the inbox of a function run: the result of one of its steps (`step_id`), or a signal (`name`). JSON text."""

    id: str
    """The id of the child task, child run or signal; a repeated id is delivered once."""
    run_id: str
    step_id: str | None = None
    name: str | None = None
    document: str
    seq: int = 0
    """The order of arrival, assigned by the store."""
    at: int = 0


class EffectOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `idempotency_outcomes`: the known outcome of an effect under its key."""

    idempotency_key: str
    tool_call_id: str
    status: str
    """`unknown` before the effect, then `succeeded` or `failed`."""
    response_hash: str | None = None
    response: str | None = None
    root_id: str
    task_id: str | None = None
    """The task whose claim covers the effect; None in rows of versions that did not store it."""
    details: str | None = None
    """The data of the transition `tool_call.unknown`, JSON text."""
    created_at: int = 0
    resolved_at: int | None = None
    unknown_at: int | None = None
    """When the log recorded that the outcome is unknown; an `unknown` effect without it is in progress."""


@dataclass(slots=True)
class HandlerRegistration:
    """The handler of the tasks of `facet_name`, located by module and entry point; times are milliseconds since 1970.

    `checksum` identifies a version of the module: changing it makes runners reload the module.
    """

    facet_name: str
    module_uri: str
    """`package.module`, or `file:///path/to/module.py`."""
    entrypoint: str = "handle"
    version: str = "1.0.0"
    checksum: str = ""
    timeout_ms: int = 30_000
    requirements: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    created: int = 0
    updated: int = 0

    @property
    def unreadable(self) -> str | None:
        """Why the stored metadata or requirements cannot be read, if they cannot; no runner loads such a handler."""
        return str(self.metadata.get("message")) if UNREADABLE_MARK in self.metadata else None

    def check_readable(self) -> None:
        """Raise `UnreadableValue` if the stored metadata or requirements cannot be read."""
        if self.unreadable is not None:
            raise UnreadableValue(f"The handler of {self.facet_name} cannot be read: {self.unreadable} Register it again.")


Typed = tuple[str, bytes]
"""A serialized value: the name of its format, and its bytes."""


class ThreadItem(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """One item. `data` and `metadata` are base64 in the formats `type` and `metadata_type`."""

    type: str
    data: str
    metadata_type: str = ""
    metadata: str = ""
    checkpoint_id: str = ""
    parent_id: str | None = None
    """The checkpoint before this one."""
    ns: str = ""
    """The namespace of a subgraph."""
    task_id: str = ""
    channel: str = ""
    path: str = ""
    index: int = 0
    """The position of a write among those of its task; negative for the framework's own."""

    @property
    def value(self) -> Typed:
        """The serialized value."""
        return self.type, _bytes(self.data)

    @property
    def about(self) -> Typed:
        """The serialized metadata of a checkpoint."""
        return self.metadata_type, _bytes(self.metadata)


def text(value: bytes) -> str:
    """Return bytes as they are stored."""
    return b64encode(value).decode()


def _bytes(stored: str) -> bytes:
    try:
        return b64decode(stored, validate=True)
    except ValueError as error:
        raise UnreadableValue(f"A value of a thread is not base64: {error}. It is damaged.") from None


ENTRIES, ABANDONED, TRUNCATED = "entries", "abandoned", "truncated"

STREAM_LIMIT = 1024 * 1024
"""Default limit in bytes on the entries of a stream, as JSON, without abandoned ones."""

ENTRY_LIMIT = 64 * 1024
"""Limit in bytes on one entry as JSON, and on the entries of one chunk unless it has only one."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def check_stream_name(name: str) -> str:
    """Return the name, or raise `InvalidName`."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidName(
            f"{shown(name)} cannot be the name of a stream: use up to 64 letters, digits, dots, dashes and underscores, starting "
            "with a letter or an underscore."
        )
    return name


class RecordItem(NamedTuple):
    """A value that a record keeps apart from its document, as stored."""

    key: str
    value: str


class StreamChunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Consecutive entries of one writer, or a notice, as stored."""

    first_offset: int
    count: int
    kind: str
    writer: str
    """The id of the task or the step; for the code of a function, the id of its run."""
    generation: int
    entries: str
    """The entries as JSON text, a list; of the notice `abandoned` an object."""
    created_at: int


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as stored."""

    owner_id: str
    name: str
    namespace: str
    root_id: str
    next_offset: int
    bytes: int
    truncated: bool
    created_at: int
    updated_at: int
