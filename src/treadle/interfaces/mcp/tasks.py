"""Tools for tasks: enqueue, list, show, wait, cancel, retry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Unpack

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.options import EnqueueOptions
from treadle.api.tasks import Task, TaskCreated, TaskId, TaskResult
from treadle.api.wire import Instant, record_of
from treadle.interfaces.mcp.request_context import LONGEST_WAIT, RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.interfaces.mcp.truncate import PAGE, Before, Limit, Whole, error_line, last, line, page_size, shown
from treadle.model.access import Scope
from treadle.model.states import TaskState
from treadle.model.values import Json

_MOVES = 20


@record
class TaskLine(ApiRecord):
    """Summary of a task."""

    id: str
    name: str
    """The handler's name."""
    state: str
    """`pending`, `running`, `paused`, `awaiting_external`, `awaiting_approval`, `completed`, `failed`, `canceled` or `ignored`."""
    task_list: str
    attempt: int
    created_at: Instant
    finished_at: Instant | None
    run_id: str | None
    error_code: str | None
    error: str | None


@record
class TaskLines(ApiRecord):
    """Tasks, newest first."""

    tasks: list[TaskLine]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last page."""


@record
class MoveLine(ApiRecord):
    """A state change of a task."""

    at: Instant
    move: str
    to_state: str | None
    actor: str | None


@record
class TaskView(TaskLine):
    """One task."""

    why: str
    """The reason for its status, in one line."""
    payload: Json
    result: Json
    progress: Json
    owner_id: str | None
    """The server that holds the lease."""
    wake_at: Instant | None
    step_id: str | None
    moves: list[MoveLine]
    """The last 20."""
    lines: list[str]
    """Its last 20 log lines."""


def task_line(task: Task) -> TaskLine:
    """The summary of a task."""
    return record_of(TaskLine, task, error=error_line(task.error))


@tool(Scope.ENQUEUE)
async def task_enqueue(
    context: RequestContext,
    name: Annotated[str, Doc("The handler's name", "billing.Charge")],
    payload: Annotated[dict[str, Json] | None, Doc("Input of the handler", {"amount": 12})] = None,
    **options: Unpack[EnqueueOptions],
) -> TaskCreated:
    """Enqueue a task for a handler; when this returns, the task is durable. `task_result` waits for its result."""
    return await context.api.tasks.enqueue(name, payload, **options)


@tool()
async def task_list(
    context: RequestContext,
    state: Annotated[Sequence[TaskState], Doc("Only these states", ["failed"])] = (),
    name: Annotated[str | None, Doc("Only this handler", "billing.Charge")] = None,
    task_list: Annotated[str | None, Doc("Only this task list")] = None,
    run_id: Annotated[str | None, Doc("Only this run")] = None,
    where: Annotated[str | None, Doc("Only tasks that match this query", "tag.customer = acme and created > 2d ago")] = None,
    limit: Limit = PAGE,
    before: Before = None,
) -> TaskLines:
    """Tasks, newest first."""
    page = await context.api.tasks.list(
        state=state, name=name, task_list=task_list, run_id=run_id, where=where, limit=page_size(limit), before=before
    )
    return TaskLines([task_line(task) for task in page.tasks], page.next_before)


@tool()
async def task_show(context: RequestContext, task_id: TaskId, whole: Whole = False) -> TaskView:
    """One task: payload, result, error, history, and the reason for its state."""
    task = await context.api.tasks.get(task_id)
    return record_of(
        TaskView,
        task,
        error=error_line(task.error),
        why=line(task.why.text) or "",
        payload=shown(task.payload, whole),
        result=shown(task.result, whole),
        progress=shown(task.progress),
        moves=[record_of(MoveLine, each) for each in last(task.moves, _MOVES)],
        lines=[line(f"{each.level}: {each.message}") or "" for each in last(task.lines, _MOVES)],
    )


@tool()
async def task_result(
    context: RequestContext,
    task_id: TaskId,
    wait_for: Annotated[float, Doc(f"Seconds to wait for its end, up to {LONGEST_WAIT:g}", 10)] = 0.0,
    whole: Whole = False,
) -> TaskResult:
    """The result of a task; optionally waits for its end."""
    ended = await context.patiently(lambda seconds: context.api.tasks.result(task_id, wait_for=seconds), wait_for)
    return replace(ended, result=shown(ended.result, whole, 20_000), error=shown(ended.error))


@tool(Scope.OPERATE, ends=True, repeatable=True)
async def task_cancel(
    context: RequestContext, task_id: TaskId, reason: Annotated[str | None, Doc("Stored with the task")] = None
) -> TaskLine:
    """Cancel a task, even if a worker holds it; canceling twice is not an error."""
    return task_line(await context.api.tasks.cancel(task_id, reason=reason))


@tool(Scope.OPERATE)
async def task_retry(
    context: RequestContext,
    task_id: TaskId,
    payload: Annotated[dict[str, Json] | None, Doc("A new payload; null: keep the old one")] = None,
) -> TaskLine:
    """Requeue a failed, canceled or ignored task with new counters. For a step's task, use `afl_retry_step`."""
    return task_line(await context.api.tasks.retry(task_id, payload=payload))


@tool(Scope.OPERATE)
async def task_pause(
    context: RequestContext,
    task_id: TaskId,
    reason: Annotated[str | None, Doc("Shown by `why`")] = None,
    interrupt: Annotated[bool, Doc("Stop an attempt in progress at its next safe point instead of letting it end")] = False,
) -> TaskLine:
    """Pause a task; an attempt in progress ends normally, or with `interrupt` is repeated after the resume."""
    return task_line(await context.api.tasks.pause(task_id, reason=reason, interrupt=interrupt))


@tool(Scope.OPERATE)
async def task_resume(context: RequestContext, task_id: TaskId) -> TaskLine:
    """Resume a paused task."""
    return task_line(await context.api.tasks.resume(task_id))


TOOLS = (task_enqueue, task_list, task_show, task_result, task_cancel, task_retry, task_pause, task_resume)
