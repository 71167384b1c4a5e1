"""The state machines of all durable entities, each as one table; SQL checks, docs and diagrams are generated from it.

Theory. An entity has a *stored* state and a count of the transitions it has made (its version). A transition is a named change of
state; `transitions[(state, transition)]` is its target, and transitions that are not in the table cannot happen. The log has one
row for each transition: contiguous versions, each row starting where the previous one ended, the last one ending in the stored
state. `verify` checks this in the same way for every machine.

A task's `running` is not stored: a task runs while it has an owner. Claiming it writes no transition (the settle that follows
does); transitions in `HELD_TRANSITIONS` need that owner. `paused` is not stored either: it is a bit of `blocked_by`. A worker that
dies therefore leaves nothing to repair: its lease expires, and `expire` returns the task to its state before the claim.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class TaskState(StrEnum):
    PENDING = "pending"
    AWAITING_EXTERNAL = "awaiting_external"
    AWAITING_APPROVAL = "awaiting_approval"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    IGNORED = "ignored"
    # Displayed, never stored:
    RUNNING = "running"
    PAUSED = "paused"


class RunState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


class StepState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    # Displayed, never stored:
    PAUSED = "paused"
    CANCELED = "canceled"


class BlockReason:
    """Bits of a task's `blocked_by`: while one is set, no worker may claim the task."""

    OVER_LIMIT = 1
    LIST_PAUSED = 2
    RUN_PAUSED = 4
    TASK_PAUSED = 8


class StateMachine(msgspec.Struct, frozen=True):
    """A state machine: the initial state, the transitions, and the final states."""

    entity: str
    initial: str
    final: frozenset[str]
    transitions: dict[tuple[str, str], str]

    @property
    def states(self) -> tuple[str, ...]:
        """All stored states, in the order of the table."""
        seen = dict.fromkeys([self.initial])
        for (source, _), target in self.transitions.items():
            seen |= dict.fromkeys([source, target])
        return tuple(seen)

    def target(self, state: str, transition: str) -> str | None:
        """Return the state after the transition, or None if the transition is impossible."""
        return self.transitions.get((state, transition))

    def possible(self, state: str) -> tuple[str, ...]:
        """Return the transitions that are possible from the state."""
        return tuple(transition for source, transition in self.transitions if source == state)


LIVE_TASK_STATES = (TaskState.PENDING, TaskState.AWAITING_EXTERNAL, TaskState.AWAITING_APPROVAL)
TASK_ACTIVITIES = ("ready", "running", "waiting", "blocked")
"""The words under which lists count live tasks: for a worker, by a worker, until an instant, by a pause or limit."""
SHOWN_LIVE_STATES = (*LIVE_TASK_STATES, TaskState.RUNNING, TaskState.PAUSED)
"""The states as shown of tasks that have not ended."""
FINAL_TASK_STATES = (TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.IGNORED)

_P, _X, _A = LIVE_TASK_STATES
_DONE, _FAILED, _CANCELED, _IGNORED = FINAL_TASK_STATES

TASK_TRANSITIONS: dict[tuple[str, str], str] = {
    # outcomes of an attempt
    (_P, "succeed"): _DONE,
    (_P, "fail"): _FAILED,
    (_P, "retry"): _P,
    (_P, "wait"): _P,
    (_P, "hand_off"): _X,
    (_P, "ask"): _A,
    (_P, "release"): _P,
    (_P, "expire"): _P,
    (_P, "tool_call.unknown"): _P,
    # outcomes of a poll of an external job
    (_X, "succeed"): _DONE,
    (_X, "fail"): _FAILED,
    (_X, "still_working"): _X,
    (_X, "release"): _X,
    (_X, "expire"): _X,
    # outcomes of a question to a person
    (_A, "approve"): _P,
    (_A, "deny"): _FAILED,
    (_A, "fail"): _FAILED,
    (_A, "ask"): _A,
    (_A, "release"): _A,
    (_A, "expire"): _A,
    # operator actions
    (_P, "cancel"): _CANCELED,
    (_X, "cancel"): _CANCELED,
    (_A, "cancel"): _CANCELED,
    (_P, "pause"): _P,
    (_X, "pause"): _X,
    (_A, "pause"): _A,
    (_P, "resume"): _P,
    (_X, "resume"): _X,
    (_A, "resume"): _A,
    (_P, "reschedule"): _P,
    (_P, "ignore"): _IGNORED,
    (_FAILED, "requeue"): _P,
    (_CANCELED, "requeue"): _P,
    (_IGNORED, "requeue"): _P,
    (_FAILED, "discard"): _CANCELED,
}

