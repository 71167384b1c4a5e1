"""The records of the queue: a task to insert, a live task, a finished one, and the claim that fences its holder.

Instants are milliseconds since 1970 UTC. Payloads, results and the like are JSON text made by `values.encode`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from treadle.model.clock import record_line
from treadle.model.errors import InvalidInput
from treadle.model.names import DEFAULT_LIST, DEFAULT_NAMESPACE, FUNCTION, HANDLER, QueueKey
from treadle.model.states import BlockReason, TaskState
from treadle.model.values import Json, decode_or_error, encode, number_of, shown, storable, text_of


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The lease on a task: its holder may write on behalf of the task until the version changes."""

    task_id: str
    version: int
    owner_id: str


class Preclaimed(msgspec.Struct, frozen=True):
    """The owner of a task that is inserted preclaimed, and its lease in milliseconds."""

    owner_id: str
    lease_for: int


class TaskLimit(NamedTuple):
    """The limit that a new task sets for one of its keys, unless an operator has set another one."""

    max: int | None = None
    rate: float | None = None
    burst: int | None = None


class NewTask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task to insert. The kernel makes the `id`; inserting the same id twice is a no-op."""

    id: str
    queue: QueueKey
    payload: str = "{}"
    priority: int = 0
    delay: int = 0
    """Milliseconds until it is due; 0 means now."""
    blocked_by: int = 0
    """Bits that keep it from being claimed initially."""
    unique_key: str | None = None
    """While a task with this key is live in the namespace, inserting another is a no-op that returns the live one."""
    idempotency_key: str | None = None
    """For `idempotency_for` ms from now, inserting another task with this key is a no-op that returns this one."""
    idempotency_for: int = 7 * 86_400_000
    limit_key: str | None = None
    limit_keys: str | None = None
    """All limit keys of a task with several, one per line; `limit_key` is one of them, the one that it waits for."""
    """The key of its concurrency limit; None: the key of its queue, if it has one."""
    limit: int | None = None
    """How many tasks with the key may run concurrently, unless an operator has set it."""
    limits: tuple[tuple[str, TaskLimit], ...] = ()
    """The same for each of several keys."""
    fairness_key: str | None = None
    """Tasks of different keys with the same queue and priority are claimed alternately."""
    policy: str | None = None
    timeout_for: int | None = None
    """Timeout of one attempt."""
    progress_for: int | None = None
    """Longest time between two progress reports of an attempt."""
    deadline_for: int | None = None
    """Milliseconds from now until the task's absolute deadline."""
    run_id: str | None = None
    step_id: str | None = None
    flow_id: str | None = None
    scope: str | None = None
    root_id: str | None = None
    """The tree to which the task belongs; None makes it the root of its own."""
    trace_id: str | None = None
    baggage: str | None = None
    """The values of the caller's context variables, as JSON that may be encoded; work that follows from the task has the same."""
    created_by: str | None = None
    """The actor that enqueued it: a token, a person, a program, a schedule; None for tasks of runs and of the engine itself."""
    preclaimed: Preclaimed | None = None
    """Insert it as claimed by this owner, if any worker could claim it immediately: not if it has to wait, is held or is over a
    limit, or its queue is paused or has a rate. In those cases it is inserted like any other task."""


