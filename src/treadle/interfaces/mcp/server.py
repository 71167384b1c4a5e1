"""The MCP server: the SDK's server with our tools, resources and prompts, for any transport and over stdin and stdout."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any, TextIO

import anyio
import mcp_types as wire
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from treadle.interfaces.mcp.catalog import TOOLS, advisor, complete, is_listed
from treadle.interfaces.mcp.prompts import PROMPTS_BY_NAME
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.resources import RESOURCES, find_resource
from treadle.interfaces.mcp.tool import answer
from treadle.model.text import safe_logger
from treadle.version import VERSION

_LOG = safe_logger("treadle.mcp")

Context = ServerRequestContext[Any, Any]
ContextOf = Callable[[Context], Awaitable[RequestContext]]
"""Returns our context for a request of the SDK."""

INSTRUCTIONS = """Treadle is a durable work engine: tasks for handlers, workflows in AFL, approvals by people, objectives.
Read the prompt `afl_language` (or the resource afl://language) before you write AFL, and call `afl_validate` after each change.
Runs are durable: they continue after a tool has returned or its call was canceled. `system_status` names problems, `why` the
reason for any state; the calls that they recommend are in `actions`.
`tool_find` finds tools that are not listed, `tool_call` calls them.
Arguments mean the same everywhere: `run_id`, `task_id`, `step_id`, `approval_id`, `job_id`, `objective_id`; `task_list` (the list
that workers select tasks from, by default `default`); `idempotency_key` (a repeated call with it does nothing more); `wait_for`
(seconds to wait for the end, up to 50); `whole` (include large values); `limit` (page size, up to 100), `before` and `after`
(`next_before` or `next_after` of the previous page). Errors have a stable `code`."""


def make_server(context_of: ContextOf) -> Server[Any]:
    """Make a server for any transport."""

    async def list_tools(ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListToolsResult:
        context = await context_of(ctx)
        return wire.ListToolsResult(tools=[tool.listed() for tool in TOOLS.values() if is_listed(context, tool)])

    async def call_tool(ctx: Context, params: wire.CallToolRequestParams) -> wire.CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(wire.INVALID_PARAMS, f"There is no tool {params.name!r}.")
        context = replace(await context_of(ctx), report=ctx.session.report_progress)
        return await answer(tool, context, params.arguments or {}, advisor(context))

    async def list_resources(ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListResourcesResult:
        return wire.ListResourcesResult(resources=[resource.listed() for resource in RESOURCES if not resource.is_template])

    async def list_templates(ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListResourceTemplatesResult:
        templates = [resource.listed_template() for resource in RESOURCES if resource.bare != resource.uri or resource.is_template]
        return wire.ListResourceTemplatesResult(resource_templates=templates)

    async def read_resource(ctx: Context, params: wire.ReadResourceRequestParams) -> wire.ReadResourceResult:
        match = find_resource(params.uri)
        if match is None:
            raise MCPError(wire.INVALID_PARAMS, f"There is no resource {params.uri}.", {"code": "not_found", "uri": params.uri})
        context = await context_of(ctx)
        return await match[0].read(context, params.uri, match[1], advisor(context))

    async def list_prompts(ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListPromptsResult:
        return wire.ListPromptsResult(prompts=[prompt.listed() for prompt in PROMPTS_BY_NAME.values()])

    async def get_prompt(ctx: Context, params: wire.GetPromptRequestParams) -> wire.GetPromptResult:
        prompt = PROMPTS_BY_NAME.get(params.name)
        if prompt is None:
            raise MCPError(wire.INVALID_PARAMS, f"There is no prompt {params.name!r}.")
        context = await context_of(ctx)
        return await prompt.render(context, params.arguments or {}, advisor(context))

    async def completion(ctx: Context, params: wire.CompleteRequestParams) -> wire.CompleteResult:
        values = await complete(await context_of(ctx), params.argument.name, params.argument.value)
        return wire.CompleteResult(completion=wire.Completion(values=values))

    return Server(
        "treadle",
        version=VERSION,
        title="Treadle",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=lambda name: TOOLS[name].input_schema if name in TOOLS else None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=completion,
    )


Wire = tuple[TextIO, TextIO]
"""The original stdin and stdout."""


@contextmanager
def kept_wire() -> Iterator[Wire]:
    """Reserve stdin and stdout for the client.

    Other readers of stdin get nothing; output of loaded modules and of child processes goes to stderr.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        yield (
            open(incoming, encoding="utf-8", errors="replace", closefd=False),  # noqa: SIM115 - a thread may still read it
            open(outgoing, "w", encoding="utf-8", closefd=False),  # noqa: SIM115
        )
    finally:
        sys.stdout.flush()
        os.dup2(incoming, 0)
        os.dup2(outgoing, 1)


async def serve_stdio(opening: AbstractAsyncContextManager[RequestContext], wire: Wire, stop: asyncio.Event) -> None:
    """Serve until stdin ends.

    On `stop`, close the context and end the process here: a thread reads stdin, and nothing can interrupt it.
    """
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(opening)

        async def context_of(ctx: Context) -> RequestContext:
            return context

        server = make_server(context_of)
        async with stdio_server(anyio.wrap_file(wire[0]), anyio.wrap_file(wire[1])) as (read_stream, write_stream):
            running = asyncio.ensure_future(server.run(read_stream, write_stream, server.create_initialization_options()))
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            failed = running.exception() if running.done() else None
            if running.done() and failed is None:
                return
            if failed is not None:
                _LOG.error("serving the client failed", exc_info=failed)
            running.cancel()
            await stack.aclose()
            sys.stderr.flush()
            os._exit(0 if failed is None else 1)
