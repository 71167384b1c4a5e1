"""All tools, resources and prompts, in the order in which they are listed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal, get_args

from treadle.api.contract import Doc
from treadle.api.wire import to_builtins
from treadle.interfaces.mcp import diagnosis, flows, operate, runs
from treadle.interfaces.mcp.advice import Advisor
from treadle.interfaces.mcp.answers import Fields, record_type
from treadle.interfaces.mcp.operations import OPERATIONS
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import Tool, tool
from treadle.model.errors import InvalidInput, NotFound, TreadleError
from treadle.model.states import RunState
from treadle.model.text import suggestion
from treadle.model.values import Json

_COMPLETION_LIMIT = 100

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

_TOOLSETS: dict[Toolset, str] = {
    "core": (
        "why system_status worker_abilities debug run_list run_show run_steps step_show run_logs run_outputs run_signal "
        "run_query run_retry task_enqueue task_list task_show task_result task_cancel task_retry task_resume "
        "approval_list approval_show approval_decide afl_resume_workflow afl_continue_step afl_fail_step afl_retry_step "
        "run_fork run_fork_preview afl_manage_runner tool_find tool_call"
    ),
    "operate": (
        "dead_letter_groups dead_letter_list dead_letter_retry dead_letter_discard list_show list_manage limit_set "
        "worker_start external_job_list external_job_show external_job_manage schedule_list schedule_show "
        "schedule_manage schedule_run watcher_list watcher_show watcher_manage function_list function_adopt"
    ),
    "author": "afl_validate afl_execute_workflow run_start flow_list flow_show flow_publish afl_manage_handlers",
    "flows": "afl_compile flow_format flow_graph",
    "functions": "function_start run_update",
    "schedules": "schedule_preview schedule_create schedule_edit schedule_backfill schedule_delete",
    "watchers": "watcher_seen watcher_create watcher_edit watcher_delete",
    "handlers": "handler_list",
    "objectives": "objective_list objective_show objective_add objective_edit objective_manage",
    "inspect": "metrics_show event_list audit_list trace_show effect_list",
    "alerts": "alert_list alert_show alert_add alert_test alert_silence alert_remove",
    "maintain": ("run_bulk list_policy list_desired task_pause run_rerun external_job_rebuild store_verify store_keep store_prune"),
}
"""The tools of each toolset."""


_SUMMARY = record_type("ToolSummary", {"name": str, "toolset": Toolset, "description": str, "input_schema": dict[str, Json] | None})


@tool(answers={"tools": list[_SUMMARY]})  # type: ignore[valid-type]
async def tool_find(
    context: RequestContext,
    name: Annotated[str | None, Doc("Return the arguments of this tool")] = None,
    toolset: Annotated[Toolset | None, Doc("Only this toolset")] = None,
    query: Annotated[str | None, Doc("Words to search for")] = None,
) -> Fields:
    """Find tools beyond this list: for flows, schedules, watchers, objectives, alerts, events, traces and retention."""
    if name is not None:
        tool = get_tool(name)
        return {"tools": [_summary(tool, tool.listed().input_schema)]}
    wanted = [tool for tool in TOOLS.values() if context.may(tool.scope)]
    if toolset is not None:
        wanted = [tool for tool in wanted if TOOLSET_OF[tool.name] == toolset]
    if query is not None:
        return {"tools": [_summary(tool) for tool in _matching(wanted, query)]}
    return {"tools": [_summary(tool) for tool in wanted if toolset is not None or not is_listed(context, tool)]}


def _matching(tools: list[Tool], query: str) -> list[Tool]:
    """The tools whose names and descriptions have most of the words (in the singular)."""
    words = {word.rstrip("s") for word in re.findall(r"[a-z0-9]+", query.lower())} - {""}
    counts = {tool.name: sum(word in f"{tool.name} {tool.description}".lower() for word in words) for tool in tools}
    most = max(counts.values(), default=0)
    return [tool for tool in tools if most and counts[tool.name] == most]


@tool(answers={"result": dict[str, Json]}, changes=True, ends=True)
async def tool_call(
    context: RequestContext,
    name: Annotated[str | None, Doc("A tool that `tool_find` names", "schedule_create")] = None,
    arguments: Annotated[dict[str, Json] | None, Doc("Its arguments")] = None,
    tool: Annotated[str | None, Doc("The same as `name`, as in `actions`")] = None,
) -> Fields:
    """Call a tool that is not in this list."""
    if len({name, tool} - {None}) != 1:
        raise InvalidInput("Give the tool's `name`; `tool_find` lists the tools.")
    called = get_tool(name or tool or "")
    return {"result": advisor(context).value(to_builtins(await called.call(context, arguments or {})))}


def _summary(summarized: Tool, schema: dict[str, Json] | None = None) -> Json:
    """The name, toolset and description of a tool; null for its schema in lists."""
    description = summarized.listed().description or ""
    toolset = TOOLSET_OF[summarized.name]
    return {"name": summarized.name, "toolset": toolset, "description": description, "input_schema": schema}


_ALL = (*OPERATIONS, *runs.TOOLS, *operate.TOOLS, *flows.TOOLS, *diagnosis.TOOLS, tool_find, tool_call)
TOOLSET_OF: dict[str, Toolset] = {name: toolset for toolset, names in _TOOLSETS.items() for name in names.split()}
"""The one toolset of each tool."""
TOOLS: dict[str, Tool] = {name: {tool.name: tool for tool in _ALL}[name] for name in TOOLSET_OF}


def get_tool(name: str) -> Tool:
    """Return the tool, or raise `ToolNotFound`."""
    if name not in TOOLS:
        raise NotFound(f"There is no tool {name!r}; `tool_find` lists them{suggestion(name, TOOLS) or '.'}", code="tool_not_found")
    return TOOLS[name]


def is_listed(context: RequestContext, tool: Tool) -> bool:
    """Whether the client's list has the tool; it may call all others, too."""
    return context.may(tool.scope) and TOOLSET_OF[tool.name] in (context.toolsets or DEFAULT)


def parse_toolsets(text: str) -> frozenset[str]:
    """Toolsets separated by commas; `all` for every one."""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    toolsets = frozenset(get_args(Toolset))
    if unknown := names - toolsets - {"all"}:
        raise InvalidInput(f"There is no toolset {min(unknown)!r}; there are {', '.join(sorted(toolsets))}, and `all`.")
    return toolsets if "all" in names else names


def advisor(context: RequestContext) -> Advisor:
    """The advisor for the client."""
    return Advisor(
        lambda name: TOOLS[name].input_schema if name in TOOLS else None,
        lambda name: is_listed(context, TOOLS[name]),
    )


async def complete(context: RequestContext, name: str, typed: str) -> list[str]:
    """Known values of an argument that begin with the typed text; empty if none are known or the caller may not see them."""
    try:
        candidates = await _candidates(context, name)
    except TreadleError:
        return []
    return [candidate for candidate in candidates if candidate.startswith(typed)][:_COMPLETION_LIMIT]


async def _candidates(context: RequestContext, name: str) -> Iterable[str]:
    match name:
        case "run_id" | "runner_id":
            return [run.id for run in (await context.api.runs.list(limit=_COMPLETION_LIMIT)).runs]
        case "task_id":
            return [task.id for task in (await context.api.tasks.list(limit=_COMPLETION_LIMIT)).tasks]
        case "flow_id":
            return [flow.name for flow in (await context.api.flows.list()).flows]
        case "facet_name":
            return [handler.facet_name for handler in (await context.api.handlers.list()).handlers]
        case "state":
            return [state.value for state in RunState]
        case _:
            return []
