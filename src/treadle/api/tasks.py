"""Tasks: enqueue, look, wait, cancel, retry, pause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Protocol, Unpack

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.options import EnqueueOptions
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.names import DEFAULT_LIST
from treadle.model.values import Json

TaskId = Annotated[str, Doc("The task's id", "01935b8e-7c3a-7000-8000-000000000000")]
WAIT_LIMIT = 60.0
"""Seconds that a call may wait for something to happen."""


@dataclass(frozen=True, slots=True)
class Task(ApiRecord):
    """A task without its payload and result, which may be large."""

    id: str
    name: str
    """The handler's name."""
    state: str
    """`pending`, `running`, `paused`, `awaiting_external`, `awaiting_approval`, `completed`, `failed`, `canceled` or `ignored`."""
    namespace: str
    kind: str
    task_list: str
    priority: int
    """Smaller runs first."""
    attempt: int
    failures: int
    takeovers: int
    claim_version: int
    version: int
    owner_id: str | None
    """The server that holds it."""
    created_at: Instant
    due_at: Instant
    wake_at: Instant | None
    """When it is looked at again: a backoff, a poll, an expiry, or the end of the lease."""
    claimed_at: Instant | None
    heartbeat_at: Instant | None
    progress_at: Instant | None
    deadline_at: Instant | None
    finished_at: Instant | None
    timeout_for: int | None
    progress_for: int | None
    holds: list[str]
    unique_key: str | None
    limit_key: str | None
    run_id: str | None
    step_id: str | None
    root_id: str | None
    trace_id: str | None
    policy: Json
    """How it is retried; null: as its handler says."""
    progress: Json
    """What its handler said last of how far it is."""
    error: Json
    """The last error: its message, code and place."""
    error_code: str | None
    actor: str | None
    """Who ended it, if a person did."""


@dataclass(frozen=True, slots=True)
class TaskPage(ApiRecord):
    """Tasks, newest first."""

    tasks: list[Task]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class Why(ApiRecord):
    """Why something is where it is."""

    id: str
    name: str
    state: str
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class MoveMade(ApiRecord):
    """A row of the log."""

    version: int
    at: Instant
    move: str
    from_state: str | None
    to_state: str | None
    actor: str | None
    claim_version: int | None
    data: Json


@dataclass(frozen=True, slots=True)
class Line(ApiRecord):
    """A line that was written about a task."""

    at: Instant
    level: str
    source: str
    message: str
    details: Json


@dataclass(frozen=True, slots=True)
class TaskDetail(Task):
    """Everything about one task."""

    payload: Json
    result: Json
    checkpoint: Json
    why: Why
    moves: list[MoveMade]
    lines: list[Line]


@dataclass(frozen=True, slots=True)
class TaskMade(ApiRecord):
    """A task that is durable now."""

    id: str
    name: str
    created: bool
    """False: a task had the same key already, and this is that one."""


@dataclass(frozen=True, slots=True)
class TaskResult(ApiRecord):
    """What a task came to; `result` only where it completed, `error` only where it failed."""

    id: str
    name: str
    state: str
    finished: bool
    """False: it has not ended within the time that was waited."""
    result: Json
    error: Json
    error_code: str | None
    why: str
    """One line."""


@dataclass(frozen=True, slots=True)
class TaskWish(ApiRecord):
    """A task to be stored. Durations are seconds."""

    name: str
    """The handler's name, e.g. `billing.Charge`."""
    payload: dict[str, Json] | None = None
    delay: float | None = None
    """Not before that."""
    at: datetime | None = None
    """Not before then."""
    priority: int = 0
    """Smaller runs first."""
    task_list: str = DEFAULT_LIST
    unique_key: str | None = None
    """While a task with it is live, that one is meant."""
    idempotency_key: str | None = None
    """For a week it stands for this task, also when that has ended."""
    limit_key: str | None = None
    """Counts against the limit of this key."""
    limit: int | None = None
    """At most so many with the key run at once, unless an operator said otherwise."""
    retry: int | None = None
    """Retries after a failure; null: what the handler says."""
    timeout: float | None = None
    """Longest time for one attempt."""
    progress_every: float | None = None
    """Longest time without a sign of progress."""
    deadline: float | None = None
    """Not worth doing after that."""
    trace_id: str | None = None
    scope: str | None = None
    """Chooses among specialists of one name."""


