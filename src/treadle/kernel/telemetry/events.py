"""Typed events that the engine emits. `log_event` alone defines their wording and levels."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar

import msgspec

from treadle.model.names import DEFAULT_LIST, HANDLER
from treadle.model.tasks import Task
from treadle.model.text import safe_logger
from treadle.model.values import decode

_log = safe_logger("treadle")

current_attempt: ContextVar[tuple[str, str | None] | None] = ContextVar("current_attempt", default=None)
"""The task and trace of the running code, for its log lines."""


class WorkerStarted(msgspec.Struct, frozen=True):
    owner_id: str
    handlers: tuple[str, ...]


class WorkerStopped(msgspec.Struct, frozen=True):
    owner_id: str
    handled: int
    released: int


class TaskTaken(msgspec.Struct, frozen=True, gc=False):
    task_id: str
    name: str
    attempt: int
    trace_id: str | None = None


class TaskSettled(msgspec.Struct, frozen=True, gc=False):
    task_id: str
    name: str
    move: str
    attempt: int
    took_ms: float
    error: str | None = None
    """The task's last error as JSON."""
    kind: str = HANDLER
    task_list: str = DEFAULT_LIST
    trace_id: str | None = None

    @staticmethod
    def of(task: Task, move: str, took_ms: float, error: str | None) -> TaskSettled:
        """The event of a move that an attempt of the task made."""
        return TaskSettled(task.id, task.name, move, task.attempt, took_ms, error, task.kind, task.task_list, task.trace_id)


class LeaseLost(msgspec.Struct, frozen=True):
    task_id: str
    name: str
    reason: str
    trace_id: str | None = None


class ResultDropped(msgspec.Struct, frozen=True):
    task_id: str
    name: str
    move: str
    trace_id: str | None = None


class LeasesExpired(msgspec.Struct, frozen=True):
    count: int


class PresumedDead(msgspec.Struct, frozen=True):
    """This process recorded the death of another server, before its leases expired."""

    server_id: str
    name: str
    evidence: str
    leases: int
    """Leases that the dead server held."""


class WronglyPresumedDead(msgspec.Struct, frozen=True):
    """Another server took this one for dead; the work that it held was taken over."""

    evidence: str


class InterpreterHeld(msgspec.Struct, frozen=True):
    """A handler held the interpreter lock of this process; the lease keeper renewed its leases meanwhile."""

    handler: str | None
    seconds: float
    kept: int
    """Leases that the keeper renewed."""
    text: str


class StoreTrouble(msgspec.Struct, frozen=True):
    doing: str
    error: str
    again_in: float


class StoreBack(msgspec.Struct, frozen=True):
    doing: str


class LoopError(msgspec.Struct, frozen=True):
    loop: str
    error: str


class ClockJumped(msgspec.Struct, frozen=True):
    by_ms: int
    quiet_for: int


class MetricsServed(msgspec.Struct, frozen=True):
    """This process serves metrics."""

    url: str


class ShortLease(msgspec.Struct, frozen=True):
    lease_for: int


class Recovered(msgspec.Struct, frozen=True):
    """A start-up found work of earlier processes and recovered it."""

    expired_leases: int
    own_tasks: int
    unknown_effects: int
    orphaned_approvals: int
    missed: tuple[str, ...] = ()


class Operated(msgspec.Struct, frozen=True):
    """An operator changed a list, a lane or a limit."""

    act: str
    actor: str


class DeclarationSynced(msgspec.Struct, frozen=True):
    """A limit or schedule that a program declares was applied, or could not be (`kept`)."""

    program: str
    release: str
    text: str
    kept: bool


class WatcherTrouble(msgspec.Struct, frozen=True):
    """A watcher cannot scan, or only in part; emitted once."""

    name: str
    error: str


class WatcherBack(msgspec.Struct, frozen=True):
    name: str


class PollingStarted(msgspec.Struct, frozen=True):
    """A worker polls the jobs of specialists."""

    tick_seconds: float


class PollingStopped(msgspec.Struct, frozen=True):
    pass


class PollRaised(msgspec.Struct, frozen=True):
    """A poll of an external job raised; it is repeated after the interval."""

    task_id: str
    name: str
    error: str


class PollsFailing(msgspec.Struct, frozen=True):
    """Several polls of an external job in a row raised."""

    task_id: str
    name: str
    in_row: int
    error: str


class TickFailed(msgspec.Struct, frozen=True):
    error: str


class ExternalHint(msgspec.Struct, frozen=True):
    """The progress hint of an external service."""

    task_id: str
    name: str
    hint: str


Event = (
    PollingStarted
    | PollingStopped
    | PollRaised
    | PollsFailing
    | TickFailed
    | ExternalHint
    | WorkerStarted
    | WorkerStopped
    | TaskTaken
    | TaskSettled
    | LeaseLost
    | ResultDropped
    | LeasesExpired
    | PresumedDead
    | WronglyPresumedDead
    | InterpreterHeld
    | StoreTrouble
    | StoreBack
    | LoopError
    | ClockJumped
    | MetricsServed
    | ShortLease
    | Recovered
    | Operated
    | DeclarationSynced
    | WatcherTrouble
    | WatcherBack
)
Emit = Callable[[Event], None]