class Task(msgspec.Struct, kw_only=True, gc=False):
    """A live task as stored. Changing this object changes nothing durable."""

    id: str
    queue_id: int
    namespace: str = DEFAULT_NAMESPACE
    kind: str = HANDLER
    task_list: str = DEFAULT_LIST
    name: str = ""
    priority: int = 0
    state: str = TaskState.PENDING
    blocked_by: int = 0
    due_at: int = 0
    wake_at: int | None = None
    owner_id: str | None = None
    claim_version: int = 0
    claimed_at: int | None = None
    heartbeat_at: int | None = None
    attempt: int = 1
    """The number of the current or next execution."""
    failures: int = 0
    """Handler errors so far: the count that a retry policy limits."""
    takeovers: int = 0
    """Lease expiries since the last successful settle or poll."""
    version: int = 0
    """Transitions made so far: the number of the last one in the log."""
    created_at: int = 0
    deadline_at: int | None = None
    timeout_for: int | None = None
    progress_for: int | None = None
    progress_at: int | None = None
    progress: str | None = None
    run_id: str | None = None
    step_id: str | None = None
    flow_id: str | None = None
    scope: str | None = None
    root_id: str = ""
    trace_id: str | None = None
    limit_key: str | None = None
    limit_keys: str | None = None
    """All limit keys of a task with several, one per line; `limit_key` is one of them, the one that it waits for."""
    unique_key: str | None = None
    policy: str | None = None
    payload: str = "{}"
    checkpoint: str | None = None
    error: str | None = None
    """The last error, as JSON, while it waits for a retry."""
    activity: str | None = None
    """The activity of a suspended function (`model.activity`)."""
    fairness_key: str | None = None
    baggage: str | None = None
    """The values of the caller's context variables, as stored."""
    created_by: str | None = None
    """The actor that enqueued it. Enqueueing writes no row of the log; this field is its record."""

    # Set when finished:
    seq: int | None = None
    transition: str | None = None
    from_state: str | None = None
    actor: str | None = None
    finished_at: int | None = None
    result: str | None = None
    error_code: str | None = None
    fingerprint: str | None = None

    def __str__(self) -> str:
        return record_line(self)

    @property
    def finished(self) -> bool:
        """Whether it has reached a final state."""
        return self.finished_at is not None

    @property
    def shown_state(self) -> str:
        """The displayed state: `paused` while blocked, `running` while owned, else the stored state."""
        if self.finished:
            return self.state
        if self.blocked_by & ~BlockReason.OVER_LIMIT:
            return TaskState.PAUSED
        if self.owner_id is not None and self.state == TaskState.PENDING:
            return TaskState.RUNNING
        return self.state

    @property
    def counted_as(self) -> str | None:
        """The word under which lists count the task, one of `TASK_ACTIVITIES`; None once it has finished."""
        if self.finished:
            return None
        if self.owner_id is not None:
            return "running"
        if self.wake_at is None:
            return "blocked" if self.blocked_by else "ready"
        return "blocked" if self.blocked_by & ~BlockReason.OVER_LIMIT else "waiting"

    @property
    def all_limit_keys(self) -> tuple[str, ...]:
        """The limit keys under which it counts."""
        return () if self.limit_key is None else tuple((self.limit_keys or self.limit_key).split("\n"))

    @property
    def claim(self) -> Claim:
        """The claim of the current owner; only the owner may use it."""
        return Claim(self.id, self.claim_version, self.owner_id or "")

    @property
    def queue(self) -> QueueKey:
        """The queue from which workers claim it."""
        return QueueKey(self.namespace, self.kind, self.task_list, self.name)


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the log: the `version`-th transition of an entity."""

    seq: int
    at: int
    entity: str
    entity_id: str
    version: int
    transition: str
    from_state: str
    to_state: str
    actor: str | None = None
    claim_version: int | None = None
    run_id: str | None = None
    root_id: str | None = None
    trace_id: str | None = None
    data: str | None = None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line logged by a handler about its task; stored apart from the log of transitions, and not fenced."""

    task_id: str
    at: int
    level: str
    message: str
    details: str | None = None
    run_id: str | None = None
    step_id: str | None = None

    @property
    def source(self) -> str:
        """The author: the `handler` (or the flow), or the `framework`."""
        return FRAMEWORK if self.details is not None and SOURCE in decode_or_error(self.details) else "handler"

    @property
    def public_details(self) -> dict[str, Json]:
        """The details of the line, without the internal ones."""
        return {name: value for name, value in decode_or_error(self.details).items() if name != SOURCE}


SOURCE, FRAMEWORK = "_source", "framework"
"""The detail that marks a line as written by the framework."""

PROCESS, SESSION = "process", "session"

EVIDENCE: Mapping[str, str] = {
    PROCESS: "its process has ended",
    SESSION: "its session with the database has ended",
}
"""Text for each kind of evidence."""


