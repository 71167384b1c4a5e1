"""Tools for operators that are more than one operation: workers, limits, decisions, alerts and handlers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from treadle.api.alerts import Alert, AlertRule
from treadle.api.approvals import Approval, ApprovalId, Reason
from treadle.api.contract import Doc
from treadle.api.handlers import Handler
from treadle.api.lists import KeyLimit, LimitChange, ListName, TaskListStatus
from treadle.api.wire import to_builtins
from treadle.interfaces.mcp.answers import APPROVAL, PAGE, After, Fields, Limit, Shape, page_size
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput, Refused
from treadle.model.names import DEFAULT_LIST
from treadle.model.values import Json

_ALERTS = 50
_NO_WORKERS = (
    "This server cannot start workers: it has no handlers of its own. `worker_abilities` shows the lists that workers serve: "
    "cancel the task (`task_cancel`) and enqueue it in one of them (`task_enqueue`), complete a step yourself "
    "(`afl_continue_step`), or ask a person to start a worker for the list."
)
_ABILITIES: Shape = {
    "handlers": dict[str, int],
    "task_lists": dict[str, int],
    "slots": int,
    "running": int,
    "servers": dict[str, int],
}
_LISTS: Shape = {"lists": list[TaskListStatus], "limits": list[KeyLimit]}
_HANDLERS: Shape = {"handlers": list[Handler], "next_after": str | None}


@tool(answers=_ABILITIES)
async def worker_abilities(context: RequestContext) -> Fields:
    """The abilities of live workers: handlers that event facets and tasks can use."""
    fleet = await context.api.servers.fleet()
    return {
        "handlers": {handler.name: handler.servers for handler in fleet.handlers},
        "task_lists": {task_list.name: task_list.servers for task_list in fleet.task_lists},
        "slots": fleet.slots,
        "running": fleet.running,
        "servers": to_builtins(fleet.states),
    }


@tool(Scope.OPERATE, answers={"task_list": str, "started": bool, "handlers": list[str]}, repeatable=True)
async def worker_start(context: RequestContext, task_list: ListName = DEFAULT_LIST) -> Fields:
    """Serve a task list with the handlers of this MCP server's process, until the process ends."""
    if context.start_worker is None:
        raise Refused(_NO_WORKERS)
    if context.access is not None:
        context.access.check_list(task_list)
    started = await context.start_worker(task_list)
    handlers = (await context.api.servers.fleet()).handlers
    return {"task_list": task_list, "started": started, "handlers": [handler.name for handler in handlers]}


@tool(answers=_LISTS)
async def list_show(context: RequestContext, task_list: Annotated[str | None, Doc("Only this task list")] = None) -> Fields:
    """Task lists with their tasks by handler, pauses, rates, and the limits of handlers and keys."""
    api = context.api.lists
    lists = (await api.list()).lists if task_list is None else [await api.get(task_list)]
    return {"lists": to_builtins(lists), "limits": to_builtins((await api.limits()).limits)}


@tool(Scope.OPERATE, answers=_LISTS, repeatable=True)
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
) -> Fields:
    """Set or remove limits of a handler or of a limit key."""
    if (key is None) == (handler is None):
        raise InvalidInput("Give either `handler` or `key`.")
    if max_running is rate is burst is backlog is None and not remove:
        raise InvalidInput("Give `max_running`, `rate`, `backlog` or `remove`.")
    if key is not None and (backlog is not None or "backlog" in remove):
        raise InvalidInput("A key takes `max_running` and `rate`; a backlog belongs to a handler in a list.")
    change = LimitChange(key, handler, task_list, max_running, rate, burst, backlog, frozenset(remove))
    await change.apply(context.api.lists)
    return dict(await list_show.perform(context))  # type: ignore[arg-type]


