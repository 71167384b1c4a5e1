"""Runs and their steps for display: activities, states, times and time spans; derived from runs, tasks and their log. Pure.

Rows record only whether a step is open, completed or failed. The rest follows from the run and the live tasks: an open step
whose task waits for a worker or a retry is pending, one whose run is paused is paused, and one whose run has ended is canceled.
Claims write nothing, so only the start of the last claim of a task is known: time spans of earlier ones are `mixed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from treadle.api.runs import Activity
from treadle.api.steps import SpanKind, TimeSpan
from treadle.api.wire import Instant
from treadle.evaluator import StepRow
from treadle.kernel.functions.notes import read_steps, read_waits
from treadle.kernel.functions.reads import FunctionStepRow, shown_row
from treadle.kernel.functions.steps import Recorded
from treadle.kernel.store.queries import OpenWork, StepTask
from treadle.model.clock import as_text
from treadle.model.runs import RANKS, ActivityKind, Run, Step, words
from treadle.model.states import HELD_TRANSITIONS, RUN, BlockReason, RunState, StepState, TaskState
from treadle.model.tasks import Task, Transition
from treadle.model.values import arguments_text

ENDED = (StepState.COMPLETED, StepState.FAILED, StepState.CANCELED)


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A step with its state, its times, and the last attempt at it."""

    row: StepRow
    created_at: int
    updated_at: int
    state: StepState
    began_at: int
    """When its last attempt began, as far as it is known; otherwise when it was created."""
    ended_at: int | None = None
    took_for: int | None = None
    """Its duration, without the time before a retry of its run."""
    attempt: int | None = None
    worker: str | None = None
    """The server that executes it."""

    @property
    def about(self) -> str:
        """Its arguments in one line; for an item, the item."""
        return self.row.about if isinstance(self.row, FunctionStepRow) else arguments_text(self.row.loop or self.row.params)


@dataclass(frozen=True, slots=True)
class RunWork:
    """A run with live tasks of its steps, the function's steps in progress, and the times in which it had failed."""

    run: Run
    tasks: dict[str, StepTask] = field(default_factory=dict)
    in_progress: dict[str, Recorded] = field(default_factory=dict)
    worker: str | None = None
    gaps: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, run: Run, own: Task | None, transitions: Sequence[Transition]) -> RunWork:
        """`own` is the claimed task of a function's run, and `transitions` are those of the run itself."""
        executing = {} if own is None else {step.id: step for step in read_steps(own)}
        return cls(run, {}, executing, None if own is None else own.owner_id, _gaps(transitions))

    def at(self, tasks: Sequence[StepTask]) -> RunWork:
        """The same with these live tasks."""
        return replace(self, tasks={task.step_id: task for task in tasks})

    def show(self, step: Step, row: StepRow) -> ShownStep:
        """The step as far as live tasks show it; `finish` adds its finished task."""
        task, executing = self.tasks.get(row.id), self.in_progress.get(row.id)
        state = self.state_of(row.id, row.status)
        began_at, attempt, worker = step.created_at, None, None
        ended_at = step.updated_at if row.status in ENDED else None
        if isinstance(row, FunctionStepRow):
            began_at = row.began_at or began_at
            ended_at = None if ended_at is None else row.ended_at or ended_at
        if executing is not None and ended_at is None:
            began_at, attempt, worker = executing.began_at or began_at, executing.attempt, self.worker
        elif task is not None and ended_at is None:
            attempt, worker = task.attempt, task.owner_id
            if task.owner_id is not None and task.claimed_at is not None and task.state == TaskState.PENDING:
                began_at = task.claimed_at
        return ShownStep(
            row, step.created_at, step.updated_at, state, began_at, ended_at, self._took(began_at, ended_at), attempt, worker
        )

    def finish(self, shown: ShownStep, task: Task) -> ShownStep:
        """The ended step with the times of its finished task: those of the last attempt, if the task ended with one."""
        began_at, ended_at = shown.began_at, task.finished_at
        if task.claimed_at is not None and task.from_state == TaskState.PENDING and task.transition in ("succeed", "fail"):
            began_at = task.claimed_at
        took_for = self._took(began_at, ended_at)
        return ShownStep(
            shown.row, shown.created_at, shown.updated_at, shown.state, began_at, ended_at, took_for, task.attempt, task.owner_id
        )

    def show_unrecorded(self) -> list[ShownStep]:
        """The function's steps in progress, none of which may have a row."""
        steps = []
        for step in self.in_progress.values():
            row, began_at = shown_row(step, self.run.id), step.began_at or 0
            steps.append(ShownStep(row, began_at, began_at, StepState.RUNNING, began_at, None, None, step.attempt, self.worker))
        return steps

    def state_of(self, step_id: str, status: StepState) -> StepState:
        """The state of a step whose row records this status."""
        if status in ENDED:
            return status
        if self.run.finished:
            return StepState.CANCELED
        task = self.tasks.get(step_id)
        if step_id in self.in_progress or (task is not None and task.owner_id is not None):
            return StepState.RUNNING
        if self.run.state == RunState.PAUSED or (task is not None and task.blocked_by & ~BlockReason.OVER_LIMIT):
            return StepState.PAUSED
        if task is not None:
            return StepState.PENDING if task.state == TaskState.PENDING else StepState.RUNNING
        return status

    def _took(self, began_at: int, ended_at: int | None) -> int | None:
        if ended_at is None:
            return None
        return worked_for(began_at, ended_at, self.gaps)


def worked_for(began_at: int, ended_at: int, gaps: Sequence[tuple[int, int]]) -> int:
    """Milliseconds between two instants, without the gaps."""
    lost = sum(max(min(until, ended_at) - max(since, began_at), 0) for since, until in gaps)
    return max(ended_at - began_at - lost, 0)