def evidence_text(kind: str) -> str:
    """Return the text for a kind of evidence; that of a newer version is shown as it is."""
    return EVIDENCE.get(kind, kind)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A process that hosts workers; `id` is the `owner_id` of all its claims and new for each process start."""

    id: str
    name: str
    host: str
    pid: int
    version: str
    state: str
    """`starting`, `running`, `draining`, `stopped` or `error`; `lost` is derived from the heartbeat, or from `evidence`."""
    handlers: list[str] = []
    task_lists: list[str] = []
    concurrency: int = 0
    heartbeat_every_for: int = 10_000
    started_at: int = 0
    heartbeat_at: int = 0
    handled: int = 0
    failed: int = 0
    running: int = 0
    server_group: str = "default"
    service_name: str = ""
    topics: list[str] = []
    counts: dict[str, list[int]] = {}
    """Per handler name: tasks completed, and tasks not completed."""
    error: str | None = None
    """The error from which it could not recover, or the last time that a handler held its interpreter, as JSON."""
    process: str | None = None
    """Identifies the process and its lease sidecar for other processes of this kernel, which can see whether they have ended."""
    session: str | None = None
    """Identifies the instance of the database in which the server holds its lock; None if it has none. Only the store sets it."""
    evidence: str | None = None
    """Why others recorded the end of this server: `process` or `session` (`kernel.takeover`). A heartbeat clears it."""
    namespace: str | None = None
    """The namespace that it serves; None: an older version registered it, and did not say."""
    release: str = ""
    """The release of the application whose code it runs; empty if it is not known."""


LIVE_SERVER_STATES = ("starting", "running", "draining")
LOST_AFTER = 3
"""Missed heartbeats after which a server is shown as lost."""


# --- the columns of a task ---


class ColumnUse(Flag):
    """The tables that have a column, and the statements that copy its value unchanged."""

    LIVE = auto()
    FINISHED = auto()
    NEW = auto()
    """An insert takes the value from the new task."""
    CARRIED = auto()
    """A task that finishes keeps the value."""
    REDRIVEN = auto()
    """A finished task that becomes live again keeps the value."""
    BOTH = LIVE | FINISHED
    KEPT = BOTH | CARRIED | REDRIVEN
    GIVEN = KEPT | NEW


class TaskColumn(NamedTuple):
    """A column of the tables `tasks` and `finished`, which have a field of the same name in `Task`."""

    name: str
    type: str
    """The PostgreSQL type; SQLite stores `uuid` and `text` as text, and numbers as integers."""
    use: ColumnUse


TASK_COLUMNS = (
    TaskColumn("id", "uuid", ColumnUse.GIVEN),
    TaskColumn("queue_id", "integer", ColumnUse.GIVEN),
    TaskColumn("namespace", "text", ColumnUse.GIVEN),
    TaskColumn("priority", "integer", ColumnUse.GIVEN),
    TaskColumn("state", "text", ColumnUse.BOTH),
    TaskColumn("blocked_by", "integer", ColumnUse.LIVE | ColumnUse.NEW),
    TaskColumn("due_at", "bigint", ColumnUse.BOTH | ColumnUse.CARRIED),
    TaskColumn("wake_at", "bigint", ColumnUse.LIVE),
    TaskColumn("owner_id", "text", ColumnUse.BOTH | ColumnUse.CARRIED),
    TaskColumn("claim_version", "integer", ColumnUse.KEPT),
    TaskColumn("claimed_at", "bigint", ColumnUse.KEPT),
    TaskColumn("heartbeat_at", "bigint", ColumnUse.LIVE),
    TaskColumn("attempt", "integer", ColumnUse.BOTH | ColumnUse.CARRIED),
    TaskColumn("failures", "integer", ColumnUse.BOTH | ColumnUse.CARRIED),
    TaskColumn("takeovers", "integer", ColumnUse.BOTH | ColumnUse.CARRIED),
    TaskColumn("version", "integer", ColumnUse.BOTH),
    TaskColumn("created_at", "bigint", ColumnUse.KEPT),
    TaskColumn("deadline_at", "bigint", ColumnUse.BOTH | ColumnUse.CARRIED),
    TaskColumn("timeout_for", "bigint", ColumnUse.GIVEN),
    TaskColumn("progress_for", "bigint", ColumnUse.GIVEN),
    TaskColumn("progress_at", "bigint", ColumnUse.LIVE),
    TaskColumn("progress", "text", ColumnUse.KEPT),
    TaskColumn("run_id", "uuid", ColumnUse.GIVEN),
    TaskColumn("step_id", "uuid", ColumnUse.GIVEN),
    TaskColumn("flow_id", "text", ColumnUse.GIVEN),
    TaskColumn("scope", "text", ColumnUse.GIVEN),
    TaskColumn("root_id", "uuid", ColumnUse.KEPT),
    TaskColumn("trace_id", "text", ColumnUse.GIVEN),
    TaskColumn("limit_key", "text", ColumnUse.BOTH | ColumnUse.NEW | ColumnUse.CARRIED),
    TaskColumn("limit_keys", "text", ColumnUse.GIVEN),
    TaskColumn("unique_key", "text", ColumnUse.BOTH | ColumnUse.NEW | ColumnUse.CARRIED),
    TaskColumn("policy", "text", ColumnUse.GIVEN),
    TaskColumn("payload", "text", ColumnUse.BOTH | ColumnUse.NEW | ColumnUse.CARRIED),
    TaskColumn("checkpoint", "text", ColumnUse.KEPT),
    TaskColumn("error", "text", ColumnUse.BOTH),
    TaskColumn("activity", "text", ColumnUse.LIVE),
    TaskColumn("fairness_key", "text", ColumnUse.GIVEN),
    TaskColumn("baggage", "text", ColumnUse.GIVEN),
    TaskColumn("created_by", "text", ColumnUse.GIVEN),
    TaskColumn("seq", "bigint", ColumnUse.FINISHED),
    TaskColumn("transition", "text", ColumnUse.FINISHED),
    TaskColumn("from_state", "text", ColumnUse.FINISHED),
    TaskColumn("actor", "text", ColumnUse.FINISHED),
    TaskColumn("finished_at", "bigint", ColumnUse.FINISHED),
    TaskColumn("result", "text", ColumnUse.FINISHED),
    TaskColumn("error_code", "text", ColumnUse.FINISHED),
    TaskColumn("fingerprint", "text", ColumnUse.FINISHED),
)
"""The one description of a task's columns: the stores generate their column lists and their decoding from it.

