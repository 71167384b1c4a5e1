"""Durable agents of Pydantic AI: an agent that runs in a durable function records its model requests, tool calls and MCP calls.

agent = Agent("anthropic:claude-haiku-4-5", name="support", capabilities=[TreadleDurability(model={"retry": 3})])

@engine.function("support")
async def support(question: str) -> str:
    return (await agent.run(question)).output

Each is a step of the run: after a crash, a recorded one is not repeated. Tools that require approval become approvals, and the run
waits for them without a worker. Usage counts against the budget of the run. Outside durable functions, and inside a step, the
agent runs as without the capability.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, cast

from treadle.integrations import missing

try:
    from pydantic_ai import AgentStreamEvent, RunContext
except ImportError as error:
    raise missing("pydantic-ai", error) from error

from pydantic import TypeAdapter
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities import ValidatedToolArgs, WrapToolExecuteHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    CallableOperationBackend,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalOperationNamer,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.tools import (
    AgentDepsT,
    DeferredToolRequests,
    DeferredToolResults,
    ToolApproved,
    ToolDefinition,
    ToolDenied,
)
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python

from treadle.integrations.agent_steps import (
    StepOptions,
    ToolOptions,
    ask,
    call_task,
    checked_approval,
    checked_options,
    function_of,
    meter_of,
    metered,
    most_output,
    replay_id,
    run_model_step,
    run_step,
    write_to,
)
from treadle.llm.ledger import TokenCounts
from treadle.model.errors import InvalidInput, NonRetryable
from treadle.model.names import check_name
from treadle.workers.functions.context import FunctionContext, current_function

__all__ = ["StepOptions", "ToolOptions", "TreadleDurability"]

_USAGE = "treadle_usage"
_RUN_USAGE = TypeAdapter(RunUsage)
_METADATA = "treadle"
"""The key of a tool's options in its metadata."""
_Options = Mapping[str, Any]


@dataclass(init=False, kw_only=True)
class TreadleDurability(BaseDurabilityCapability[AgentDepsT]):
    """Records the model requests, tool calls and MCP calls of an agent as steps of the durable function that runs it.

    `model`, `tools` and `mcp` are options of these steps. The metadata of a tool overrides them: `metadata={"treadle":
    ToolOptions(...)}`, or `False` to run the tool's code as part of the function, without a step. `approval` has options of
    `ctx.approval`. `stream` names the stream of the run to which all events of the agent are written. `name` (default:
    the agent's) begins the names of the steps; do not change it while runs are under way.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Treadle",
        durable_unit_noun="step",
        durable_container_noun="function",
        codec=JSON_CODEC,
        serialization_failure=lambda error: NonRetryable(f"The result cannot be stored: {error}", "invalid_result"),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=_METADATA,
    )

    def __init__(
        self,
        *,
        model: StepOptions | None = None,
        tools: ToolOptions | None = None,
        mcp: StepOptions | None = None,
        approval: Mapping[str, Any] | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        stream: str | None = None,
        name: str | None = None,
    ) -> None:
        if stream is not None and event_stream_handler is not None:
            raise InvalidInput("Give TreadleDurability either `stream` or `event_stream_handler`, not both.")
        handler = event_stream_handler if stream is None else partial(_forward, check_name(stream, "stream name"))
        super().__init__(models=models, event_stream_handler=handler, name=name)
        self._model_options = checked_options(model or {}, StepOptions, "model")
        self._tool_options = checked_options(tools or {}, ToolOptions, "tools")
        self._mcp_options = checked_options(mcp or {}, StepOptions, "mcp")
        self._approval = checked_approval(approval or {})

    @property
    def in_durable_context(self) -> bool:
        """Whether the calling code belongs to a durable function, outside its steps."""
        return current_function() is not None

    def get_default_run_id(self) -> str | None:
        """Return an id that is the same in every replay."""
        ctx = current_function()
        return None if ctx is None else replay_id(ctx, f"{self.name}.run")

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return an id that is the same in every replay."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return the recorded start of the run, from which its `timeout` counts."""
        ctx = current_function()
        if ctx is None:
            return None
        clock = ctx._driver.execution.runtime.clock
        started = await ctx.hosted(f"{self.name}.start", ctx.step(clock.now))
        return datetime.fromtimestamp(started / 1000, UTC)

    def get_durable_operation_backend(self) -> DurableOperationBackend[_Options]:
        """Return the backend that runs operations as steps."""
        config = RoleBasedOperationConfig[_Options](
            model=self._model_options, event={}, capability={}, tool=self._tool_options, resolve_tool=self._options_of
        )
        return _Backend(self.name, config)

    def _options_of(self, operation_id: DurableOperationId, tool: object | None, tool_name: str) -> _Options | Literal[False]:
        base = self._mcp_options if getattr(operation_id, "toolset_kind", None) == "mcp" else self._tool_options
        definition = getattr(tool, "tool_def", None)
        own = None if definition is None else (definition.metadata or {}).get(_METADATA)
        if own is False:
            return False
        return base if not own else {**base, **checked_options(own, ToolOptions, f"The tool {tool_name}")}

    async def before_model_request(self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext) -> ModelRequestContext:
        """Bound the output of a request whose run has a budget: its maximum cost must be known."""
        function = current_function()
        settings = request_context.model_settings or {}
        if function is not None and settings.get("max_tokens") is None and await meter_of(function).limit() is not None:
            request_context = replace(
                request_context, model_settings=cast("Any", {**settings, "max_tokens": most_output(function)})
            )
        return await super().before_model_request(ctx, request_context)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: ValidatedToolArgs,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Call the handler of a tool that is a task."""
        function, own = current_function(), (tool_def.metadata or {}).get(_METADATA)
        options = {**self._tool_options, **(own or {})}
        if function is None or own is False or not options.get("task"):
            return await super().wrap_tool_execute(ctx, call=call, tool_def=tool_def, args=args, handler=handler)
        name = _named(f"{self.name}.task:{call.tool_name}", ctx.run_id, call.tool_call_id)
        return await call_task(function, name, options, to_jsonable_python(args))

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask for approvals: of calls that require them, and for the results of external calls, in `result` of the context."""
        function = current_function()
        if function is None:
            return None

        async def decide(call: ToolCallPart, *, external: bool) -> Any:
            arguments = call.args_as_dict()
            own = (ctx.tools[call.tool_name].metadata or {}).get(_METADATA) if call.tool_name in ctx.tools else None
            options = {**self._approval, **((own or {}).get("approval") or {})}
            context = {"args": arguments, **({"result": None} if external else {}), **_shown(requests, call)}
            name = _named(f"{self.name}.approval:{call.tool_name}", ctx.run_id, call.tool_call_id)
            decision = await ask(function, name, call.tool_name, context, options)
            if decision.denied is not None:
                return f"The call was denied: {decision.denied}" if external else ToolDenied(decision.denied)
            if external:
                return decision.context.get("result")
            approved = decision.context.get("args")
            return ToolApproved(override_args=approved if approved != arguments else None)

        calls = [*((call, False) for call in requests.approvals), *((call, True) for call in requests.calls)]
        decided = await asyncio.gather(*(decide(call, external=external) for call, external in calls))
        results = list(zip(calls, decided, strict=True))
        return requests.build_results(
            approvals={call.tool_call_id: result for (call, external), result in results if not external},
            calls={call.tool_call_id: result for (call, external), result in results if external},
        )


