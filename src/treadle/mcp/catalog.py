"""All tools, resources and prompts, in the order in which they are listed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from treadle.mcp import (
    alerts,
    approvals,
    effects,
    external_jobs,
    flows,
    handlers,
    objectives,
    runs,
    system,
    tasks,
    traces,
    workflows,
)
from treadle.mcp.prompts import PROMPTS, Prompt
from treadle.mcp.request_context import RequestContext
from treadle.mcp.resources import RESOURCES, Resource
from treadle.mcp.tool import Tool
from treadle.model.errors import TreadleError
from treadle.model.states import RunState

_MODULES = (flows, workflows, handlers, runs, tasks, approvals, objectives, external_jobs, effects, alerts, traces, system)
_MOST = 100

TOOLS: dict[str, Tool] = {tool.name: tool for module in _MODULES for tool in module.TOOLS}
PROMPTS_BY_NAME: dict[str, Prompt] = {prompt.name: prompt for prompt in PROMPTS}

_RUNS = re.compile(r"^afl://runs(?=[/?]|$)")
"""Agents call runs "runners"; both names work."""


def find_resource(uri: str) -> tuple[Resource, dict[str, str]] | None:
    """The resource of a URI and the values of its template's variables; None if there is none."""
    uri = _RUNS.sub("afl://runners", uri)
    for each in RESOURCES:
        filled = each.template.match(uri)
        if filled is not None:
            return each, {name: str(value) for name, value in filled.items()}
    return None


async def complete(context: RequestContext, name: str, typed: str) -> list[str]:
    """Known values of an argument that begin with the typed text; empty if none are known or the caller may not see them."""
    try:
        found = await _known(context, name)
    except TreadleError:
        return []
    return [each for each in found if each.startswith(typed)][:_MOST]


async def _known(context: RequestContext, name: str) -> Iterable[str]:
    match name:
        case "run_id" | "runner_id":
            return [run.id for run in (await context.api.runs.list(limit=_MOST)).runs]
        case "task_id":
            return [task.id for task in (await context.api.tasks.list(limit=_MOST)).tasks]
        case "flow_id":
            return [flow.name for flow in (await context.api.flows.list()).flows]
        case "facet_name":
            return [handler.facet_name for handler in (await context.api.handlers.list()).handlers]
        case "state":
            return [state.value for state in RunState]
        case _:
            return []
