"""The records of runs: a run, the stored form of its steps, and the flow to which it is pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from treadle.model.clock import record_line
from treadle.model.ids import derived_id
from treadle.model.names import DEFAULT_LIST, DEFAULT_NAMESPACE
from treadle.model.states import RunState

RUN_DEPTH = 100
"""Steps within steps. A run that nests deeper is stopped."""

RUN_ROWS = 1_000_000
"""Steps, blocks and items. A run that has more is stopped."""

ADVANCE_BYTES = 16 * 1024 * 1024
"""Bytes of computed values in one advance, after which it is committed and the next one begins."""

TEXT = "_text"
"""The step attribute with the model's output so far; no facet can declare an attribute of that name."""

STOPPED_AT_LIMIT = (
    "it was stopped at a limit and cannot be retried: correct the workflow and start it again, "
    "or raise the limit (`TREADLE_RUN_DEPTH`, `TREADLE_RUN_ROWS`) and repeat it with `treadle runs rerun`"
)
"""The remedy for a run whose error says that it was `stopped`."""


class Run(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One execution of a workflow or of a durable function (`kind`). JSON texts are made by `values.encode`."""

    id: str
    namespace: str = DEFAULT_NAMESPACE
    kind: str = "workflow"
    flow_id: str
    """The digest of the flow to which it is pinned; of a function, its version."""
    workflow: str
    """The qualified name of its entry point; of a function, its name."""
    state: str = RunState.PENDING
    version: int = 0
    """Rises with every commit that advances the run; a writer that saw an older version has to read again."""
    transitions: int = 0
    """Transitions of the run in the log."""
    steps: int = 0
    """Number of its step rows."""
    task_list: str = DEFAULT_LIST
    priority: int = 0
    inputs: str = "{}"
    outputs: str | None = None
    error: str | None = None
    failed_step_id: str | None = None
    idempotency_key: str | None = None
    parent_id: str | None = None
    """The run from which it was forked, rerun or started."""
    parent_step_id: str | None = None
    """The step of the parent that started it and receives its result."""
    awaiting: int = 0
    """Messages that must still arrive before a waiting function is woken."""
    root_id: str
    trace_id: str | None = None
    created_at: int = 0
    finished_at: int | None = None
    deadline_at: int | None = None
    """The instant at which it is canceled unless it has ended."""
    fairness_key: str | None = None
    """The key by which its tasks share their queues fairly with those of other keys."""
    lineage_id: str | None = None
    """The first run of the lineage that this run continues (`continue_as_new`); None for a first run."""
    link: int = 0
    """Its number in its lineage."""
    baggage: str | None = None
    """The values of the context variables of the caller that started it, as stored; its tasks and children have the same."""

    def __str__(self) -> str:
        return record_line(self)

    @property
    def finished(self) -> bool:
        """Whether it has reached a final state (which an operator's retry may still leave)."""
        return self.state in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELED)


def deadline_task_id(run_id: str) -> str:
    """The id of the task that waits for the deadline of a run."""
    return derived_id(run_id, "deadline")


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step as stored: the indexed columns, and `document`, the whole step as JSON."""

    id: str
    run_id: str
    parent_id: str | None
    ordinal: int
    kind: str
    name: str
    facet: str | None
    state: str
    document: str
    inbox: str | None = None
    """The result of its task, left for the next advance of the run."""
    created_at: int = 0
    updated_at: int = 0


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """AFL sources compiled together; `id` is the digest of the compiled program."""

    id: str
    namespace: str = DEFAULT_NAMESPACE
    sources: str
    program: str
    created_at: int = 0


class FlowVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A flow published under a name; versions count from 1."""

    namespace: str = DEFAULT_NAMESPACE
    name: str
    version: int
    flow_id: str
    actor: str | None = None
    published_at: int = 0


class ActivityKind(StrEnum):
    """Activities in order of precedence: a run with several kinds of open work shows the first of them."""

    RUNNING = "running"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_SIGNAL = "waiting_for_signal"
    WAITING_FOR_EXTERNAL_JOB = "waiting_for_external_job"
    WAITING_FOR_CHILD = "waiting_for_child"
    RETRYING = "retrying"
    SLEEPING = "sleeping"
    WAITING_FOR_WORKER = "waiting_for_worker"
    BLOCKED = "blocked"
    """Paused by an operator (the run, its task list or its task), or over a limit."""
    WAITING_FOR_TASK = "waiting_for_task"
    """A function that waits only for tasks of its own; while one of them is live, that one shows what the run is doing."""
    STUCK = "stuck"
    """No live task; `treadle runs resume` repairs the run."""


RANKS = {activity: rank for rank, activity in enumerate(ActivityKind)}
"""The precedence of each activity; the stores compute with it, and store only the words."""
ACTIVITY_KINDS = tuple(ActivityKind)
"""The activities by rank."""

_WORDS: dict[str, str] = {
    ActivityKind.WAITING_FOR_APPROVAL: "waiting for a person",
    ActivityKind.WAITING_FOR_SIGNAL: "waiting for a signal",
    ActivityKind.WAITING_FOR_EXTERNAL_JOB: "waiting for an external job",
    ActivityKind.WAITING_FOR_CHILD: "waiting for a child run",
    ActivityKind.WAITING_FOR_WORKER: "waiting for a worker",
    ActivityKind.WAITING_FOR_TASK: "waiting for a task",
    ActivityKind.BLOCKED: "blocked",
}


def words(activity: str) -> str:
    """The activity for people: `waiting for a worker`."""
    return _WORDS.get(activity, activity)


T = TypeVar("T")


def place_order(place: str) -> tuple[tuple[int, ...]]:
    """The order of a function's steps by their places, `4.10.0` after `4.2.0`; the same for all places of a workflow."""
    parts = place.split(".")
    return (tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else (),)


def depth_first(
    rows: Sequence[T], id_of: Callable[[T], str], parent_of: Callable[[T], str | None], order: Callable[[T], Any]
) -> Iterator[T]:
    """Yield the rows, each below its parent; rows without their parent are roots."""
    ids = {id_of(row) for row in rows}
    children: dict[str | None, list[T]] = {}
    for row in rows:
        parent = parent_of(row)
        children.setdefault(parent if parent in ids else None, []).append(row)
    for siblings in children.values():
        siblings.sort(key=order, reverse=True)
    stack = list(children.get(None, ()))
    while stack:
        row = stack.pop()
        yield row
        stack += children.get(id_of(row), ())
