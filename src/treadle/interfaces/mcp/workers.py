"""The tool that starts a worker in the process of the MCP server."""

from __future__ import annotations

from treadle.api.contract import ApiRecord, record
from treadle.api.lists import ListName
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.model.access import Scope
from treadle.model.errors import Refused
from treadle.model.names import DEFAULT_LIST

_NOWHERE = (
    "This server cannot start workers: it has no handlers of its own. `worker_abilities` shows the lists that workers serve: "
    "cancel the task (`task_cancel`) and enqueue it in one of them (`task_enqueue`), complete a step yourself "
    "(`afl_continue_step`), or ask a person to start a worker for the list."
)


@record
class WorkerStarted(ApiRecord):
    """A worker of this process."""

    task_list: str
    started: bool
    """False: this process had already started one for the list."""
    handlers: list[str]
    """The handlers and functions of all live workers."""


@tool(Scope.OPERATE, repeatable=True)
async def worker_start(context: RequestContext, task_list: ListName = DEFAULT_LIST) -> WorkerStarted:
    """Serve a task list with the handlers of this MCP server's process, until the process ends."""
    if context.start_worker is None:
        raise Refused(_NOWHERE)
    if context.access is not None:
        context.access.check_list(task_list)
    started = await context.start_worker(task_list)
    return WorkerStarted(task_list, started, [each.name for each in (await context.api.servers.fleet()).handlers])


TOOLS = (worker_start,)