HELD_TRANSITIONS = frozenset(
    {"succeed", "fail", "retry", "wait", "hand_off", "still_working", "ask", "release", "expire", "tool_call.unknown"}
)
"""Transitions that need an owner: the holder of the claim makes them, or (`expire`) the expiry of its lease."""

TASK = StateMachine("task", _P, frozenset(FINAL_TASK_STATES), TASK_TRANSITIONS)

RUN = StateMachine(
    "run",
    RunState.PENDING,
    frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELED}),
    {
        (RunState.PENDING, "start"): RunState.RUNNING,
        (RunState.RUNNING, "succeed"): RunState.COMPLETED,
        (RunState.RUNNING, "fail"): RunState.FAILED,
        (RunState.RUNNING, "pause"): RunState.PAUSED,
        (RunState.PAUSED, "resume"): RunState.RUNNING,
        (RunState.PENDING, "cancel"): RunState.CANCELED,
        (RunState.RUNNING, "cancel"): RunState.CANCELED,
        (RunState.PAUSED, "cancel"): RunState.CANCELED,
        (RunState.FAILED, "retry"): RunState.RUNNING,
        (RunState.CANCELED, "reopen"): RunState.RUNNING,
        (RunState.RUNNING, "repair"): RunState.RUNNING,
    },
)

STEP = StateMachine(
    "step",
    StepState.PENDING,
    frozenset({StepState.COMPLETED, StepState.FAILED, StepState.CANCELED}),
    {
        (StepState.PENDING, "start"): StepState.RUNNING,
        (StepState.RUNNING, "succeed"): StepState.COMPLETED,
        (StepState.RUNNING, "fail"): StepState.FAILED,
        (StepState.RUNNING, "retry"): StepState.PENDING,
        (StepState.PENDING, "pause"): StepState.PAUSED,
        (StepState.RUNNING, "pause"): StepState.PAUSED,
        (StepState.PAUSED, "resume"): StepState.PENDING,
        (StepState.PENDING, "cancel"): StepState.CANCELED,
        (StepState.RUNNING, "cancel"): StepState.CANCELED,
        (StepState.PAUSED, "cancel"): StepState.CANCELED,
        (StepState.FAILED, "retry"): StepState.PENDING,
    },
)
"""A step pauses, resumes and is canceled with its run or its task: an open step shows that, and its row does not change. A step
whose code still executes after a pause is running; one without code (a block, a wait) is running again once it is resumed."""

APPROVAL = StateMachine(
    "approval",
    "pending",
    frozenset({"approved", "denied", "expired", "canceled"}),
    {
        ("pending", "vote"): "pending",
        ("pending", "remind"): "pending",
        ("pending", "escalate"): "pending",
        ("pending", "approve"): "approved",
        ("pending", "deny"): "denied",
        ("pending", "expire"): "expired",
        ("pending", "cancel"): "canceled",
    },
)

_ACTIVE_OR_PAUSED: dict[tuple[str, str], str] = {
    ("active", "create"): "active",
    ("active", "edit"): "active",
    ("paused", "edit"): "paused",
    ("active", "pause"): "paused",
    ("paused", "resume"): "active",
    ("active", "remove"): "removed",
    ("paused", "remove"): "removed",
}

SCHEDULE = StateMachine(
    "schedule",
    "active",
    frozenset({"finished", "removed"}),
    {
        **_ACTIVE_OR_PAUSED,
        ("active", "fire"): "active",
        ("paused", "fire"): "paused",
        ("active", "finish"): "finished",
    },
)

WATCHER = StateMachine("watcher", "active", frozenset({"removed"}), {**_ACTIVE_OR_PAUSED, ("active", "fire"): "active"})

ALERT_RULE = StateMachine(
    "alert_rule",
    "active",
    frozenset({"removed"}),
    {
        ("active", "create"): "active",
        ("active", "edit"): "active",
        ("active", "silence"): "active",
        ("active", "remove"): "removed",
    },
)

ALERT = StateMachine("alert", "firing", frozenset({"resolved"}), {("firing", "resolve"): "resolved"})
"""One cause of a rule, from the time it has lasted long enough until it is gone."""

EXTERNAL = StateMachine(
    "external_production_record",
    "live",
    frozenset({"ended"}),
    {
        ("live", "external_production_dispatched"): "live",
        ("live", "external_production_polled"): "live",
        ("live", "external_production_resolved"): "ended",
    },
)
"""The record of an external job: live until the job is resolved. The outcome of the job is in its task."""