A new column needs a field in `Task` (and in `NewTask`, if it is `NEW`), a row here, and a migration of each store.
"""

LEVELS = ("debug", "info", "success", "warning", "error")
_MESSAGE_LIMIT = 4096


def log_line(task: Task, at: int, message: str, level: str = "info", details: dict[str, Json] | None = None) -> LogLine:
    """Return a log line about the task; a message that is too long is truncated."""
    if not isinstance(level, str) or level not in LEVELS:
        raise InvalidInput(f"level must be one of {', '.join(LEVELS)}, not {shown(level)}.")
    return LogLine(
        task_id=task.id,
        at=at,
        level=storable(level),
        message=text_of(message, _MESSAGE_LIMIT),
        details=encode(details, "details") if details else None,
        run_id=task.run_id,
        step_id=task.step_id,
    )


NOTED_STEPS, NOTED_CLAIM = "_steps", "_claim"
"""The keys in the progress of a function's task: the steps that it executes, and the claim version for which that holds."""


def noted_steps(task: Task) -> list[dict[str, Any]]:
    """The steps that the function of this task executes now, as far as they take long enough to be noted, as JSON."""
    if task.kind != FUNCTION or task.owner_id is None or task.progress is None:
        return []
    note: dict[str, Any] = decode_or_error(task.progress)
    return list(note.get(NOTED_STEPS, ())) if note.get(NOTED_CLAIM) == task.claim_version else []


def progress_text(fraction: float | None, message: str | None) -> str:
    """Return progress as JSON. A fraction slightly out of range is clamped: reporting progress must not fail the work."""
    if fraction is not None:
        number = number_of(fraction)
        if number is None or not -0.01 <= number <= 1.01:
            raise InvalidInput(f"progress must be a fraction from 0 to 1, not {shown(fraction)}.")
        fraction = min(max(number, 0.0), 1.0)
    if message is not None and not isinstance(message, str):
        raise InvalidInput(f"the message of progress must be text, not {type(message).__name__}.")
    parts = {"fraction": fraction, "message": None if message is None else storable(message, _MESSAGE_LIMIT)}
    return encode({name: value for name, value in parts.items() if value is not None}, "progress")


def trace_number(trace_id: str) -> int:
    """Return the 128 bits of a trace id; never 0, which the standard forbids."""
    try:
        number = UUID(trace_id).int
    except ValueError:
        number = 0
    return number or int.from_bytes(hashlib.sha256(trace_id.encode("utf-8", "surrogatepass")).digest()[:16]) or 1


def span_number(task_id: str) -> int:
    """Return the 64 bits of the span that stored the task; never 0."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:8]) or 1


def trace_of(task: Task | NewTask) -> int:
    """Return the 128 bits of the task's trace."""
    return trace_number(task.trace_id or task.root_id or task.id)


def traceparent(task: Task | NewTask) -> str:
    """Return the `traceparent` header with which a remote worker continues the task's trace."""
    return f"00-{trace_of(task):032x}-{span_number(task.id):016x}-01"


HELD, CANCELED, LOST = "held", "canceled", "lost"


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task that a worker holds, with everything needed to work on it."""

    task: Task
    """The task when it was claimed, with its payload decoded from the value store."""
    payload: dict[str, Json]
    lease_expires_at: int
    lease_for: int
    """Milliseconds left of the lease when the task was claimed."""
    checkpoint: Json = None
    """Partial results of earlier attempts, or the checkpoint given with `wait` or `ask`."""
    approval_decisions: tuple[dict[str, Json], ...] = ()
    """The approvals granted to the task so far, oldest first."""

    @property
    def claim(self) -> Claim:
        return self.task.claim

    @property
    def claim_version(self) -> int:
        """The version that every request about this claim must carry; it rises with each claim of the task."""
        return self.task.claim_version

    @property
    def attempt(self) -> int:
        """The number of this execution, from 1."""
        return self.task.attempt

    @property
    def deadline_at(self) -> int | None:
        """The absolute deadline of the task, or None."""
        return self.task.deadline_at

    @property
    def trace_id(self) -> str | None:
        return self.task.trace_id

    @property
    def approval_decision(self) -> dict[str, Json] | None:
        """The latest granted approval, for a task that asked; else None."""
        return self.approval_decisions[-1] if self.approval_decisions else None
