"""Tasks: enqueue, read, wait, cancel, retry, pause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Protocol, Unpack

import msgspec

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc, Lookup, Page, struct_of_parameters
from treadle.api.options import EnqueueOptions, SpecOptions
from treadle.api.view import Column, View, short, words
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.clock import span
from treadle.model.values import Json, encode

TaskId = Annotated[str, Doc("The task's id", "01935b8e-7c3a-7000-8000-000000000000")]
WAIT_LIMIT = 60.0
"""Maximum number of seconds that a call may wait."""


class Task(ApiRecord, frozen=True, kw_only=True):
    """A task without its payload and result, which may be large."""

    id: str
    name: str
    """The handler's name."""
    about: str
    """Its payload in one line, up to 120 characters, such as `row = 7`; empty for tasks of the engine itself."""
    state: str
    """`pending`, `running`, `paused`, `awaiting_external`, `awaiting_approval`, `completed`, `failed`, `canceled` or `ignored`."""
    namespace: str
    kind: str
    task_list: str
    priority: int
    """Smaller numbers run first."""
    attempt: int
    failures: int
    takeovers: int
    claim_version: int
    version: int
    owner_id: str | None
    """The worker that holds the lease."""
    created_at: Instant
    due_at: Instant
    wake_at: Instant | None
    """Time of the next wake-up: a backoff, a poll, an expiry, or the end of the lease."""
    claimed_at: Instant | None
    heartbeat_at: Instant | None
    progress_at: Instant | None
    deadline_at: Instant | None
    finished_at: Instant | None
    timeout_for: int | None
    progress_for: int | None
    blocked_by: list[str]
    unique_key: str | None
    limit_key: str | None
    """The limit key under which it counts; of a waiting task with several, the one that has no room."""
    limit_keys: list[str]
    """All limit keys under which it counts."""
    fairness_key: str | None
    run_id: str | None
    step_id: str | None
    root_id: str | None
    trace_id: str | None
    policy: Json
    """Retry policy; null: the handler's policy."""
    progress: Json
    """The handler's last progress report."""
    error: Json
    """The last error: message, code and location."""
    error_code: str | None
    actor: str | None
    """The person who ended it, if any."""
    created_by: str | None
    """The actor that enqueued it: a token, `cli:ada`, `python`, `schedule:nightly`; null for tasks of runs and of the engine."""
    tags: dict[str, Json] = msgspec.field(default_factory=dict)
    """Search attributes."""


class TaskCounts(ApiRecord, frozen=True):
    """Numbers of live tasks."""

    ready: int
    running: int
    waiting: int
    """Waiting for a delay, a backoff, a poll or an approval."""
    blocked: int
    """Blocked by a pause or a limit."""
    oldest_due_at: Instant | None
    """Due time of the oldest ready task."""


class TaskPage(Page, frozen=True):
    """Tasks, newest first."""

    tasks: list[Task]
    searched: int | None = None
    """With `where`: the number of tasks that were looked at."""
    complete: bool = True
    """With `where`: false if the search stopped before it had `limit` tasks or had looked at all: continue after `next_before`."""


class Why(ApiRecord, frozen=True):
    """The reason for a state."""

    id: str
    name: str
    state: str
    code: str
    text: str


class TransitionRecord(ApiRecord, frozen=True):
    """A row of the log."""

    version: int
    """The number of the change among those of the entity."""
    at: Instant
    transition: str
    from_state: str
    to_state: str
    actor: str | None
    """The person or external program that made the change, if any."""
    claim_version: int | None
    data: Json


def describe_data(transition: TransitionRecord) -> str:
    """The data of a transition in one line."""
    if not isinstance(transition.data, dict):
        return words(transition.data)
    return "; ".join(f"{name} {words(value)}" for name, value in transition.data.items() if name != "traceback")


TRANSITIONS = View(
    TransitionRecord,
    columns=(
        "version",
        "at",
        "transition",
        Column("from", "from_state", "state"),
        Column("to", "to_state", "state"),
        Column("by", "actor"),
        Column("data", describe_data),
    ),
    brief=("at", "transition", "to_state", "actor"),
)


class TaskLogLine(ApiRecord, frozen=True):
    """A log line of a task."""

    at: Instant
    level: str
    source: str
    message: str
    details: Json


class TaskDetail(Task, frozen=True, kw_only=True):
    """Everything about one task."""

    payload: Json
    result: Json
    checkpoint: Json
    release: str | None
    """The release of the application that executed it last, as far as its worker is known."""
    why: Why
    transitions: list[TransitionRecord]
    lines: list[TaskLogLine]


class TaskCreated(ApiRecord, frozen=True):
    """A durable task."""

    id: str
    name: str
    created: bool
    """False: a task with this key already existed; this is that task."""


class TaskResult(ApiRecord, frozen=True):
    """The result of a task: `result` if it completed, `error` if it failed."""

    id: str
    name: str
    state: str
    finished: bool
    """False: it has not ended within the waiting time."""
    result: Json
    error: Json
    error_code: str | None
    why: str
    """The reason for its state, in one line."""


