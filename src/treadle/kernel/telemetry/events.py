"""Typed events that the engine emits, each with its log level and wording. `log_event` writes them.

An event without logic is a row: its name, its fields in order, its level, and its wording with fields in braces.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any, ClassVar

import msgspec

from treadle.model.names import DEFAULT_LIST, HANDLER
from treadle.model.tasks import Task
from treadle.model.text import safe_logger
from treadle.model.values import decode

_log = safe_logger("treadle")

current_attempt: ContextVar[tuple[str, str | None] | None] = ContextVar("current_attempt", default=None)
"""The task and trace of the running code, for its log lines."""


class TelemetryEvent(msgspec.Struct, frozen=True):
    """An event: its fields are values for machines, `words` for people."""

    level: ClassVar[int] = WARNING
    """The highest level of its log line."""
    wording: ClassVar[str] = ""

    def words(self) -> tuple[int, str]:
        """Return the level and the text of the log line; a list without entries is shown as `no NAME`."""
        values = msgspec.structs.asdict(self)
        lists = {name: ", ".join(value) or f"no {name}" for name, value in values.items() if isinstance(value, tuple)}
        return self.level, self.wording.format(**(values | lists))


Emit = Callable[[TelemetryEvent], None]


def log_event(event: TelemetryEvent) -> None:
    """The default subscriber: one line per event, through the logger `treadle`."""
    if _log.isEnabledFor(event.level):
        level, text = event.words()
        _log.log(level, text, extra={"treadle_event": event})


class TaskSettled(TelemetryEvent, frozen=True, gc=False):
    """An attempt has made a transition of its task."""

    level = ERROR

    task_id: str
    name: str
    transition: str
    attempt: int
    took_ms: float
    error: str | None = None
    """The task's last error as JSON."""
    kind: str = HANDLER
    task_list: str = DEFAULT_LIST
    trace_id: str | None = None

    @staticmethod
    def of(task: Task, transition: str, took_ms: float, error: str | None) -> TaskSettled:
        """The event of a transition that an attempt of the task made."""
        return TaskSettled(task.id, task.name, transition, task.attempt, took_ms, error, task.kind, task.task_list, task.trace_id)

    def words(self) -> tuple[int, str]:
        """Return the transition, and the problem of a failed attempt."""
        text = f"task {self.task_id} ({self.name}) attempt {self.attempt}, {self.took_ms:.0f} ms: {self.transition}"
        if self.error is None or self.transition not in ("fail", "retry"):
            return DEBUG, text
        problem = decode(self.error)
        return ERROR if self.transition == "fail" else WARNING, f"{text}: {problem['message']} ({problem['code']})"


class Recovered(TelemetryEvent, frozen=True):
    """A start-up found work of earlier processes and recovered it."""

    level = WARNING
    wording = (
        "recovered: {expired_leases} expired lease(s), {own_tasks} task(s) of dead processes of this machine, "
        "{unknown_effects} effect(s) with an unknown outcome, {orphaned_approvals} approval(s) without a task"
    )

    expired_leases: int
    own_tasks: int
    unknown_effects: int
    orphaned_approvals: int
    missed: tuple[str, ...] = ()

    def words(self) -> tuple[int, str]:
        """Return the counts, and the missed work."""
        level, text = TelemetryEvent.words(self)
        return level, "; ".join((text, *self.missed))


class DeclarationSynced(TelemetryEvent, frozen=True):
    """A limit or schedule that a program declares was applied, or could not be (`kept`)."""

    wording = "program {program}, release {release}: {text}"

    program: str
    release: str
    text: str
    kept: bool

    def words(self) -> tuple[int, str]:
        """Return the change; one that was not applied is a warning."""
        return WARNING if self.kept else INFO, TelemetryEvent.words(self)[1]


def _event(name: str, fields: str, level: int, wording: str) -> Any:
    """Return the class of an event with those fields, of which the last, `trace_id`, is optional."""
    annotated = [(field, Any, None) if field == "trace_id" else (field, Any) for field in fields.split()]
    return msgspec.defstruct(
        name, annotated, bases=(TelemetryEvent,), module=__name__, namespace={"level": level, "wording": wording}, frozen=True
    )


