"""The activity of an unfinished run: what it is doing or waiting for, in one word, derived from its live tasks."""

from __future__ import annotations

from enum import StrEnum


class Doing(StrEnum):
    """Activities in order of precedence: a run with several kinds of open work shows the first of them."""

    RUNNING = "running"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_SIGNAL = "waiting_for_signal"
    WAITING_FOR_EXTERNAL_JOB = "waiting_for_external_job"
    WAITING_FOR_CHILD = "waiting_for_child"
    RETRYING = "retrying"
    SLEEPING = "sleeping"
    WAITING_FOR_WORKER = "waiting_for_worker"
    HELD = "held"
    """Paused by an operator (the run, its task list or its task), or over a limit."""
    WAITING_FOR_TASK = "waiting_for_task"
    """A function that waits only for tasks of its own; while one of them is live, that one shows what the run is doing."""
    STUCK = "stuck"
    """No live task; `treadle runs resume` repairs the run."""


RANKS = {doing: rank for rank, doing in enumerate(Doing)}
"""The precedence of each activity; the stores compute with it, and store only the words."""
DOINGS = tuple(Doing)
"""The activities by rank."""

_WORDS: dict[str, str] = {
    Doing.WAITING_FOR_APPROVAL: "waiting for a person",
    Doing.WAITING_FOR_SIGNAL: "waiting for a signal",
    Doing.WAITING_FOR_EXTERNAL_JOB: "waiting for an external job",
    Doing.WAITING_FOR_CHILD: "waiting for a child run",
    Doing.WAITING_FOR_WORKER: "waiting for a worker",
    Doing.WAITING_FOR_TASK: "waiting for a task",
    Doing.HELD: "on hold",
}


def words(doing: str) -> str:
    """The activity for people: `waiting for a worker`."""
    return _WORDS.get(doing, doing)