@struct_of_parameters
class TaskRequest:
    """A task to enqueue. Durations are seconds."""

    def __init__(
        self,
        name: Annotated[str, Doc("The handler's name, e.g. `billing.Charge`")],
        payload: dict[str, Json] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> None: ...

    def __getattr__(self, name: str) -> Any: ...


@struct_of_parameters
class TaskSpec:
    """One task to enqueue: the arguments of `enqueue`, for `enqueue_many`.

    With `id`, a call can be repeated safely: enqueueing an existing id is a no-op.
    """

    def __init__(self, *, name: str, payload: Json = None, **options: Unpack[SpecOptions]) -> None: ...

    def __getattr__(self, name: str) -> Any: ...


class TasksCreated(ApiRecord, frozen=True):
    """Durable tasks, in the order of the request."""

    tasks: list[TaskCreated]


def _note(task: Task) -> str | None:
    """The most important fact about the task, in a few words."""
    error, progress = task.error or {}, task.progress or {}
    if task.finished_at is None and task.owner_id is not None and progress:
        fraction = f"{progress['fraction']:.0%} " if "fraction" in progress else ""
        return f"{fraction}{progress.get('message', '')}"
    return error.get("message")


def _due_at(task: Task) -> Instant | None:
    """The time at which it can start, if it waits for that."""
    waits = task.finished_at is None and task.owner_id is None and task.state != "awaiting_approval"
    return task.wake_at if waits else None


def _lease(task: Task) -> str:
    held = task.owner_id is not None and task.finished_at is None
    return f"held by {task.owner_id} until {words(task.wake_at)}" if held else "none"


def _progress_clock(task: Task) -> str:
    if task.progress_for is None:
        return "no progress deadline"
    held = task.owner_id is not None and task.finished_at is None
    last = f"; last report {words(task.progress_at) or '-'}" if held else ""
    return f"a report every {span(task.progress_for)}{last}"


TASK_BRIEF = ("id", "name", "state", "task_list", "attempt", "created_at", "finished_at", "run_id", "error_code", "error")
View(
    Task,
    columns=(
        "id",
        "name",
        "state",
        "?attempt",
        "created_at",
        Column("due", _due_at, "instant", spare=True),
        Column("ended", "finished_at", spare=True),
        Column("tags", spare=True, limit=40),
        Column("note", _note, spare=True, limit=60),
    ),
    brief=TASK_BRIEF,
    empty="No tasks.",
    changed=lambda task: (
        f"{task.name} {task.id} is repeated by its run {task.run_id}"
        if task.state == "failed" and task.run_id is not None  # only a retry leaves it failed
        else f"{task.name} {task.id} is {task.state} now"
    ),
)


def _line_text(line: TaskLogLine) -> str:
    return f"{line.message}  {encode(line.details)}" if line.details else line.message


_LINES = View(TaskLogLine, columns=("at", "level", Column("text", _line_text)), empty="No lines.")


def _brief_lines(task: TaskDetail) -> list[str]:
    return [short(f"{line.level}: {line.message}", 300) for line in task.lines[-20:]]


View(
    TaskDetail,
    title="{name}  {state}  {id}",
    facts=(
        Column("why", "why.text"),
        Column("list", lambda task: f"{task.task_list} (namespace {task.namespace}, priority {task.priority})"),
        Column("attempt", lambda task: f"{task.attempt} ({task.failures} failures, {task.takeovers} takeovers)"),
        "created_at",
        "created_by",
        "finished_at",
        Column("finished by", lambda task: (task.actor or task.owner_id) if task.finished_at else None),
        Column("due", _due_at, "instant"),
        Column("last claimed", "claimed_at"),
        "release",
        Column("retry policy", lambda task: task.policy and encode(task.policy)),
        "unique_key",
        "limit_key",
        "fairness_key",
        "run_id",
        "tags",
        "trace_id",
        Column("progress", lambda task: encode(task.progress) if task.progress and task.finished_at is None else None),
        Column("lease", _lease),
        Column("progress clock", _progress_clock),
        Column("deadline", lambda task: words(task.deadline_at) or "none"),
        Column(
            "timeout", lambda task: "set by the handler" if task.timeout_for is None else f"{span(task.timeout_for)} per attempt"
        ),
        "error",
        Column("traceback", "error.traceback"),
        Column("payload", kind="json"),
        Column("result", kind="json"),
        Column("checkpoint", kind="json"),
        Column("transitions", rows=TRANSITIONS),
        Column("lines", rows=_LINES),
    ),
    brief=(
        *TASK_BRIEF,
        Column("why", "why.text"),
        Column("payload", kind="json"),
        Column("result", kind="json"),
        Column("progress", kind="json"),
        "owner_id",
        "release",
        "wake_at",
        "step_id",
        Column("transitions", rows=TRANSITIONS),
        Column("lines", _brief_lines),
    ),
)
View(Why, columns=("name", "state", "text"), changed="{name} {state}: {text}")


class Parameters(ApiRecord, frozen=True):
    """The parameters of a handler or function, from the annotations of its code, as live or former workers registered them."""

    name: str
    version: int
    """Version of the function; 0: a handler."""
    schema: dict[str, Json]
    """JSON Schema of the payload; `{}`: any object."""
    former: list[dict[str, Json]]
    """Schemas that were registered before, which workers of an older release may still have."""


View(Parameters, facts=("name", "version", "schema"))


class TasksApi(Lookup[TaskDetail], Protocol):
    """Tasks: the units of work that workers claim."""

    @contract.get("/tasks", lists=True)
    async def list(
        self,
        *,
        state: Annotated[Sequence[str], Doc("Only these states; may be repeated", ["failed"])] = (),
        name: Annotated[str | None, Doc("Only this handler", "billing.Charge")] = None,
        task_list: Annotated[str | None, Doc("Only this task list", "default")] = None,
        kind: Annotated[str | None, Doc("Only this kind; default: tasks of handlers", "handler")] = None,
        every: Annotated[bool, Doc("Include the engine's own tasks: scripts, run advances, pruning")] = False,
        run_id: Annotated[str | None, Doc("Only this run")] = None,
        where: Annotated[str | None, Doc("Only tasks that match this query", "tag.customer = acme and created > 2d ago")] = None,
        limit: Annotated[int, Doc("Page size, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("`next_before` of the previous page")] = None,
    ) -> TaskPage:
        """Tasks, newest first."""

    @contract.post("/tasks", Scope.ENQUEUE, status=201, lists=True, creates=True)
    async def enqueue(
        self,
        name: Annotated[str, Doc("The handler's name", "billing.Charge")],
        payload: Annotated[dict[str, Json] | None, Doc("Input of the handler", {"amount": 12})] = None,
        **options: Unpack[EnqueueOptions],
    ) -> TaskCreated:
        """Enqueue a task; when this returns, the task is durable."""

    @contract.post("/tasks/batch", Scope.ENQUEUE, status=201, lists=True, creates=True)
    async def enqueue_many(
        self,
        tasks: Annotated[
            Sequence[TaskRequest], Doc("At most 1000; all are checked before the first is stored", [{"name": "billing.Charge"}])
        ],
    ) -> TasksCreated:
        """Enqueue many tasks; use an `idempotency_key` for each to make the call repeatable.

        They are stored together or not at all. A key that identifies a different task, or two different ones of the call,
        rejects them with `idempotency_key_reused`.
        """

    @contract.get("/parameters/{name}", Scope.ENQUEUE)
    async def parameters(
        self,
        name: Annotated[str, Doc("Name of a handler or function", "order")],
        *,
        version: Annotated[int | None, Doc("Version of a function; 0: a handler; null: the newest")] = None,
    ) -> Parameters:
        """Parameters of a handler or function as a JSON Schema; 404 if its code has no annotations, or never ran on a worker."""

    @contract.get("/tasks/{task_id}", lists=True)
    async def get(self, task_id: TaskId) -> TaskDetail:
        """One task: state, times, payload, result, history, log lines, and the reason for its state."""

    @contract.get("/tasks/{task_id}/why", lists=True)
    async def why(self, task_id: TaskId) -> Why:
        """The reason for the task's state, in one line."""

    @contract.get("/tasks/{task_id}/result", lists=True)
    async def result(
        self,
        task_id: TaskId,
        *,
        wait_for: Annotated[float, Doc("Seconds to wait for its end, up to 60", 10)] = 0.0,
    ) -> TaskResult:
        """The result of a task; optionally waits for its end."""

    @contract.post("/tasks/{task_id}/cancel", Scope.OPERATE, lists=True)
    async def cancel(self, task_id: TaskId, *, reason: Annotated[str | None, Doc("Stored with the task")] = None) -> Task:
        """Cancel a task, even if a worker holds it; canceling twice is not an error."""

    @contract.post("/tasks/{task_id}/retry", Scope.OPERATE, lists=True)
    async def retry(
        self, task_id: TaskId, *, payload: Annotated[dict[str, Json] | None, Doc("A new payload; null: keep the old one")] = None
    ) -> Task:
        """Requeue a failed, canceled or ignored task with new counters; for a task of a run, repeat its step in the run."""

    @contract.post("/tasks/{task_id}/pause", Scope.OPERATE, lists=True)
    async def pause(
        self,
        task_id: TaskId,
        *,
        reason: Annotated[str | None, Doc("Shown by `why`")] = None,
        interrupt: Annotated[bool, Doc("Stop an attempt in progress at its next safe point instead of letting it end")] = False,
    ) -> Task:
        """Pause a task; an attempt in progress ends normally, or with `interrupt` is repeated after the resume."""

    @contract.post("/tasks/{task_id}/resume", Scope.OPERATE, lists=True)
    async def resume(self, task_id: TaskId) -> Task:
        """Resume a paused task."""
