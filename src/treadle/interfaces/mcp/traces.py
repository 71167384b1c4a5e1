"""The tool for traces."""

from __future__ import annotations

from typing import Annotated

from treadle.api.contract import Doc
from treadle.api.traces import Trace
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.interfaces.mcp.truncate import Limit, page_size


@tool()
async def trace_show(
    context: RequestContext,
    id: Annotated[str, Doc("Id of any run, task, step, approval or external job in it, or a trace id")],  # noqa: A002
    group: Annotated[str | None, Doc("List the members of this group entry")] = None,
    after: Annotated[str | None, Doc("`next_after` of the previous page")] = None,
    limit: Limit = 100,
) -> Trace:
    """Everything that followed from one start, across runs, tasks, approvals and external jobs, as one timeline."""
    return await context.api.traces.get(id, group=group, limit=page_size(limit), after=after)


TOOLS = (trace_show,)
