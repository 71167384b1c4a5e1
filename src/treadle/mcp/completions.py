"""What could be filled into an address or a prompt, as far as it has been typed: newest runs, flows, facets, states."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.mcp.request_context import RequestContext
from treadle.model.errors import TreadleError
from treadle.model.states import RunState

_MOST = 100


async def complete(desk: RequestContext, name: str, typed: str) -> list[str]:
    """Values for the argument of that name that begin as typed; none where nothing is known, or may be."""
    try:
        found = await _known(desk, name)
    except TreadleError:
        return []
    return [each for each in found if each.startswith(typed)][:_MOST]


async def _known(desk: RequestContext, name: str) -> Iterable[str]:
    match name:
        case "run_id" | "runner_id":
            return [run.id for run in (await desk.api.runs.list(limit=_MOST)).runs]
        case "task_id":
            return [task.id for task in (await desk.api.tasks.list(limit=_MOST)).tasks]
        case "flow_id":
            return [flow.name for flow in (await desk.api.flows.list()).flows]
        case "facet_name":
            return [handler.facet_name for handler in (await desk.api.handlers.list()).handlers]
        case "state":
            return [state.value for state in RunState]
        case _:
            return []
