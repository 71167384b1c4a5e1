"""The owners of the engine's own tasks, on which an operator acts instead of the task; and the reasons of pauses."""

from __future__ import annotations

from treadle.kernel.store.ports import Store
from treadle.model.names import ADVANCE, ALERT, CANCEL, PRUNE, RUN_DEADLINE, SCHEDULE, WATCHER
from treadle.model.states import Hold
from treadle.model.tasks import Task
from treadle.model.values import decode, decode_object

_COMMANDS = {"cancel": "pause", "pause": "pause", "requeue": "resume", "resume": "resume"}
"""The command for a schedule or watcher that stands for an operator's move on its task."""


async def find_owner(store: Store, task: Task, move: str) -> str | None:
    """Name the owner of one of the engine's own tasks and the command for it; None for any other task.

    The failed advance of a run may be retried as a task, too.
    """
    if task.kind in (SCHEDULE, WATCHER):
        record = await store.find_record(str(decode_object(task.payload).get(f"{task.kind}_id", "")))
        name = "NAME" if record is None else record.name or record.id
        commands = f"`treadle {task.kind}s {_COMMANDS[move]} {name}` or `treadle {task.kind}s remove {name}`"
        return f"it belongs to the {task.kind} {name}; use {commands}."
    if task.kind == ALERT:
        record = await store.find_record(str(decode_object(task.payload).get("alert_rule_id", "")))
        name = "NAME" if record is None else record.name or record.id
        return f"it evaluates the alert rule {name}; use `treadle alerts silence {name}` or `treadle alerts remove {name}`."
    if task.kind == PRUNE:
        return "it removes old finished work; `treadle store keep` sets what is kept, and `treadle store prune` prunes now."
    if task.kind == RUN_DEADLINE:
        run_id = decode_object(task.payload).get("run_id")
        return f"it waits for the deadline of the run {run_id}, and ends with that run; use `treadle runs cancel {run_id}`."
    if task.kind == CANCEL:
        return "it cancels work that a function no longer needs, and ends by itself."
    if task.kind == ADVANCE and move != "requeue":
        return f"it advances the run {task.run_id}; use `treadle runs {move} {task.run_id}`."
    return None


async def find_pause(store: Store, task: Task) -> str | None:
    """Return the reason given for the pause of a paused task, as a part of a sentence."""
    if not task.hold & Hold.TASK_PAUSED:
        return None
    last = next((move for move in reversed(await store.list_moves(task.id)) if move.move == "pause"), None)
    reason = (decode(last.data) or {}).get("reason") if last is not None else None
    return f": {reason}" if reason else None
