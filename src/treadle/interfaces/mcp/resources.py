"""Resources under `afl://`: runs (runners), steps, logs, flows and their sources, servers, tasks, handlers, the language."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, get_args, get_origin

import mcp_types as wire
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import UriTemplate

from treadle.api.contract import ApiRecord
from treadle.api.servers import ServerList
from treadle.api.steps import Step
from treadle.api.wire import to_builtins
from treadle.interfaces.mcp.advice import Advisor
from treadle.interfaces.mcp.answers import PAGE_LIMIT, Fields, page_size, shown, text_of
from treadle.interfaces.mcp.flows import BRIEF, flow_list, flow_show
from treadle.interfaces.mcp.operate import handler_list
from treadle.interfaces.mcp.operations import BY_NAME
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.runs import run_show
from treadle.interfaces.mcp.tool import Tool, details
from treadle.model.errors import InvalidInput, NotFound, TreadleError

_PAGE = 50
JSON, TEXT, MARKDOWN = "application/json", "text/plain", "text/markdown"

Reading = Callable[..., Awaitable[ApiRecord | Fields | str]]


@dataclass(frozen=True)
class Resource:
    """A resource with a fixed URI or a URI template (RFC 6570)."""

    uri: str
    name: str
    description: str
    mime_type: str
    body: Reading

    @cached_property
    def template(self) -> UriTemplate:
        """The URI as a template."""
        return UriTemplate.parse(self.uri)

    @property
    def is_template(self) -> bool:
        """Whether the URI has required variables; query variables are optional."""
        return bool(set(self.template.variable_names) - self.template.query_variable_names)

    @property
    def bare(self) -> str:
        """The URI without its query variables."""
        return self.uri.partition("{?")[0]

    def listed(self) -> wire.Resource:
        """Its description for clients."""
        return wire.Resource(uri=self.bare, name=self.name, description=self.description, mime_type=self.mime_type)

    def listed_template(self) -> wire.ResourceTemplate:
        """Its description as a template, for clients."""
        return wire.ResourceTemplate(uri_template=self.uri, name=self.name, description=self.description, mime_type=self.mime_type)

    async def read(self, context: RequestContext, uri: str, filled: Mapping[str, Any], advisor: Advisor) -> wire.ReadResourceResult:
        """Read it; errors of the engine become protocol errors with the code in their data."""
        try:
            content = await self.body(context, **filled)
        except TreadleError as error:
            raise refused(error, advisor, uri) from error
        text = content if isinstance(content, str) else text_of(advisor.value(to_builtins(content)))
        return wire.ReadResourceResult(contents=[wire.TextResourceContents(uri=uri, mime_type=self.mime_type, text=text)])


def resource(uri: str, name: str, mime_type: str = JSON) -> Callable[[Reading], Resource]:
    """Make a resource of a function; the template's variables are its parameters."""

    def made(body: Reading) -> Resource:
        return Resource(uri, name, " ".join((body.__doc__ or "").split()), mime_type, body)

    return made


def refused(error: TreadleError, advisor: Advisor, uri: str | None = None) -> MCPError:
    """The protocol error; `data` has the stable code."""
    code = wire.INVALID_PARAMS if isinstance(error, NotFound | InvalidInput) else wire.INTERNAL_ERROR
    where = {} if uri is None else {"uri": uri}
    return MCPError(code, f"{error.code}: {advisor.text(str(error))}", {"code": error.code, **where, **details(error)})


def _number(text: str | None, default: int | None = None) -> int | None:
    if text is None:
        return default
    if not text.isdigit():
        raise InvalidInput(f"{text!r} is not a number.")
    return int(text)


def _limit(text: str | None) -> int:
    return page_size(_number(text, _PAGE) or 0)


def _step(run_id: str, step: Step) -> Fields:
    """A step in the terms of agents: its run is a workflow, its parent a container and, for a step, the block that has it."""
    return {
        "id": step.id,
        "workflow_id": run_id,
        "object_type": step.kind,
        "state": step.language_state,
        "statement_id": step.statement_id,
        "container_id": step.parent_id,
        "block_id": step.parent_id if step.is_step else None,
        "facet_name": step.facet,
        "params": shown(step.params),
        "returns": shown(step.returns),
        "path": step.path,
        "error": None if step.error is None else step.error.message,
    }


def tool_resource(
    uri: str, name: str, description: str, tool: Tool, variables: Mapping[str, str] = MappingProxyType({}), **values: Any
) -> Resource:
    """Make a resource that is the result of a tool with these `values`; `variables` has its arguments by those of the URI."""
    arguments = {parameter.name: parameter.hint for parameter in tool.parameters}

    async def body(context: RequestContext, **filled: str) -> ApiRecord | Fields:
        page = {"limit": _limit(filled.pop("limit", None))} if "limit" in arguments else {}
        texts = {variables.get(variable, variable): text for variable, text in filled.items()}
        parsed = {argument: _parsed(text, arguments[argument]) for argument, text in texts.items()}
        return await tool.perform(context, **values, **page, **parsed)

    return Resource(uri, name, description, JSON, body)


