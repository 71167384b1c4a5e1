"""Records: small durable documents with a state machine, such as approvals, schedules and watchers; messages; effect outcomes.

One table holds all records. `model.states` defines the states and moves of each entity; only the service that writes a record
knows its body. A record has two counters: `version` rises with every write and guards the next one; `moves` counts its moves
in the log.
"""

from __future__ import annotations

import msgspec

from treadle.model.names import DEFAULT_NAMESPACE

UNREADABLE = "unreadable"
"""The displayed state of a record whose body cannot be read; it can be canceled or removed."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record as stored; `body` is JSON text."""

    id: str
    namespace: str = DEFAULT_NAMESPACE
    entity: str
    name: str | None = None
    """Unique among the live records of the entity in the namespace; None for records identified only by id."""
    state: str
    version: int = 0
    moves: int = 0
    body: str = "{}"
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
    body: str
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
    """The data of the move `tool_call.unknown`, JSON text."""
    created_at: int = 0
    resolved_at: int | None = None
    unknown_at: int | None = None
    """When the log recorded that the outcome is unknown; an `unknown` effect without it is in progress."""