def log_event(event: Event) -> None:
    """The default subscriber: one line per event, through the logger `treadle`."""
    level, text = _words(event)
    if _log.isEnabledFor(level):
        _log.log(level, text, extra={"treadle_event": event})


def _words(event: Event) -> tuple[int, str]:
    match event:
        case WorkerStarted(owner_id, handlers):
            return logging.INFO, f"worker {owner_id} started for {', '.join(handlers) or 'no handlers'}"
        case WorkerStopped(owner_id, handled, released):
            return logging.INFO, f"worker {owner_id} stopped: {handled} handled, {released} released"
        case TaskTaken(task_id, name, attempt):
            return logging.DEBUG, f"task {task_id} ({name}) claimed, attempt {attempt}"
        case TaskSettled(task_id, name, move, attempt, took_ms, error):
            text = f"task {task_id} ({name}) attempt {attempt}, {took_ms:.0f} ms: {move}"
            if error is None or move not in ("fail", "retry"):
                return logging.DEBUG, text
            problem = decode(error)
            return logging.ERROR if move == "fail" else logging.WARNING, f"{text}: {problem['message']} ({problem['code']})"
        case PollingStarted(tick_seconds):
            return logging.INFO, f"external_polling_loop.started tick_seconds={tick_seconds:g}"
        case PollingStopped():
            return logging.INFO, "external_polling_loop.stopped"
        case PollRaised(task_id, name, error):
            text = f"render_job_id={task_id} declared_render_type_id={name} exc={error}"
            return logging.WARNING, f"external_polling_loop.poll_raised {text}"
        case PollsFailing(task_id, name, in_row, error):
            text = f"{in_row} polls in a row raised, its service or specialist may be broken: {error}"
            return logging.WARNING, f"task {task_id} ({name}): {text}"
        case TickFailed(error):
            return logging.ERROR, f"external_polling_loop.tick_failed {error}"
        case ExternalHint(task_id, name, hint):
            return logging.INFO, f"task {task_id} ({name}): {hint}"
        case LeaseLost(task_id, name, reason):
            return logging.WARNING, f"task {task_id} ({name}) lost its lease: {reason}; stopping its handler"
        case ResultDropped(task_id, name, move):
            return logging.WARNING, f"task {task_id} ({name}): late {move} dropped, the claim was lost"
        case LeasesExpired(count):
            return logging.WARNING, f"{count} lease(s) expired; their tasks are ready for other workers"
        case PresumedDead(server_id, name, evidence, leases):
            return logging.WARNING, f"server {name} ({server_id}) is dead: {evidence}; {leases} lease(s) end now"
        case WronglyPresumedDead(evidence):
            return logging.WARNING, (
                f"another server took this one for dead ({evidence}) and its work was taken over; this evidence does not count "
                "for the next 10 minutes"
            )
        case InterpreterHeld(_, _, kept, text):
            return logging.WARNING, f"{text}; the lease keeper renewed {kept} lease(s) meanwhile"
        case StoreTrouble(doing, error, again_in):
            return logging.WARNING, f"store error while {doing}: {error}; retry in {again_in:.1f} s"
        case StoreBack(doing):
            return logging.INFO, f"store available again: {doing}"
        case LoopError(loop, error):
            return logging.ERROR, f"{loop}: {error}"
        case ClockJumped(by_ms, quiet_for):
            return logging.WARNING, f"the store's clock jumped by {by_ms} ms; no lease expires for {quiet_for} ms"
        case Recovered(expired_leases, own_tasks, unknown_effects, orphaned_approvals, missed):
            return logging.WARNING, (
                f"recovered: {expired_leases} expired lease(s), {own_tasks} task(s) of dead processes of this machine, "
                f"{unknown_effects} effect(s) with an unknown outcome, {orphaned_approvals} approval(s) without a task"
                + "".join(f"; {each}" for each in missed)
            )
        case WatcherTrouble(name, error):
            return logging.WARNING, f"watcher {name}: {error} It will try again."
        case WatcherBack(name):
            return logging.INFO, f"watcher {name} can scan again"
        case DeclarationSynced(program, release, text, kept):
            return logging.WARNING if kept else logging.INFO, f"program {program}, release {release}: {text}"
        case Operated(act, actor):
            return logging.INFO, f"{act}, by {actor}"
        case MetricsServed(url):
            return logging.INFO, f"metrics are served at {url}"
        case ShortLease(lease_for):
            return logging.WARNING, (
                f"a lease of {lease_for / 1000:g} s is for demos and tests: a short pause of this process looks like a crash; "
                "use 30 to 120 s"
            )
