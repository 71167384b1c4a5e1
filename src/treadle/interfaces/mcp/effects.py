"""Tools for effects whose outcome is unknown."""

from __future__ import annotations

from typing import Annotated

from treadle.api.contract import Doc
from treadle.api.effects import EffectPage
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.interfaces.mcp.truncate import PAGE, Before, Limit, page_size


@tool()
async def effect_list(
    context: RequestContext,
    task_id: Annotated[str | None, Doc("Only this task")] = None,
    run_id: Annotated[str | None, Doc("Only this run")] = None,
    limit: Limit = PAGE,
    before: Before = None,
) -> EffectPage:
    """List attempts at effects whose outcome is unknown, newest first: the effect may or may not have happened."""
    return await context.api.effects.list(task_id=task_id, run_id=run_id, limit=page_size(limit), before=before)


TOOLS = (effect_list,)