def _parsed(text: str, hint: Any) -> Any:
    """The value of a URI's variable for an argument: a number, the one member of a sequence, or the text."""
    kind = get_args(hint)[0]
    if get_origin(kind) is Sequence:
        return [text]
    return _number(text) if int in (kind, *get_args(kind)) else text


@resource("afl://runners/{runner_id}/steps{?state,after,limit}", "runner steps")
async def runner_steps(
    context: RequestContext, runner_id: str, state: str | None = None, after: str | None = None, limit: str | None = None
) -> ApiRecord | Fields:
    """Steps and blocks of a run with their values; pass `next_after` as `after` for the next page."""
    page = await context.api.steps.list(runner_id, state=[state] if state else (), after=after, limit=_limit(limit))
    return {"steps": [_step(page.run_id, step) for step in page.steps], "next_after": page.next_after}


@resource("afl://steps/{step_id}", "step")
async def step(context: RequestContext, step_id: str) -> ApiRecord | Fields:
    """One step."""
    address = await context.api.steps.find(step_id)
    return _step(address.run_id, await context.api.steps.get(address.run_id, address.step_id))


@resource("afl://flows/{flow_id}/source{?version}", "flow source", TEXT)
async def flow_source(context: RequestContext, flow_id: str, version: str | None = None) -> str:
    """The AFL of a flow; multiple sources are concatenated, each after a line with its name."""
    sources = (await context.api.flows.get(flow_id, version=_number(version))).sources
    if len(sources) == 1:
        return sources[0].text
    return "\n".join(f"// --- {source.name} ---\n{source.text}" for source in sources)


@resource("afl://servers", "servers")
async def servers(context: RequestContext) -> ApiRecord | Fields:
    """The processes that host workers, newest first, at most 100."""
    return ServerList((await context.api.servers.list()).servers[:PAGE_LIMIT])


@resource("afl://handlers/{facet_name}", "handler")
async def handler(context: RequestContext, facet_name: str) -> ApiRecord | Fields:
    """The handler registration of a facet, by its qualified name."""
    return await context.api.handlers.get(facet_name)


@resource("afl://language", "language", MARKDOWN)
async def language(context: RequestContext) -> str:
    """AFL on one page, with examples."""
    return BRIEF


RESOURCES = (
    tool_resource(
        "afl://runners{?state,before,limit}",
        "runners",
        "Runs, newest first; pass `next_before` as `before` for the next page.",
        BY_NAME["run_list"],
    ),
    tool_resource(
        "afl://runners/{runner_id}",
        "runner",
        "One run: inputs, outputs, error, and the reason for its state.",
        run_show,
        {"runner_id": "run_id"},
    ),
    runner_steps,
    tool_resource(
        "afl://runners/{runner_id}/logs{?before,after,limit}",
        "runner logs",
        "The latest log lines of a run, or those before or after a number.",
        BY_NAME["run_logs"],
        {"runner_id": "run_id"},
    ),
    step,
    tool_resource("afl://flows{?after,limit}", "flows", "The newest version of each published flow.", flow_list),
    tool_resource(
        "afl://flows/{flow_id}{?version}",
        "flow",
        "A flow by name or digest: its workflows with parameters and outputs, and the handlers it needs.",
        flow_show,
        {"flow_id": "name"},
        with_sources=False,
    ),
    flow_source,
    servers,
    tool_resource(
        "afl://tasks{?state,before,limit}",
        "tasks",
        "Tasks, newest first; pass `next_before` as `before` for the next page.",
        BY_NAME["task_list"],
    ),
    tool_resource(
        "afl://tasks/{task_id}",
        "task",
        "One task: payload, result, error, history, and the reason for its state.",
        BY_NAME["task_show"],
    ),
    tool_resource(
        "afl://handlers{?after,limit}",
        "handlers",
        "Handler registrations by name; pass `next_after` as `after` for the next page.",
        handler_list,
    ),
    handler,
    tool_resource("afl://status", "status", "Status of the system and its problems.", BY_NAME["system_status"]),
    language,
)

_RUNS = re.compile(r"^afl://runs(?=[/?]|$)")
"""Agents call runs "runners"; both names work."""


def find_resource(uri: str) -> tuple[Resource, dict[str, str]] | None:
    """The resource of a URI and the values of its template's variables; None if there is none."""
    uri = _RUNS.sub("afl://runners", uri)
    for candidate in RESOURCES:
        filled = candidate.template.match(uri)
        if filled is not None:
            return candidate, {name: str(value) for name, value in filled.items()}
    return None
