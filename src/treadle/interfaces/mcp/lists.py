"""Tools for task lists and limits: everything that holds work back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.lists import DesiredWorkers, KeyLimit, LimitChange, ListName, TaskListStatus
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput
from treadle.model.names import DEFAULT_LIST


@record
class ListOverview(ApiRecord):
    """Task lists with their tasks by handler, and the limits of keys."""

    lists: list[TaskListStatus]
    limits: list[KeyLimit]


async def _overview(context: RequestContext, task_list: str | None = None) -> ListOverview:
    lists = context.api.lists
    found = (await lists.list()).lists if task_list is None else [await lists.get(task_list)]
    return ListOverview(found, (await lists.limits()).limits)


@tool()
async def list_show(context: RequestContext, task_list: Annotated[str | None, Doc("Only this task list")] = None) -> ListOverview:
    """Task lists with their tasks by handler, pauses, rates, and the limits of handlers and keys."""
    return await _overview(context, task_list)


@tool(Scope.OPERATE, repeatable=True)
async def list_manage(
    context: RequestContext, task_list: ListName, action: Annotated[Literal["pause", "resume", "drain"], Doc("The action")]
) -> TaskListStatus:
    """Pause a list (workers take nothing more), drain it (it refuses new tasks), or resume it from either."""
    lists = context.api.lists
    match action:
        case "pause":
            return await lists.pause(task_list)
        case "resume":
            return await lists.resume(task_list)
        case "drain":
            return await lists.drain(task_list)


@tool(Scope.OPERATE, ends=True, repeatable=True)
async def list_policy(
    context: RequestContext,
    task_list: ListName,
    no_handler: Annotated[Literal["wait", "ignore"], Doc("Whether such tasks wait, or end as ignored")],
) -> TaskListStatus:
    """Set the policy for tasks that no live server has a handler for."""
    return await context.api.lists.set_policy(task_list, no_handler)


@tool()
async def list_desired(context: RequestContext, task_list: ListName = DEFAULT_LIST) -> DesiredWorkers:
    """Estimate the number of workers that a list needs, from its depth, its age and the duration of its tasks."""
    return await context.api.lists.desired(task_list)


@tool(Scope.OPERATE, repeatable=True)
async def limit_set(
    context: RequestContext,
    handler: Annotated[str | None, Doc("Limit the tasks of this handler", "billing.Charge")] = None,
    key: Annotated[str | None, Doc("Limit the tasks with this limit key instead", "customer:42")] = None,
    task_list: Annotated[str, Doc("With `rate` and `backlog` of a handler: in this list")] = DEFAULT_LIST,
    max_running: Annotated[int | None, Doc("Maximum concurrently running tasks, over all lists and workers")] = None,
    rate: Annotated[float | None, Doc("Maximum starts per second")] = None,
    burst: Annotated[int | None, Doc("Maximum burst size; default: one second's worth of the rate")] = None,
    backlog: Annotated[int | None, Doc("Refuse new tasks of the handler while this many are ready")] = None,
    remove: Annotated[Sequence[Literal["max", "rate", "backlog"]], Doc("Limits to remove")] = (),
) -> ListOverview:
    """Set or remove limits of a handler or of a limit key."""
    if (key is None) == (handler is None):
        raise InvalidInput("Give either `handler` or `key`.")
    if max_running is rate is burst is backlog is None and not remove:
        raise InvalidInput("Give `max_running`, `rate`, `backlog` or `remove`.")
    if key is not None and (backlog is not None or "backlog" in remove):
        raise InvalidInput("A key takes `max_running` and `rate`; a backlog belongs to a handler in a list.")
    change = LimitChange(key, handler, task_list, max_running, rate, burst, backlog, frozenset(remove))
    await change.apply(context.api.lists)
    return await _overview(context)


TOOLS = (list_show, list_manage, list_policy, list_desired, limit_set)