def _gaps(transitions: Sequence[Transition]) -> tuple[tuple[int, int], ...]:
    """The times between an end of the run and the retry that continued it."""
    return tuple((end.at, again.at) for end, again in pairwise(transitions) if end.to_state in RUN.final)


def took_for(run: Run, transitions: Sequence[Transition]) -> int | None:
    """The duration of a finished run, without the time between its failures and their retries."""
    return None if run.finished_at is None else worked_for(run.created_at, run.finished_at, _gaps(transitions))


def activity_of(run: Run, work: Sequence[OpenWork]) -> Activity | None:
    """The activity of a run with this open work; None for a finished run."""
    if run.finished:
        return None
    ranked = sorted(work, key=lambda group: RANKS[group.activity])
    counts: Counter[str] = Counter()
    for group in ranked:
        note = read_waits(group.task)
        own = {} if note is None else note.counts
        counts.update({str(activity): count for activity, count in own.items() if activity != ActivityKind.WAITING_FOR_TASK})
        if group.count > bool(own):
            counts[str(group.activity)] += group.count - bool(own)
    if run.state == RunState.PAUSED:
        return Activity(ActivityKind.BLOCKED, "paused", None, None, None, dict(counts))
    if not ranked:
        return Activity(ActivityKind.STUCK, "stuck: it has no live task", None, None, None, {})
    first = ranked[0]
    text, until, name, waits_for = _described(first)
    if len(counts) > 1:
        others = [f"{count} {words(activity)}" for activity, count in counts.items() if activity != first.activity]
        text += f" (also {', '.join(others)})"
    return Activity(first.activity, text, None if until is None else Instant.of(until), name, waits_for, dict(counts))


def _described(work: OpenWork) -> tuple[str, int | None, str | None, str | None]:
    """The text of the first task of an activity, its time, its name, and the id of what it waits for."""
    task, note = work.task, read_waits(work.task)
    name = task.name if note is None else note.name
    until = task.wake_at if note is None else note.until
    match work.activity:
        case ActivityKind.RUNNING:
            return f"running {name}", None, name, task.id
        case ActivityKind.WAITING_FOR_APPROVAL:
            return f"waiting for a person: approval {work.record_id}", None, name, work.record_id
        case ActivityKind.WAITING_FOR_SIGNAL:
            return f"waiting for the signal {name}{_until(until)}", until, name, None
        case ActivityKind.WAITING_FOR_EXTERNAL_JOB:
            poll = "" if until is None else f"; next poll at {as_text(until)}"
            return f"waiting for an external job of {name}{poll}", until, name, work.record_id
        case ActivityKind.WAITING_FOR_CHILD:
            child = None if note is None else note.child_id
            return "waiting for a run" if child is None else f"waiting for the run {child}", None, name, child
        case ActivityKind.RETRYING:
            return f"retrying {name} at {as_text(until)}", until, name, task.id
        case ActivityKind.SLEEPING:
            return f"sleeping{_until(until)}", until, name, task.id
        case ActivityKind.BLOCKED:
            return _blocked(task), None, name, task.id
        case _:
            return f"{name}: {words(work.activity)}", None, name, task.id


def _until(at: int | None) -> str:
    return "" if at is None else f" until {as_text(at)}"


def _blocked(task: Task) -> str:
    if task.blocked_by & BlockReason.TASK_PAUSED:
        return f"paused: the task {task.name}"
    if task.blocked_by & BlockReason.OVER_LIMIT and not task.blocked_by & BlockReason.LIST_PAUSED:
        return f"waiting for a slot under the limit of {task.limit_key or task.name}"
    return f"paused: the task list {task.task_list}"


_AWAITING: dict[str, SpanKind] = {TaskState.AWAITING_EXTERNAL: "outside", TaskState.AWAITING_APPROVAL: "approval"}


def needs_transitions(task: Task) -> bool:
    """Whether the task's row alone is not enough."""
    return task.version > (1 if task.finished else 0)


def spans(task: Task, transitions: Sequence[Transition] = ()) -> list[TimeSpan]:
    """The spans of a task in order; `transitions` are required if `needs_transitions` is true."""
    time_spans: list[TimeSpan] = []
    at = task.created_at
    for transition in transitions if needs_transitions(task) else ():
        time_spans += _spans_until(task, at, transition.from_state, transition.transition, transition.at)
        at = transition.at
    if not needs_transitions(task) and task.finished_at is not None:
        time_spans += _spans_until(task, at, task.from_state or TaskState.PENDING, task.transition or "", task.finished_at)
    elif not task.finished:
        time_spans += _spans_until(task, at, task.state, "" if task.owner_id is None else "held", None)
    return [span for span in time_spans if span.kind != "waiting" or span.ended_at is None or span.ended_at > span.began_at]


def _spans_until(task: Task, began_at: int, state: str, transition: str, ended_at: int | None) -> list[TimeSpan]:
    """The span between two transitions."""
    if state in _AWAITING:
        return [_span(_AWAITING[state], began_at, ended_at)]
    if transition not in HELD_TRANSITIONS and transition != "held":
        return [_span("waiting", began_at, ended_at)]
    claimed_at = task.claimed_at
    if claimed_at is not None and began_at <= claimed_at and (ended_at is None or claimed_at <= ended_at):
        return [_span("waiting", began_at, claimed_at), _span("running", claimed_at, ended_at)]
    return [_span("mixed", began_at, ended_at)]


def _span(kind: SpanKind, began_at: int, ended_at: int | None) -> TimeSpan:
    return TimeSpan(kind, Instant.of(began_at), None if ended_at is None else Instant.of(ended_at))
