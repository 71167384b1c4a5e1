"""Time spans of a task (waiting, running, sleeping), as far as the log records them. Pure.

Claims write nothing, so only the start of the last claim is known. If a task was claimed several times, the time before is
`mixed`: waiting for a worker, then running, in unknown proportions.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.api.steps import SpanKind, TimeSpan
from treadle.api.wire import Instant
from treadle.model.states import HELD_MOVES, TaskState
from treadle.model.tasks import Move, Task

_AWAITING: dict[str, SpanKind] = {TaskState.AWAITING_EXTERNAL: "outside", TaskState.AWAITING_APPROVAL: "approval"}


def needs_moves(task: Task) -> bool:
    """Whether the task's row alone is not enough."""
    return task.version > (1 if task.finished else 0)


def spans(task: Task, moves: Sequence[Move] = ()) -> list[TimeSpan]:
    """The spans of a task in order; `moves` are required if `needs_moves` is true."""
    found: list[TimeSpan] = []
    at = task.created_at
    for move in moves if needs_moves(task) else ():
        found += _until(task, at, move.from_state, move.move, move.at)
        at = move.at
    if not needs_moves(task) and task.finished_at is not None:
        found += _until(task, at, task.from_state or TaskState.PENDING, task.move or "", task.finished_at)
    elif not task.finished:
        found += _until(task, at, task.state, "" if task.owner_id is None else "held", None)
    return [span for span in found if span.kind != "waiting" or span.ended_at is None or span.ended_at > span.began_at]


def _until(task: Task, began_at: int, state: str, move: str, ended_at: int | None) -> list[TimeSpan]:
    """The span between two moves."""
    if state in _AWAITING:
        return [_span(_AWAITING[state], began_at, ended_at)]
    if move not in HELD_MOVES and move != "held":
        return [_span("waiting", began_at, ended_at)]
    taken = task.claimed_at
    if taken is not None and began_at <= taken and (ended_at is None or taken <= ended_at):
        return [_span("waiting", began_at, taken), _span("running", taken, ended_at)]
    return [_span("mixed", began_at, ended_at)]


def _span(kind: SpanKind, began_at: int, ended_at: int | None) -> TimeSpan:
    return TimeSpan(kind, Instant.of(began_at), None if ended_at is None else Instant.of(ended_at))
