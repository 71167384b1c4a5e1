"""Notes that a function leaves with its task, for display: its steps in progress, and the waits that can continue it. Pure.

Steps in progress are noted in the progress of the task while they last longer than a second. The note is valid for one claim: a
later claim, and a task without an owner, execute none of these steps. A suspended function leaves its waits in the checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from treadle.kernel.functions.steps import EFFECT, READ, RESULT, SLEEP, STEP, UPDATE, WAIT, Recorded
from treadle.model.errors import UnreadableValue
from treadle.model.names import FUNCTION
from treadle.model.runs import RANKS, ActivityKind
from treadle.model.stored import StoredRow, convert, plain
from treadle.model.tasks import NOTED_CLAIM, NOTED_STEPS, Task, noted_steps
from treadle.model.values import Json, decode_object, decode_or_error, encode


def note_steps(progress: str | None, claim_version: int, steps: Sequence[Recorded]) -> str:
    """The progress of a task, with the steps that its function executes; null if there is neither."""
    note: dict[str, Any] = without_steps(decode_or_error(progress) or None) or {}
    if steps:
        note |= {NOTED_STEPS: [plain(step) for step in steps], NOTED_CLAIM: claim_version}
    return encode(note or None)


def read_steps(task: Task) -> list[Recorded]:
    """The steps that the function of this task executes now."""
    return [convert(Recorded, step) for step in noted_steps(task)]


def without_steps(progress: Json) -> Json:
    """The progress that user code reported."""
    if not isinstance(progress, dict) or NOTED_STEPS not in progress:
        return progress
    return {name: value for name, value in progress.items() if name not in (NOTED_STEPS, NOTED_CLAIM)} or None


_ACTIVITY_KINDS = {
    SLEEP: ActivityKind.SLEEPING,
    WAIT: ActivityKind.WAITING_FOR_SIGNAL,
    UPDATE: ActivityKind.WAITING_FOR_SIGNAL,
    RESULT: ActivityKind.WAITING_FOR_CHILD,
    READ: ActivityKind.WAITING_FOR_CHILD,
    STEP: ActivityKind.RETRYING,
    EFFECT: ActivityKind.RETRYING,
}
"""By kind of step; calls, approvals and external jobs have tasks of their own."""


class WaitNote(StoredRow, kw_only=True):
    """The waits of a suspended function; `name`, `until` and `child_id` are those of the most important one."""

    name: str | None = None
    until: int | None = None
    child_id: str | None = None
    wake_at: int | None = None
    """When the first wait with a time ends; None: only a message continues the function."""
    counts: dict[str, int] = msgspec.field(default_factory=dict)


def note_waits(waits: Iterable[Recorded]) -> tuple[ActivityKind, str]:
    """Return the activity of a function with these waits, and its note as JSON."""
    counts: Counter[ActivityKind] = Counter()
    first: tuple[tuple[int, float], Recorded] | None = None
    wake_at: int | None = None
    for wait in waits:
        activity = _ACTIVITY_KINDS.get(wait.kind, ActivityKind.WAITING_FOR_TASK)
        counts[activity] += 1
        at = wait.wake_at
        if at is not None:
            wake_at = at if wake_at is None else min(at, wake_at)
        rank = (RANKS[activity], float("inf") if at is None else at)
        if first is None or rank < first[0]:
            first = rank, wait
    document: dict[str, Any] = {"wake_at": wake_at, "counts": dict(counts)}
    if first is None:
        return ActivityKind.WAITING_FOR_TASK, encode(document)
    chosen = first[1]
    activity = _ACTIVITY_KINDS.get(chosen.kind, ActivityKind.WAITING_FOR_TASK)
    document |= {"name": chosen.name, "until": chosen.wake_at, "child_id": chosen.task_id if chosen.kind == RESULT else None}
    return activity, encode(document)


def read_waits(task: Task) -> WaitNote | None:
    """The note of a suspended function; None for every other task, for one that an older version requeued, and if it is damaged."""
    if task.kind != FUNCTION or task.activity is None or task.owner_id is not None or task.wake_at is None:
        return None
    if task.checkpoint is not None:
        with suppress(UnreadableValue):
            return convert(WaitNote, decode_object(task.checkpoint))
    return None


def shown_wake_at(task: Task) -> int | None:
    """When the task continues by itself, for display: None for a function that only a message continues."""
    note = read_waits(task)
    return task.wake_at if note is None else note.wake_at