TaskTaken = _event("TaskTaken", "task_id name attempt trace_id", DEBUG, "task {task_id} ({name}) claimed, attempt {attempt}")
"""A worker has claimed a task."""
WorkerStarted = _event("WorkerStarted", "owner_id handlers", INFO, "worker {owner_id} started for {handlers}")
WorkerStopped = _event(
    "WorkerStopped", "owner_id handled released", INFO, "worker {owner_id} stopped: {handled} handled, {released} released"
)
LeaseLost = _event(
    "LeaseLost", "task_id name reason trace_id", WARNING, "task {task_id} ({name}) lost its lease: {reason}; stopping its handler"
)
ResultDropped = _event(
    "ResultDropped",
    "task_id name transition trace_id",
    WARNING,
    "task {task_id} ({name}): late {transition} dropped, the claim was lost",
)
LeasesExpired = _event("LeasesExpired", "count", WARNING, "{count} lease(s) expired; their tasks are ready for other workers")
PresumedDead = _event(
    "PresumedDead",
    "server_id name evidence leases",
    WARNING,
    "worker {name} ({server_id}) is dead: {evidence}; {leases} lease(s) end now",
)
"""This process recorded the death of another server, before its leases expired."""
WronglyPresumedDead = _event(
    "WronglyPresumedDead",
    "evidence",
    WARNING,
    "another worker took this one for dead ({evidence}) and its work was taken over; "
    "this evidence does not count for the next 10 minutes",
)
InterpreterHeld = _event(
    "InterpreterHeld", "handler seconds kept text", WARNING, "{text}; the lease sidecar renewed {kept} lease(s) meanwhile"
)
"""A handler held the interpreter lock of this process; the lease sidecar renewed its leases meanwhile."""
LoopBlocked = _event(
    "LoopBlocked",
    "handler seconds",
    WARNING,
    "the event loop has been blocked for {seconds:.1f} s by {handler}, so that no other async handler of this worker runs; "
    "do blocking work in a sync handler, or with `await asyncio.to_thread(...)`",
)
"""The event loop of a worker has not run for a second; `handler` is the one whose code it executes, if it is known."""
StoreTrouble = _event(
    "StoreTrouble", "doing error again_in", WARNING, "store error while {doing}: {error}; retry in {again_in:.1f} s"
)
StoreBack = _event("StoreBack", "doing", INFO, "store available again: {doing}")
LoopError = _event("LoopError", "loop error", ERROR, "{loop}: {error}")
ClockJumped = _event(
    "ClockJumped", "by_ms quiet_for", WARNING, "the store's clock jumped by {by_ms} ms; no lease expires for {quiet_for} ms"
)
MetricsServed = _event("MetricsServed", "url", INFO, "metrics are served at {url}")
ShortLease = _event(
    "ShortLease",
    "lease_for",
    WARNING,
    "a lease of {lease_for} ms is for demos and tests: a short pause of this process looks like a crash; use 30 to 120 s",
)
Operated = _event("Operated", "act actor", INFO, "{act}, by {actor}")
"""An operator changed a list, a queue or a limit."""
WatcherTrouble = _event("WatcherTrouble", "name error", WARNING, "watcher {name}: {error} It will try again.")
"""A watcher cannot scan, or only in part; emitted once."""
WatcherBack = _event("WatcherBack", "name", INFO, "watcher {name} can scan again")
PollingStarted = _event("PollingStarted", "tick_seconds", INFO, "external_polling_loop.started tick_seconds={tick_seconds:g}")
"""A worker polls the jobs of specialists."""
PollingStopped = _event("PollingStopped", "", INFO, "external_polling_loop.stopped")
TickFailed = _event("TickFailed", "error", ERROR, "external_polling_loop.tick_failed {error}")
PollRaised = _event(
    "PollRaised",
    "task_id name error",
    WARNING,
    "external_polling_loop.poll_raised render_job_id={task_id} declared_render_type_id={name} exc={error}",
)
"""A poll of an external job raised; it is repeated after the interval."""
PollsFailing = _event(
    "PollsFailing",
    "task_id name in_row error",
    WARNING,
    "task {task_id} ({name}): {in_row} polls in a row raised, its service or specialist may be broken: {error}",
)
ExternalHint = _event("ExternalHint", "task_id name hint", INFO, "task {task_id} ({name}): {hint}")
"""The progress hint of an external service."""
