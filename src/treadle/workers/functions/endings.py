"""The end of a function: its result or error as the end of its task and its run; and the backoff of a stuck function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from treadle.kernel.functions.decide import REPLAYED, CancelRequest, closing_tasks, new_run, noted, read_note, run_message
from treadle.kernel.functions.steps import PUBLISHED, VALUE_LIMIT, Recorded, folded, published_id
from treadle.kernel.queue.decide import canceled_error, failure
from treadle.kernel.queue.engine_tasks import deadline_tasks
from treadle.kernel.store.chains import continued_id
from treadle.kernel.store.pages import kept_tags
from treadle.kernel.store.records import PutMessage, TakeMessages
from treadle.kernel.store.units import CancelRunTasks, Finish, MoveRun, Park, PutSteps, Row
from treadle.model.errors import Canceled, InvalidInput, NonRetryable
from treadle.model.outcomes import Problem
from treadle.model.records import Message
from treadle.model.runs import Run, Step
from treadle.model.states import RunState, StepState, TaskState
from treadle.model.tasks import NewTask, Task
from treadle.model.values import decode, encode
from treadle.workers.call import outcome_of_error
from treadle.workers.functions.errors import blamed_steps
from treadle.workers.functions.execution import Runtime
from treadle.workers.functions.registry import Function

_WRAPPER = len('{"result":}')
_FIRST_STUCK_FOR, _LONGEST_STUCK_FOR = 1000, 300_000

EndedUnit = tuple[Finish, tuple[NewTask, ...], tuple[Row, ...]]
"""The end of the task, new tasks, and rows."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a function: a value, an error, or the payload of the run that continues it."""

    value: Any
    error: BaseException | None
    successor: dict[str, Any] | None = None
    signals: Sequence[Message] = ()
    """Signals that this run has not consumed, for the run that continues it."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags that are stored with the end, in stored form; the run that continues it has them, too."""
    children: Sequence[Recorded] = ()
    """The steps that started child runs with a policy."""
    cancel: CancelRequest | None = None
    """The request after which the function cleaned up."""
    published: Mapping[str, Any] = field(default_factory=dict)
    """Published values, for the run that continues it."""
    answers: Sequence[Step] = ()
    """The answers to updates that this run leaves unanswered when it is continued."""


async def ended_unit(runtime: Runtime, task: Task, run: Run | None, function: Function, ending: Ending) -> EndedUnit:
    """Return the unit that ends the task and its run. `run` is None for a run without a parent."""
    run_id = task.run_id or ""
    error = ending.error
    if ending.cancel is not None:
        finish, rows = _canceled(runtime, task, run, ending.cancel, error)
        return finish, closing_tasks(run_id, task.namespace, ending.children), rows
    if ending.successor is not None:
        try:
            return await _continued(runtime, task, run, function, ending.successor, ending)
        except InvalidInput as refused:
            error = NonRetryable(f"The function cannot continue as a new run: {refused}", refused.code)
    if error is None:
        try:
            encode(ending.value, "result", runtime.payload_limit)
            room = runtime.payload_limit + _WRAPPER
            outputs, blobs = runtime.value_store.pack({"result": ending.value}, task.root_id, "result", room)
        except InvalidInput as refused:
            error = NonRetryable(f"The function's result cannot be stored: {refused}", "invalid_result")
        else:
            moved = MoveRun(run_id, "succeed", RunState.RUNNING, RunState.COMPLETED, outputs=outputs)
            messages = () if run is None else run_message(run, RunState.COMPLETED, outputs, None, runtime.value_store)
            closing = closing_tasks(run_id, task.namespace, ending.children)
            return Finish("succeed", TaskState.COMPLETED), closing, (*blobs, moved, *messages)
    finish = failure(outcome_of_error(error, "function_error").problem)
    step_ids = blamed_steps(error)
    text = encode({**decode(finish.error), "step_ids": list(step_ids)}, "error", VALUE_LIMIT)
    first = step_ids[0] if step_ids else None
    moved = MoveRun(run_id, "fail", RunState.RUNNING, RunState.FAILED, error=text, failed_step_id=first, data=finish.error)
    messages = () if run is None else run_message(run, RunState.FAILED, None, finish.error, runtime.value_store)
    return finish, closing_tasks(run_id, task.namespace, ending.children), (moved, *messages)


