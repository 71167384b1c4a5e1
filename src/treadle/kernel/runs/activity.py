"""The activity of a run, from the live tasks that the store has counted by activity. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.kernel.functions.waits import read_waits
from treadle.kernel.store.queries import OpenWork
from treadle.model.activity import RANKS, Doing, words
from treadle.model.clock import as_text
from treadle.model.runs import Run
from treadle.model.states import Hold, RunState
from treadle.model.tasks import Task


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity of an unfinished run: the most important part of its open work, and the amount of all of it."""

    doing: Doing
    text: str
    counts: dict[str, int]
    until: int | None = None
    name: str | None = None
    id: str | None = None


def activity_of(run: Run, work: Sequence[OpenWork]) -> Activity | None:
    """The activity of a run with this open work; None for a finished run."""
    if run.finished:
        return None
    ranked = sorted(work, key=lambda each: RANKS[each.doing])
    counts: Counter[str] = Counter()
    for each in ranked:
        note = read_waits(each.task)
        own = {} if note is None else note.counts
        counts.update({str(doing): count for doing, count in own.items() if doing != Doing.WAITING_FOR_TASK})
        if each.count > bool(own):
            counts[str(each.doing)] += each.count - bool(own)
    if run.state == RunState.PAUSED:
        return Activity(Doing.HELD, "paused", dict(counts))
    if not ranked:
        return Activity(Doing.STUCK, "stuck: it has no live task", {})
    first = ranked[0]
    text, until, name, found = _described(first)
    if len(counts) > 1:
        others = [f"{count} {words(doing)}" for doing, count in counts.items() if doing != first.doing]
        text += f" (also {', '.join(others)})"
    return Activity(first.doing, text, dict(counts), until, name, found)


def _described(work: OpenWork) -> tuple[str, int | None, str | None, str | None]:
    """The text of the first task of an activity, its time, its name, and the id of what it waits for."""
    task, note = work.task, read_waits(work.task)
    name = task.name if note is None else note.name
    until = task.wake_at if note is None else note.until
    match work.doing:
        case Doing.RUNNING:
            return f"running {name}", None, name, task.id
        case Doing.WAITING_FOR_APPROVAL:
            return f"waiting for a person: approval {work.record_id}", None, name, work.record_id
        case Doing.WAITING_FOR_SIGNAL:
            return f"waiting for the signal {name}{_until(until)}", until, name, None
        case Doing.WAITING_FOR_EXTERNAL_JOB:
            poll = "" if until is None else f"; next poll at {as_text(until)}"
            return f"waiting for an external job of {name}{poll}", until, name, work.record_id
        case Doing.WAITING_FOR_CHILD:
            child = None if note is None else note.child_id
            return "waiting for a run" if child is None else f"waiting for the run {child}", None, name, child
        case Doing.RETRYING:
            return f"retrying {name} at {as_text(until)}", until, name, task.id
        case Doing.SLEEPING:
            return f"sleeping{_until(until)}", until, name, task.id
        case Doing.HELD:
            return _held(task), None, name, task.id
        case _:
            return f"{name}: {words(work.doing)}", None, name, task.id


def _until(at: int | None) -> str:
    return "" if at is None else f" until {as_text(at)}"


def _held(task: Task) -> str:
    if task.hold & Hold.TASK_PAUSED:
        return f"paused: the task {task.name}"
    if task.hold & Hold.OVER_LIMIT and not task.hold & Hold.LIST_PAUSED:
        return f"waiting for a slot under the limit of {task.limit_key or task.name}"
    return f"paused: the task list {task.task_list}"
