"""All tools, resources and prompts, in the order in which they are listed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import ModuleType
from typing import Annotated, Literal, get_args

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.wire import to_builtins
from treadle.interfaces.mcp import (
    alerts,
    approvals,
    dead_letters,
    diagnosis,
    effects,
    events,
    external_jobs,
    flows,
    functions,
    handlers,
    lists,
    objectives,
    repairs,
    runs,
    schedules,
    system,
    tasks,
    traces,
    watchers,
    workers,
    workflows,
)
from treadle.interfaces.mcp.advice import Advisor
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.resources import RESOURCES, Resource
from treadle.interfaces.mcp.tool import Tool, tool
from treadle.model.errors import InvalidInput, NotFound, TreadleError
from treadle.model.states import RunState
from treadle.model.values import Json

_MOST = 100

Toolset = Literal[
    "core",
    "operate",
    "author",
    "flows",
    "functions",
    "schedules",
    "watchers",
    "handlers",
    "objectives",
    "inspect",
    "alerts",
    "maintain",
]
DEFAULT: frozenset[str] = frozenset({"core", "operate", "author"})
"""Toolsets that are listed unless the client asks for others; together at most `BUDGET` tokens."""
BUDGET = 9_000
"""Maximum size of the default list in tokens, counted as its bytes of JSON divided by four."""

_MODULES: dict[Toolset, tuple[ModuleType, ...]] = {
    "core": (system, diagnosis, runs, tasks, approvals, workflows),
    "operate": (dead_letters, lists, workers, external_jobs),
    "author": (flows,),
    "functions": (functions,),
    "schedules": (schedules,),
    "watchers": (watchers,),
    "handlers": (handlers,),
    "objectives": (objectives,),
    "inspect": (events, traces, effects),
    "alerts": (alerts,),
    "maintain": (repairs,),
}
_MOVED: dict[Toolset, str] = {
    "operate": "schedule_list schedule_show schedule_manage schedule_run watcher_list watcher_show watcher_manage function_list "
    "function_adopt",
    "author": "afl_execute_workflow run_start",
    "flows": "afl_compile flow_format flow_graph",
    "maintain": "run_bulk list_policy list_desired task_pause",
}
"""Tools that belong to another toolset than the rest of their module."""


class ToolNotFound(NotFound):
    """Raised for the name of a tool that does not exist."""

    code = "tool_not_found"


@record
class ToolSummary(ApiRecord):
    """A tool of any toolset."""

    name: str
    toolset: Toolset
    description: str
    input_schema: dict[str, Json] | None
    """JSON Schema of its arguments; null in lists."""


@record
class ToolSummaries(ApiRecord):
    """Tools."""

    tools: list[ToolSummary]


@record
class ToolCalled(ApiRecord):
    """The result of another tool."""

    result: dict[str, Json]


@tool()
async def tool_find(
    context: RequestContext,
    name: Annotated[str | None, Doc("Return the arguments of this tool")] = None,
    toolset: Annotated[Toolset | None, Doc("Only this toolset; null: all that are not in your list")] = None,
    query: Annotated[str | None, Doc("Words; returns the tools that match best")] = None,
) -> ToolSummaries:
    """Find tools beyond this list: to compile and draw flows, create schedules and watchers, and for objectives, alerts, events,
    traces and retention."""
    if name is not None:
        found = get_tool(name)
        return ToolSummaries([_summary(found, found.listed().input_schema)])
    wanted = [each for each in TOOLS.values() if context.may(each.scope)]
    if toolset is not None:
        wanted = [each for each in wanted if TOOLSET_OF[each.name] == toolset]
    if query is not None:
        return ToolSummaries([_summary(each) for each in _matching(wanted, query)])
    return ToolSummaries([_summary(each) for each in wanted if toolset is not None or not is_listed(context, each)])


def _matching(tools: list[Tool], query: str) -> list[Tool]:
    """The tools whose names and descriptions have most of the words (in the singular)."""
    words = {word.rstrip("s") for word in re.findall(r"[a-z0-9]+", query.lower())} - {""}
    counts = {each.name: sum(word in f"{each.name} {each.description}".lower() for word in words) for each in tools}
    most = max(counts.values(), default=0)
    return [each for each in tools if most and counts[each.name] == most]


@tool(changes=True, ends=True)
async def tool_call(
    context: RequestContext,
    name: Annotated[str | None, Doc("A tool that `tool_find` names", "schedule_create")] = None,
    arguments: Annotated[dict[str, Json] | None, Doc("Its arguments")] = None,
    tool: Annotated[str | None, Doc("The same as `name`, as in `actions`")] = None,
) -> ToolCalled:
    """Call a tool that is not in this list."""
    if len({name, tool} - {None}) != 1:
        raise InvalidInput("Give the tool's `name`; `tool_find` lists the tools.")
    called = get_tool(name or tool or "")
    return ToolCalled(advisor(context).value(to_builtins(await called.call(context, arguments or {}))))


def _summary(each: Tool, schema: dict[str, Json] | None = None) -> ToolSummary:
    listed = each.listed()
    return ToolSummary(each.name, TOOLSET_OF[each.name], listed.description or "", schema)


def _assigned() -> dict[str, Toolset]:
    found: dict[str, Toolset] = {
        each.name: name for name, modules in _MODULES.items() for module in modules for each in module.TOOLS
    }
    return found | {each: name for name, moved in _MOVED.items() for each in moved.split()} | dict.fromkeys(_META, "core")


_META = {each.name: each for each in (tool_find, tool_call)}
TOOLS: dict[str, Tool] = {each.name: each for modules in _MODULES.values() for module in modules for each in module.TOOLS} | _META
TOOLSET_OF = _assigned()
"""The one toolset of each tool."""


def get_tool(name: str) -> Tool:
    """Return the tool, or raise `ToolNotFound`."""
    if name not in TOOLS:
        raise ToolNotFound(f"There is no tool {name!r}; `tool_find` lists them.")
    return TOOLS[name]


def is_listed(context: RequestContext, each: Tool) -> bool:
    """Whether the client's list has the tool; it may call all others, too."""
    return context.may(each.scope) and TOOLSET_OF[each.name] in (context.toolsets or DEFAULT)


def parse_toolsets(text: str) -> frozenset[str]:
    """Toolsets separated by commas; `all` for every one."""
    names = frozenset(each.strip() for each in text.split(",") if each.strip())
    known = frozenset(get_args(Toolset))
    if unknown := names - known - {"all"}:
        raise InvalidInput(f"There is no toolset {min(unknown)!r}; there are {', '.join(sorted(known))}, and `all`.")
    return known if "all" in names else names


def advisor(context: RequestContext) -> Advisor:
    """The advisor for the client."""
    return Advisor(
        lambda name: TOOLS[name].input_schema if name in TOOLS else None,
        lambda name: is_listed(context, TOOLS[name]),
    )


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
