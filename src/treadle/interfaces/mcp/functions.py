"""Tools for durable functions: list versions, start, continue with another version, repeat runs."""

from __future__ import annotations

from typing import Annotated, Unpack

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.functions import FunctionList
from treadle.api.options import FunctionOptions
from treadle.api.runs import RunId
from treadle.interfaces.mcp.repairs import NewRun, new_run
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.model.access import Scope
from treadle.model.values import Json


@record
class Adopted(ApiRecord):
    """A run that continues with another version of its function."""

    run_id: str
    workflow: str
    state: str
    servers: int
    """Live servers that have that version; with none, the run waits."""


@tool()
async def function_list(context: RequestContext) -> FunctionList:
    """Durable functions by name and version, with the number of live servers and live runs of each."""
    return await context.api.functions.list()


@tool(Scope.ENQUEUE)
async def function_start(
    context: RequestContext,
    name: Annotated[str, Doc("The function's name", "order")],
    payload: Annotated[dict[str, Json] | None, Doc("Input of the function")] = None,
    **options: Unpack[FunctionOptions],
) -> NewRun:
    """Start a run of a durable function; `run_outputs` waits for its result, `run_signal` sends it a signal."""
    return new_run(await context.api.functions.start(name, payload, **options))


@tool(Scope.OPERATE, repeatable=True)
async def function_adopt(
    context: RequestContext, run_id: RunId, version: Annotated[int, Doc("The version that continues the run")]
) -> Adopted:
    """Continue a run with another version of its function, whose code must fit the recorded steps; see `function_list`."""
    run = await context.api.functions.adopt(run_id, version)
    return Adopted(run.id, run.workflow, run.state, run.servers)


TOOLS = (function_list, function_start, function_adopt)
