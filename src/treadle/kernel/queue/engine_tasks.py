"""The engine's own tasks: deadlines of runs, deferred cancellations, and the owners on which an operator acts instead.

A deadline's timer survives every crash and passes while the run is paused. The end of the run removes it in the same commit, a
retry of the run removes its deadline. A deferred cancellation is stored with the decision that the work is not needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from treadle.kernel.store.ports import Store
from treadle.model.clock import Duration, as_text, instant, milliseconds, parse_duration
from treadle.model.errors import IllegalTransition, InvalidPolicy, RunNotFound, TaskNotFound
from treadle.model.ids import derived_id
from treadle.model.names import (
    ADVANCE,
    ALERT,
    CANCEL,
    ENGINE_LIST,
    METRICS,
    PRUNE,
    RUN_DEADLINE,
    SCHEDULE,
    WATCHER,
    QueueKey,
    handles,
)
from treadle.model.runs import Run, deadline_task_id
from treadle.model.states import BlockReason
from treadle.model.tasks import NewTask, Task
from treadle.model.values import decode_object, decode_or_error, encode

EXCEEDED = "deadline_exceeded"
"""The error code of a run that its deadline ended."""

Defaults = Sequence[tuple[str, int]]
"""Names or globs of workflows and functions, and the milliseconds that their runs may take; the first match counts."""


async def find_deadline(
    store: Store, name: str, deadline: Duration | str | None, at: datetime | None, defaults: Defaults = ()
) -> tuple[int | None, int]:
    """Return the deadline of a new run as an instant, or None, and the store's time.

    `deadline` is a duration from now, `at` an instant. Raises `InvalidPolicy` for both, and for one that has passed.
    """
    if deadline is not None and at is not None:
        raise InvalidPolicy("Give either deadline, a duration, or deadline_at, a time, not both.")
    if at is not None:
        ends_at, now = instant(at, "deadline_at"), await store.now()
        if ends_at <= now:
            raise InvalidPolicy(f"The deadline must be in the future; {as_text(ends_at)} has passed.")
        return ends_at, now
    if deadline is None:
        wait_for = next((default for pattern, default in defaults if handles((pattern,), name)), None)
    else:
        wait_for = milliseconds(
            parse_duration(deadline, "deadline") if isinstance(deadline, str) else deadline, "deadline", positive=True
        )
    if wait_for is None:
        return None, 0
    now = await store.now()
    return now + wait_for, now


def deadline_tasks(run: Run, now: int) -> tuple[NewTask, ...]:
    """The timer of the run's deadline, if it has one, to be stored with the run."""
    if run.deadline_at is None:
        return ()
    return (
        NewTask(
            id=deadline_task_id(run.id),
            queue=QueueKey(run.namespace, RUN_DEADLINE, ENGINE_LIST, RUN_DEADLINE),
            payload=encode({"run_id": run.id}),
            delay=max(run.deadline_at - now, 1),
            trace_id=run.trace_id,
        ),
    )


Cancel = Callable[..., Awaitable[object]]
"""Cancels a run or a task, as `Runs.cancel` and `Queue.cancel` do."""


async def expire_run(store: Store, cancel: Callable[[], Cancel], payload: dict[str, Any]) -> None:
    """Handle a timer: cancel a run whose deadline has passed; doing so twice is a no-op."""
    run = await store.runs.find(payload["run_id"])
    if run is None or run.finished or run.deadline_at is None:
        return
    reason = f"The deadline of the run passed at {as_text(run.deadline_at)}."
    with suppress(IllegalTransition, RunNotFound):  # it has ended meanwhile
        await cancel()(run.id, actor="deadline", reason=reason, code=EXCEEDED)


def cancel_task(
    source_id: str,
    namespace: str,
    reason: str,
    tasks: Sequence[str] = (),
    runs: Sequence[str] = (),
    *,
    force: bool = False,
    actor: str = "engine",
    code: str = "canceled",
    delay: int = 0,
    timer: bool = False,
) -> NewTask:
    """The task that cancels these tasks and runs because of the step or run `source_id`, at most once for each source.

    With `force`, functions do not clean up. A `timer` does nothing to a run that has ended, nor to the runs below it.
    """
    payload = {"tasks": list(tasks), "runs": list(runs), "reason": reason, "force": force, "actor": actor, "code": code}
    payload |= {"timer": True} if timer else {}
    queue = QueueKey(namespace, CANCEL, ENGINE_LIST, CANCEL)
    return NewTask(id=derived_id(source_id, "cancel"), queue=queue, payload=encode(payload), delay=delay)


async def cancel_work(store: Store, cancel: Cancel, cancel_run: Callable[[], Cancel], payload: dict[str, Any]) -> None:
    """Handle such a task; whatever has ended or is gone stays as it is.

    One that cannot be canceled does not keep the others: its error is raised after them, and the task is retried.
    """
    by: dict[str, Any] = {"actor": payload["actor"], "reason": payload["reason"]}
    of_runs = by | {"code": payload["code"], "force": payload["force"]}
    errors: list[Exception] = []
    for work_id in (*payload["tasks"], *payload["runs"]):
        try:
            if work_id in payload["tasks"]:
                await cancel(work_id, **by)
            elif not payload.get("timer") or ((run := await store.runs.find(work_id)) is not None and not run.finished):
                await cancel_run()(work_id, **of_runs)
        except (IllegalTransition, TaskNotFound, RunNotFound):
            continue
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


_COMMANDS = {"cancel": "pause", "pause": "pause", "requeue": "resume", "resume": "resume"}
"""The command for a schedule or watcher that stands for an operator's transition on its task."""


async def find_owner(store: Store, task: Task, transition: str) -> str | None:
    """Name the owner of one of the engine's own tasks and the command for it; None for any other task.

    The failed advance of a run may be retried as a task, too.
    """
    if task.kind in (SCHEDULE, WATCHER):
        record = await store.records.find(str(decode_object(task.payload).get(f"{task.kind}_id", "")))
        name = "NAME" if record is None else record.name or record.id
        commands = f"`treadle {task.kind}s {_COMMANDS[transition]} {name}` or `treadle {task.kind}s remove {name}`"
        return f"it belongs to the {task.kind} {name}; use {commands}."
    if task.kind == ALERT:
        record = await store.records.find(str(decode_object(task.payload).get("alert_rule_id", "")))
        name = "NAME" if record is None else record.name or record.id
        return f"it evaluates the alert rule {name}; use `treadle alerts silence {name}` or `treadle alerts remove {name}`."
    if task.kind == PRUNE:
        return "it removes old finished work; `treadle store keep` sets what is kept, and `treadle store prune` prunes now."
    if task.kind == METRICS:
        return "it rolls up metrics; `treadle metrics` shows them."
    if task.kind == RUN_DEADLINE:
        run_id = decode_object(task.payload).get("run_id")
        return f"it waits for the deadline of the run {run_id}, and ends with that run; use `treadle runs cancel {run_id}`."
    if task.kind == CANCEL:
        return "it cancels work that a function no longer needs, and ends by itself."
    if task.kind == ADVANCE and transition != "requeue":
        return f"it advances the run {task.run_id}; use `treadle runs {transition} {task.run_id}`."
    return None


async def find_pause(store: Store, task: Task) -> str | None:
    """Return the reason given for the pause of a paused task, as a part of a sentence."""
    if not task.blocked_by & BlockReason.TASK_PAUSED:
        return None
    last = next(
        (transition for transition in reversed(await store.log.list_transitions(task.id)) if transition.transition == "pause"), None
    )
    reason = decode_or_error(last.data).get("reason") if last is not None else None
    return f": {reason}" if reason else None
