"""How a function ends: what it returned or raised, as the end of its task and of its run. And what becomes of one that is stuck."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treadle.kernel.functions.rows import VALUE_LIMIT, continued_id, new_run, run_mail
from treadle.kernel.queue.decide import failure
from treadle.kernel.store.records import PutMessage
from treadle.kernel.store.units import Finish, MoveRun, Park, Row
from treadle.model.errors import InvalidInput, NonRetryable, TreadleError
from treadle.model.ids import derived_id
from treadle.model.outcomes import Problem
from treadle.model.records import Message
from treadle.model.runs import Run
from treadle.model.states import RunState, TaskState
from treadle.model.tasks import NewTask, Task
from treadle.model.values import decode, encode
from treadle.workers.functions.inbox import blamed_steps
from treadle.workers.functions.registry import Function
from treadle.workers.functions.runtime import Runtime

_FIRST_STUCK_FOR, _LONGEST_STUCK_FOR = 1000, 300_000
_TRACEBACK_LIMIT = 16 * 1024


@dataclass(frozen=True, slots=True)
class Ending:
    """What a function came to: a value, an error, or the payload of the run that goes on instead."""

    value: Any
    error: BaseException | None
    successor: dict[str, Any] | None = None
    mail: Sequence[Message] = ()
    """Signals that this run has not taken in, for the one that goes on."""


async def ended_unit(
    runtime: Runtime, task: Task, run: Run | None, function: Function, ending: Ending
) -> tuple[Finish, tuple[NewTask, ...], tuple[Row, ...]]:
    """The end of the task, new tasks and rows. `run` is None for a run that nobody waits for."""
    run_id = task.run_id or ""
    if ending.successor is not None:
        return await _continued(runtime, task, run, function, ending.successor, ending.mail)
    error = ending.error
    if error is None:
        try:
            outputs, blobs = runtime.value_store.pack({"result": ending.value}, task.root_id, "result", runtime.payload_limit)
        except InvalidInput as refused:
            error = NonRetryable(f"What the function returned cannot be kept: {refused}", "invalid_result")
        else:
            moved = MoveRun(run_id, "succeed", RunState.RUNNING, RunState.COMPLETED, outputs=outputs)
            told = () if run is None else run_mail(run, RunState.COMPLETED, outputs, None, runtime.value_store)
            return Finish("succeed", TaskState.COMPLETED), (), (*blobs, moved, *told)
    problem = problem_of(error)
    finish = failure(problem)
    step_ids = blamed_steps(error)
    said = {**decode(finish.error), "step_ids": list(step_ids)}
    text = encode(said, "error", VALUE_LIMIT)
    first = step_ids[0] if step_ids else None
    moved = MoveRun(run_id, "fail", RunState.RUNNING, RunState.FAILED, error=text, failed_step_id=first, data=finish.error)
    told = () if run is None else run_mail(run, RunState.FAILED, None, finish.error, runtime.value_store)
    return finish, (), (moved, *told)


def problem_of(error: BaseException) -> Problem:
    """Why a function failed, from what left it."""
    kind = type(error).__name__
    message = str(error) or kind
    if isinstance(error, KeyError) and type(error).__str__ is KeyError.__str__:
        message = f"{kind}: {message}"
    code = error.code if isinstance(error, TreadleError) else "function_error"
    if isinstance(error, NonRetryable):
        code = error.error_code
    return Problem(code, message, kind, "".join(traceback.format_exception(error))[-_TRACEBACK_LIMIT:])


async def _continued(
    runtime: Runtime, task: Task, run: Run | None, function: Function, payload: dict[str, Any], mail: Sequence[Message]
) -> tuple[Finish, tuple[NewTask, ...], tuple[Row, ...]]:
    """The run ends, and a new one with nothing behind it goes on; whoever started the first is told of the end of the last.

    The new one has the signals that the old one did not take in, in their order.
    """
    run_id = task.run_id or ""
    child = run is not None and run.parent_step_id is not None
    version = await runtime.resolve(function.name, None)
    new, made, rows = new_run(
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
    )
    outputs, _ = runtime.value_store.pack({"continued_as": new.id}, task.root_id, "result")
    moved = MoveRun(run_id, "succeed", RunState.RUNNING, RunState.COMPLETED, outputs=outputs)
    told = [
        PutMessage(Message(id=derived_id(new.id, f"mail/{each.id}"), run_id=new.id, name=each.name, body=each.body))
        for each in mail
    ]
    return Finish("succeed", TaskState.COMPLETED), (made,), (*rows, moved, *told)


def stuck_park(task: Task, problem: Problem) -> Park:
    """The code does not fit what the run has recorded: it is tried again, later and later; a rollback of the code heals it."""
    times = int((decode(task.checkpoint) or {}).get("stuck", 0)) + 1
    delay = min(_FIRST_STUCK_FOR * 2 ** min(times - 1, 20), _LONGEST_STUCK_FOR)
    text = encode(problem.as_json(), "error", VALUE_LIMIT)
    return Park(
        "retry",
        TaskState.PENDING,
        task.attempt + 1,
        task.failures,
        0,
        delay=delay,
        checkpoint=encode({"stuck": times}),
        error=text,
        data=text,
    )