def _canceled(
    runtime: Runtime, task: Task, run: Run | None, cancel: CancelRequest, error: BaseException | None
) -> tuple[Finish, tuple[Row, ...]]:
    """End a run that was canceled and has cleaned up, whatever its code returned."""
    message = cancel.message
    if error is not None and not isinstance(error, Canceled):
        problem = outcome_of_error(error, "function_error").problem
        message = f"{message.rstrip('.')}. Its cleanup failed: {problem.type or problem.code}: {problem.message}"
    text, run_id = canceled_error(cancel.actor, message, cancel.code), task.run_id or ""
    moved = MoveRun(run_id, "cancel", RunState.RUNNING, RunState.CANCELED, actor=cancel.actor, error=text, data=text)
    told = () if run is None else run_message(run, RunState.CANCELED, None, text, runtime.value_store)
    finish = Finish("cancel", TaskState.CANCELED, error=text, error_code=cancel.code, actor=cancel.actor)
    return finish, (moved, *told, CancelRunTasks(run_id, cancel.actor, text))


async def _continued(
    runtime: Runtime, task: Task, run: Run | None, function: Function, payload: dict[str, Any], ending: Ending
) -> EndedUnit:
    """End the run, and start a new one without history, which receives the unconsumed signals in their order.

    The parent of the first run receives the result of the last one.
    """
    run_id = task.run_id or ""
    child = run is not None and run.parent_step_id is not None
    version = await runtime.resolve(function.name, None)
    new, new_task, rows = new_run(
        run_id=continued_id(run_id),
        namespace=task.namespace,
        name=function.name,
        version=version,
        payload=payload,
        task_list=task.task_list,
        priority=task.priority,
        value_store=runtime.value_store,
        payload_limit=runtime.payload_limit,
        root_id=task.root_id,
        trace_id=task.trace_id,
        parent_id=run.parent_id if run is not None and child else run_id,
        parent_step_id=run.parent_step_id if run is not None and child else None,
        deadline_at=None if run is None else run.deadline_at,
        fairness_key=task.fairness_key,
        tags=await kept_tags(runtime.store, run_id, ending.tags),
        continues=run,
        scope=REPLAYED if ending.published else None,
        steps=1 if ending.published else 0,
    )
    if ending.published:
        row = Recorded(
            id=published_id(new.id), kind=PUBLISHED, name=PUBLISHED, state=StepState.COMPLETED, value=dict(ending.published)
        )
        step, blobs = folded(new.id, row, task.root_id, runtime.value_store)
        rows = (*rows, *blobs, PutSteps(new.id, (step,), 0))
    if ending.answers:
        rows = (*rows, PutSteps(run_id, tuple(ending.answers), 0))
    outputs, _ = runtime.value_store.pack({"continued_as": new.id}, task.root_id, "result")
    moved = MoveRun(run_id, "succeed", RunState.RUNNING, RunState.COMPLETED, outputs=outputs)
    signals = [msgspec.structs.replace(each, run_id=new.id) for each in ending.signals]
    moves: list[Row] = [TakeMessages(run_id, tuple(each.id for each in signals)), *map(PutMessage, signals)]
    timers = deadline_tasks(new, await runtime.store.now()) if new.deadline_at is not None else ()
    return Finish("succeed", TaskState.COMPLETED), (new_task, *timers), (*rows, moved, *moves)


def stuck_park(task: Task, problem: Problem, cleanup_for: int, cancel: CancelRequest | None) -> Park:
    """Retry with backoff, as the code does not match the recorded steps; a rollback of the code fixes it."""
    times = stuck + 1 if isinstance(stuck := read_note(task.checkpoint).get("stuck"), int) else 1
    text = encode(problem.storable().as_json(), "error", VALUE_LIMIT)
    return Park(
        "retry",
        TaskState.PENDING,
        task.attempt + 1,
        task.failures,
        0,
        delay=min(_FIRST_STUCK_FOR * 2 ** min(times - 1, 20), _LONGEST_STUCK_FOR),
        checkpoint=noted(encode({"stuck": times}), cleanup_for, cancel),
        error=text,
        data=text,
    )
