"""Tools for tasks: enqueue, list, show, wait, cancel, retry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Unpack

from treadle.api.contract import ApiRecord, Doc
from treadle.api.options import EnqueueOptions
from treadle.api.tasks import Task, TaskId, TaskMade, TaskResult
from treadle.api.wire import Instant
from treadle.mcp.request_context import LONGEST_WAIT, RequestContext
from treadle.mcp.tool import tool
from treadle.mcp.truncate import PAGE, Before, Limit, Whole, error_line, last, line, page_size, shown
from treadle.model.access import Scope
from treadle.model.values import Json

_MOVES = 20


@dataclass(frozen=True, slots=True)
class TaskLine(ApiRecord):
    """A task in brief."""

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


@dataclass(frozen=True, slots=True)
class TaskLines(ApiRecord):
    """Tasks, newest first."""

    tasks: list[TaskLine]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class MoveLine(ApiRecord):
    """Something that happened to a task."""

    at: Instant
    move: str
    to_state: str | None
    actor: str | None


@dataclass(frozen=True, slots=True)
class TaskView(TaskLine):
    """One task."""

    why: str
    """Why it is where it is, in one line."""
    payload: Json
    result: Json
    progress: Json
    owner_id: str | None
    """The server that holds it."""
    wake_at: Instant | None
    step_id: str | None
    moves: list[MoveLine]
    """The last 20."""
    lines: list[str]
    """The last 20 lines that were written about it."""


def task_line(task: Task) -> TaskLine:
    """The task in brief."""
    return TaskLine(
        task.id,
        task.name,
        task.state,
        task.task_list,
        task.attempt,
        task.created_at,
        task.finished_at,
        task.run_id,
        task.error_code,
        error_line(task.error),
    )


@tool(Scope.WORK)
async def task_enqueue(
    desk: RequestContext,
    name: Annotated[str, Doc("The handler's name", "billing.Charge")],
    payload: Annotated[dict[str, Json] | None, Doc("Input of the handler", {"amount": 12})] = None,
    **options: Unpack[EnqueueOptions],
) -> TaskMade:
    """Store a task for a handler; when this returns, the task is durable. `task_result` waits for its result."""
    return await desk.api.tasks.enqueue(name, payload, **options)


@tool()
async def task_list(
    desk: RequestContext,
    state: Annotated[Sequence[str], Doc("Only these states", ["failed"])] = (),
    name: Annotated[str | None, Doc("Only of this handler name", "billing.Charge")] = None,
    task_list: Annotated[str | None, Doc("Only of this task list")] = None,
    run_id: Annotated[str | None, Doc("Only of this run")] = None,
    limit: Limit = PAGE,
    before: Before = None,
) -> TaskLines:
    """Tasks, newest first."""
    page = await desk.api.tasks.list(
        state=state, name=name, task_list=task_list, run_id=run_id, limit=page_size(limit), before=before
    )
    return TaskLines([task_line(task) for task in page.tasks], page.next_before)


@tool()
async def task_show(desk: RequestContext, task_id: TaskId, whole: Whole = False) -> TaskView:
    """One task: payload, result, error, what happened to it, and why it is where it is."""
    task = await desk.api.tasks.get(task_id)
    brief = task_line(task)
    return TaskView(
        brief.id,
        brief.name,
        brief.state,
        brief.task_list,
        brief.attempt,
        brief.created_at,
        brief.finished_at,
        brief.run_id,
        brief.error_code,
        brief.error,
        why=line(task.why.text) or "",
        payload=shown(task.payload, whole),
        result=shown(task.result, whole),
        progress=shown(task.progress),
        owner_id=task.owner_id,
        wake_at=task.wake_at,
        step_id=task.step_id,
        moves=[MoveLine(each.at, each.move, each.to_state, each.actor) for each in last(task.moves, _MOVES)],
        lines=[line(f"{each.level}: {each.message}") or "" for each in last(task.lines, _MOVES)],
    )


@tool()
async def task_result(
    desk: RequestContext,
    task_id: TaskId,
    wait_for: Annotated[float, Doc(f"Wait so many seconds for its end, up to {LONGEST_WAIT:g}", 10)] = 0.0,
    whole: Whole = False,
) -> TaskResult:
    """What a task came to; waits for its end if asked to."""
    ended = await desk.patiently(lambda seconds: desk.api.tasks.result(task_id, wait_for=seconds), wait_for)
    return TaskResult(
        ended.id,
        ended.name,
        ended.state,
        ended.finished,
        shown(ended.result, whole, 20_000),
        shown(ended.error),
        ended.error_code,
        ended.why,
    )


@tool(Scope.OPERATE, ends=True, repeatable=True)
async def task_cancel(
    desk: RequestContext, task_id: TaskId, reason: Annotated[str | None, Doc("Kept with the task")] = None
) -> TaskLine:
    """End a task now, whoever holds it; canceling twice is no error."""
    return task_line(await desk.api.tasks.cancel(task_id, reason=reason))


@tool(Scope.OPERATE)
async def task_retry(
    desk: RequestContext,
    task_id: TaskId,
    payload: Annotated[dict[str, Json] | None, Doc("A new payload; null: as it was")] = None,
) -> TaskLine:
    """Make a failed, canceled or ignored task live again, with new counters. A step's task: see `afl_retry_step`."""
    return task_line(await desk.api.tasks.retry(task_id, payload=payload))


TOOLS = (task_enqueue, task_list, task_show, task_result, task_cancel, task_retry)