@tool(Scope.APPROVE, answers=APPROVAL.shape(Approval))
async def approval_decide(
    context: RequestContext,
    approval_id: ApprovalId,
    decision: Annotated[Literal["approve", "deny"], Doc("`approve` or `deny`", "approve")],
    reason: Reason = None,
    edits: Annotated[
        dict[str, Json] | None, Doc("Changes to the context, if the request allows them; only with `approve`", {"amount": 3})
    ] = None,
) -> Fields:
    """Approve or deny as the caller; the deciding vote resumes or fails the waiting work immediately.

    A person decides: ask the user first, unless the user has told you to decide.
    """
    if decision == "approve":
        return APPROVAL.of(await context.api.approvals.approve(approval_id, reason=reason, edits=edits))
    if edits is not None:
        raise InvalidInput("Only an approval can edit the context: omit `edits` to deny.")
    return APPROVAL.of(await context.api.approvals.deny(approval_id, reason=reason))


@tool(answers={"rules": list[AlertRule], "alerts": list[Alert]})
async def alert_list(
    context: RequestContext, firing: Annotated[bool, Doc("Only alerts that fire now; false: also resolved ones")] = True
) -> Fields:
    """The alert rules, and the alerts that fire now or fired before."""
    rules = (await context.api.alerts.rules()).rules
    alerts = (await context.api.alerts.list(firing=firing, limit=_ALERTS)).alerts
    return {"rules": to_builtins(rules), "alerts": to_builtins(alerts)}


@tool(answers=_HANDLERS)
async def handler_list(
    context: RequestContext,
    facet_name: Annotated[str | None, Doc("Only this one", "billing.ProcessPayment")] = None,
    limit: Limit = PAGE,
    after: After = None,
) -> Fields:
    """Handlers that are registered in the store for runners to load, by name. `worker_abilities` has those of live workers."""
    if facet_name is not None:
        return {"handlers": [to_builtins(await context.api.handlers.get(facet_name))], "next_after": None}
    handlers = [handler for handler in (await context.api.handlers.list()).handlers if after is None or handler.facet_name > after]
    page = handlers[: page_size(limit)]
    return {"handlers": to_builtins(page), "next_after": page[-1].facet_name if len(handlers) > len(page) else None}


@tool(
    answers={"success": bool, "error": str | None, "handler": Handler | None, "handlers": list[Handler] | None},
    changes=True,
    ends=True,
    repeatable=True,
)
async def afl_manage_handlers(
    context: RequestContext,
    action: Annotated[Literal["list", "get", "register", "delete"], Doc("The action")],
    facet_name: Annotated[str | None, Doc("The event facet")] = None,
    module_uri: Annotated[str | None, Doc("`package.module`, or `file:///path.py`")] = None,
    entrypoint: Annotated[str, Doc("The function")] = "handle",
    version: Annotated[str, Doc("For people")] = "1.0.0",
    checksum: Annotated[str, Doc("A change reloads the module")] = "",
    timeout_ms: Annotated[int, Doc("Of one attempt")] = 30_000,
    requirements: Annotated[Sequence[str], Doc("In pip syntax")] = (),
    metadata: Annotated[dict[str, Json] | None, Doc("For the function")] = None,
) -> Fields:
    """List, register (or replace) or delete handlers that runners load themselves."""
    handlers = context.api.handlers
    if action == "list":
        return {"success": True, "error": None, "handler": None, "handlers": to_builtins((await handlers.list()).handlers)}
    if facet_name is None:
        raise InvalidInput(f"Give `facet_name`: it is needed to {action}.")
    if action == "get":
        handler = await handlers.get(facet_name)
    elif action == "delete":
        handler = await handlers.get(facet_name)
        await handlers.remove(facet_name)
    elif module_uri is None:
        raise InvalidInput("Give `module_uri`: it is needed to register.")
    else:
        handler = await handlers.register(
            facet_name,
            module_uri,
            entrypoint=entrypoint,
            version=version,
            checksum=checksum,
            timeout=timeout_ms / 1000,
            requirements=requirements,
            metadata=metadata,
        )
    return {"success": True, "error": None, "handler": to_builtins(handler), "handlers": None}


TOOLS = (
    worker_abilities,
    worker_start,
    list_show,
    limit_set,
    approval_decide,
    alert_list,
    handler_list,
    afl_manage_handlers,
)