@dataclass(frozen=True, slots=True)
class TasksMade(ApiRecord):
    """Tasks that are durable now, in the order in which they were asked for."""

    tasks: list[TaskMade]


class TasksApi(Protocol):
    """Tasks: the claimable units of work."""

    @contract.get("/tasks", lists=True)
    async def list(
        self,
        *,
        state: Annotated[Sequence[str], Doc("Only these states; may be repeated", ["failed"])] = (),
        name: Annotated[str | None, Doc("Only of this handler name", "billing.Charge")] = None,
        task_list: Annotated[str | None, Doc("Only of this task list", "default")] = None,
        kind: Annotated[str | None, Doc("Only of this kind; without it, those of handlers", "handler")] = None,
        every: Annotated[bool, Doc("The engine's own too: scripts, advances of runs, pruning")] = False,
        run_id: Annotated[str | None, Doc("Only of this run")] = None,
        limit: Annotated[int, Doc("At most so many, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("The `next_before` of the page before")] = None,
    ) -> TaskPage:
        """Tasks, newest first."""

    @contract.post("/tasks", Scope.WORK, status=201, lists=True, creates=True)
    async def enqueue(
        self,
        name: Annotated[str, Doc("The handler's name", "billing.Charge")],
        payload: Annotated[dict[str, Json] | None, Doc("Input of the handler", {"amount": 12})] = None,
        **options: Unpack[EnqueueOptions],
    ) -> TaskMade:
        """Store a task; when this answers, it is durable."""

    @contract.post("/tasks/batch", Scope.WORK, status=201, lists=True, creates=True)
    async def enqueue_many(
        self,
        tasks: Annotated[
            Sequence[TaskWish], Doc("At most 1000; all are checked before the first is stored", [{"name": "billing.Charge"}])
        ],
    ) -> TasksMade:
        """Store many tasks; what makes it repeatable is the `idempotency_key` of each."""

    @contract.get("/tasks/{task_id}", lists=True)
    async def get(self, task_id: TaskId) -> TaskDetail:
        """Everything about one task: facts, clocks, payload, result, moves, lines, and why it is where it is."""

    @contract.get("/tasks/{task_id}/why", lists=True)
    async def why(self, task_id: TaskId) -> Why:
        """Why the task is where it is, in one line."""

    @contract.get("/tasks/{task_id}/result", lists=True)
    async def result(
        self,
        task_id: TaskId,
        *,
        wait_for: Annotated[float, Doc("Wait so many seconds for its end, up to 60", 10)] = 0.0,
    ) -> TaskResult:
        """What the task came to; waits for its end if asked to."""

    @contract.post("/tasks/{task_id}/cancel", Scope.OPERATE, lists=True)
    async def cancel(self, task_id: TaskId, *, reason: Annotated[str | None, Doc("Kept with the task")] = None) -> Task:
        """End a task now, whoever holds it; canceling twice is no error."""

    @contract.post("/tasks/{task_id}/retry", Scope.OPERATE, lists=True)
    async def retry(
        self, task_id: TaskId, *, payload: Annotated[dict[str, Json] | None, Doc("A new payload; null: as it was")] = None
    ) -> Task:
        """Make a failed, canceled or ignored task live again, with new counters."""

    @contract.post("/tasks/{task_id}/pause", Scope.OPERATE, lists=True)
    async def pause(self, task_id: TaskId) -> Task:
        """Hold a task that is not running, until it is resumed."""

    @contract.post("/tasks/{task_id}/resume", Scope.OPERATE, lists=True)
    async def resume(self, task_id: TaskId) -> Task:
        """Let a paused task go on."""