def _shown(requests: DeferredToolRequests, call: ToolCallPart) -> dict[str, Any]:
    metadata = requests.metadata.get(call.tool_call_id)
    return {"metadata": to_jsonable_python(metadata)} if metadata else {}


def _named(name: str, run_id: str | None, call_id: str | None = None) -> str:
    """Return the name of a step; that of another run of the same agent, in the same place of the function, is different."""
    run = (run_id or "").rpartition("#")[2] if "#" in (run_id or "") else ""
    return f"{name}{f'@{run}' if run else ''}{f' {call_id}' if call_id else ''}"


class _Names(JournalOperationNamer):
    """Names of steps, which are stored: `support.model`, `support.tool:search`."""

    def __init__(self, agent: str) -> None:
        super().__init__(agent)
        self._agent = agent

    def operation_name(self, operation_id: DurableOperationId) -> str:
        match operation_id:
            case ModelRequestId():
                return f"{self._agent}.model"
            case ToolsetCallToolId(toolset_kind="mcp", toolset_id=toolset):
                return f"{self._agent}.mcp:{toolset}"
            case ToolsetCallToolId():
                return f"{self._agent}.tool"
            case _:
                return super().operation_name(operation_id)


class _Backend(CallableOperationBackend[_Options]):
    def __init__(self, agent: str, config: RoleBasedOperationConfig[_Options]) -> None:
        super().__init__(namer=_Names(agent), config=config)

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: _Options,
    ) -> object:
        """Record the operation as a step."""
        function = function_of()
        run = next((argument for argument in cache_key if isinstance(argument, RunContext)), None)
        if isinstance(operation_id, ToolsetCallToolId) and operation_id.toolset_kind == "mcp":
            name = f"{name}.{cache_key[0]}"
        named = _named(name, None if run is None else run.run_id, None if run is None else run.tool_call_id)
        if isinstance(operation_id, ModelRequestId):
            body = _within_budget(function, operation_id.model_name, body, cache_key)
            return await run_model_step(function, named, body, config)
        if run is None or not isinstance(operation_id, ToolsetCallToolId):
            return await run_step(function, named, body, config)
        usage = run.usage
        try:
            recorded = await run_step(function, named, _measured(run, body), config)
        finally:
            run.usage = usage
        if isinstance(recorded, dict) and recorded.keys() == {_USAGE, "result"}:
            usage.incr(_RUN_USAGE.validate_python(recorded[_USAGE]))
            return recorded["result"]
        return recorded


def _measured(run: RunContext[Any], body: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
    """Record with the result of a tool the usage of agents that it runs: a replay, which does not call the tool, adds the same."""
    before = deepcopy(run.usage)

    async def call() -> object:
        run.usage = deepcopy(before)
        result = await body()
        usage = run.usage - before
        return {_USAGE: _RUN_USAGE.dump_python(usage, mode="json"), "result": result} if usage.has_values() else result

    return call


def _within_budget(
    function: FunctionContext, model: str, body: Callable[[], Awaitable[object]], cache_key: tuple[object, ...]
) -> Callable[[], Awaitable[object]]:
    _, messages, settings, parameters, *_ = cache_key
    model_settings = cast("dict[str, Any]", settings or {})

    async def send() -> object:
        sent = {"messages": messages, "parameters": parameters}
        request = to_jsonable_python(sent, fallback=repr, bytes_mode="base64", exclude_none=True)
        request["max_tokens"] = model_settings.get("max_tokens") or most_output(function)
        return await metered(function, model, request, body, _tokens, _status)

    return send


def _tokens(response: object) -> TokenCounts:
    usage = cast("dict[str, Any]", response).get("usage") or {}
    names = ("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens")
    return TokenCounts.of_total(*(int(usage.get(name) or 0) for name in names))


async def _forward(stream: str, _: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
    async for event in events:
        write_to(stream, event)


def _status(error: Exception) -> int | None:
    return error.status_code if isinstance(error, ModelHTTPError) else None