PRODUCTION = StateMachine("render_event", "produced", frozenset({"produced"}), {})
"""The product of an external job; it is stored once, and makes no transition."""

TOKEN = StateMachine(
    "token",
    "new",
    frozenset({"revoked", "expired"}),
    {("new", "create"): "active", ("active", "revoke"): "revoked", ("active", "expire"): "expired"},
)
"""A token is created in one commit with its first transition, so the log names its creator. It is unusable as soon as it expires;
the next cleanup writes `expire`."""

SESSION = StateMachine(
    "session",
    "new",
    frozenset({"closed", "expired"}),
    {("new", "open"): "open", ("open", "close"): "closed", ("open", "expire"): "expired"},
)
"""A dashboard session. It is unusable without its token and after its expiry, which `expire` records later."""

REQUEST = StateMachine("request", "kept", frozenset({"kept"}), {})
"""A request with an idempotency key, and its response: it makes no transitions, and is pruned when its time has passed."""

DECLARATIONS = StateMachine("declarations", "current", frozenset(), {("current", "sync"): "current"})
"""The limits and schedules that programs declare in code; one record per namespace. Each change of it is a transition."""

PARAMETERS = StateMachine("parameters", "current", frozenset(), {("current", "change"): "current"})
"""The parameters of a handler or function, as workers registered them; one record per name."""

THREAD = StateMachine("thread", "kept", frozenset({"removed"}), {("kept", "remove"): "removed"})
"""The checkpoints of one thread of an agent framework; they are items of the record, and its task is the writer."""

OPERATION = StateMachine("operation", "done", frozenset({"done"}), {("done", "perform"): "done"})
"""An operator's change of something without a history of its own, such as a setting; written in one commit with the change."""

OBJECTIVE = StateMachine(
    "objective",
    "NEW",
    frozenset({"DONE"}),
    {
        ("NEW", "edit"): "NEW",
        ("NEW", "review"): "NEW",
        ("NEW", "resolve"): "NEW",
        ("NEW", "approve"): "TODO",
        ("TODO", "edit"): "TODO",
        ("TODO", "resolve"): "TODO",
        ("TODO", "overdue"): "TODO",
        ("TODO", "schedule"): "IN_PROGRESS",
        ("TODO", "block"): "BLOCKED",
        ("IN_PROGRESS", "edit"): "IN_PROGRESS",
        ("IN_PROGRESS", "overdue"): "IN_PROGRESS",
        ("IN_PROGRESS", "pass"): "DONE",
        ("IN_PROGRESS", "fail"): "TODO",
        ("IN_PROGRESS", "give_up"): "BLOCKED",
        ("BLOCKED", "edit"): "BLOCKED",
        ("BLOCKED", "resolve"): "BLOCKED",
        ("BLOCKED", "overdue"): "BLOCKED",
        ("BLOCKED", "unblock"): "TODO",
    },
)

READINESS_EVENT = StateMachine(
    "readiness_event", "unprocessed", frozenset({"processed"}), {("unprocessed", "process"): "processed"}
)

WORKORDER = StateMachine("workorder", "CREATED", frozenset({"EXECUTED"}), {("CREATED", "execute"): "EXECUTED"})


def _written_once(entity: str) -> StateMachine:
    """Return the machine of an immutable entity: the database refuses every update."""
    return StateMachine(entity, "written", frozenset({"written"}), {})


CONTEXT_SNAPSHOT = _written_once("context_snapshot")
OUTPUT_BUNDLE = _written_once("output_bundle")
RUN_RECORD = _written_once("run_record")
PAUSE_STATE = _written_once("pause_state")

GOAL_MACHINES = (OBJECTIVE, READINESS_EVENT, WORKORDER, CONTEXT_SNAPSHOT, OUTPUT_BUNDLE, RUN_RECORD, PAUSE_STATE)

MACHINES: dict[str, StateMachine] = {
    machine.entity: machine
    for machine in (
        TASK,
        RUN,
        STEP,
        APPROVAL,
        SCHEDULE,
        WATCHER,
        ALERT_RULE,
        ALERT,
        EXTERNAL,
        PRODUCTION,
        TOKEN,
        SESSION,
        REQUEST,
        DECLARATIONS,
        PARAMETERS,
        THREAD,
        OPERATION,
        *GOAL_MACHINES,
    )
}
