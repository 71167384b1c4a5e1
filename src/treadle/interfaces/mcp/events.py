"""The tool for the log of state changes."""

from __future__ import annotations

from typing import Annotated, Unpack

from treadle.api.contract import Doc
from treadle.api.events import EventConditions, EventPage
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.interfaces.mcp.truncate import PAGE, Limit, page_size


@tool()
async def event_list(
    context: RequestContext,
    after_seq: Annotated[int | None, Doc("Events after this number; default: the latest events")] = None,
    limit: Limit = PAGE,
    **which: Unpack[EventConditions],
) -> EventPage:
    """State changes of tasks, runs and all other entities, with their actors."""
    return await context.api.events.list(after_seq=after_seq, limit=page_size(limit), **which)


TOOLS = (event_list,)
