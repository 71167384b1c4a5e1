"""Records: small durable documents with a state machine, such as approvals, schedules and watchers; and what goes with them.

One table holds all of them. What an entity is, its states and moves, stands in `model.states`; what its body holds is known
to the one service that writes it. A record has two numbers: `version` rises with every write, and is what a writer must have
seen; `moves` counts its moves in the log.
"""

from __future__ import annotations

import msgspec

from treadle.model.names import DEFAULT_NAMESPACE


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record as it is stored; `body` is JSON text."""

    id: str
    namespace: str = DEFAULT_NAMESPACE
    entity: str
    name: str | None = None
    """Unique among the live records of the entity in the namespace; None for those that are known by id alone."""
    state: str
    version: int = 0
    moves: int = 0
    body: str = "{}"
    task_id: str | None = None
    """The task that it is about, such as the one that waits for an approval."""
    run_id: str | None = None
    root_id: str | None = None
    """The tree that it is pruned with; None: it stays until it is removed by what it is for."""
    trace_id: str | None = None
    created_at: int = 0
    updated_at: int = 0
    ended_at: int | None = None
    """When it reached a final state: it is live no longer, and its name is free."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a function run is told: what one of its steps came to (`step_id`), or a signal (`name`). JSON text."""

    id: str
    """Of the child task or run that it tells of, or of the signal: the same one is not told twice."""
    run_id: str
    step_id: str | None = None
    name: str | None = None
    body: str
    seq: int = 0
    """The order of arrival, given by the store."""
    at: int = 0


class EffectOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `idempotency_outcomes`: what is known of an effect under its key."""

    idempotency_key: str
    tool_call_id: str
    status: str
    """`unknown` from before the effect, then `succeeded` or `failed`."""
    response_hash: str | None = None
    response: str | None = None
    root_id: str
    created_at: int = 0
    resolved_at: int | None = None
