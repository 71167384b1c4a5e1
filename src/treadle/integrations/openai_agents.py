"""Durable agents of the OpenAI Agents SDK: a runner whose model requests, tool calls, guardrails, handoffs and MCP calls are steps.

runner = TreadleRunner(model={"retry": 3}, tools={"refund": ToolOptions(effect=True)})

@engine.function("support")
async def support(question: str) -> str:
    result = await runner.run(triage, question)
    return result.final_output

Each is a step of the run: after a crash, a recorded one is not repeated. Tools that need approval become approvals, and the run
waits for them without a worker. Usage counts against the budget of the run.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import inspect
import json
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar, cast

from treadle.integrations import missing

try:
    from agents.items import ToolApprovalItem
except ImportError as error:
    raise missing("openai-agents", error) from error

import httpx2
import openai
from agents.mcp import MCPServer
from agents.run import AgentRunner, set_default_agent_runner
from agents.tool_context import ToolContext
from mcp.types import CallToolResult
from mcp.types import Tool as MCPTool
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from agents import (
    Agent,
    AgentHooks,
    FunctionTool,
    GuardrailFunctionOutput,
    Handoff,
    InputGuardrail,
    Model,
    ModelBehaviorError,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    OutputGuardrail,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunResult,
    RunResultStreaming,
    RunState,
    ToolGuardrailFunctionOutput,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    Usage,
    handoff,
)
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
    run_model_step,
    run_step,
    write_to,
)
from treadle.llm.config import LLMError
from treadle.llm.ledger import TokenCounts
from treadle.model.errors import InvalidInput, MisusedContext, StepFailed
from treadle.model.names import check_name
from treadle.workers.functions.context import FunctionContext, current_function

__all__ = ["StepOptions", "ToolOptions", "TreadleRunner"]

G = TypeVar("G", InputGuardrail[Any], OutputGuardrail[Any])

_RESPONSE = TypeAdapter(ModelResponse)
_MCP_TOOLS = TypeAdapter(list[MCPTool])
_ANY = "*"
"""The name under which options apply to all tools."""

_STRUCTURED = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
_BODY_LIMIT = 2000
_DECISIVE_HEADERS = frozenset({"retry-after", "retry-after-ms", "x-should-retry", "x-request-id"})

_durable_run: ContextVar[bool] = ContextVar("durable_agent_run", default=False)


class _RefusingRunner(AgentRunner):
    """The SDK's runner, which refuses to run an agent in a durable function: a replay would repeat all its requests and calls."""

    async def run(self, starting_agent: Agent[Any], *arguments: Any, **options: Any) -> RunResult:
        _refuse_in_function("Runner.run")
        return await super().run(starting_agent, *arguments, **options)

    def run_streamed(self, starting_agent: Agent[Any], *arguments: Any, **options: Any) -> RunResultStreaming:
        _refuse_in_function("Runner.run_streamed")
        return super().run_streamed(starting_agent, *arguments, **options)


def _refuse_in_function(call: str) -> None:
    if not _durable_run.get() and current_function() is not None:
        raise MisusedContext(
            f"{call} was called in the code of a durable function, where a replay repeats its requests and calls. "
            "Use TreadleRunner().run, or call it in a step (`ctx.step`)."
        )


set_default_agent_runner(_RefusingRunner())


class TreadleRunner:
    """Runs agents in durable functions.

    `model` and `mcp` are options of the steps of model requests and MCP calls; `tools` has options by the name of the tool, `"*"`
    for all; `approval` has options of `ctx.approval`. `stream` names the stream of the run to which the events of the models are
    written. `name` (default: that of the agent) begins the names of the steps; do not change it while runs are under way.
    """

    def __init__(
        self,
        *,
        model: StepOptions | None = None,
        tools: Mapping[str, ToolOptions] | None = None,
        mcp: StepOptions | None = None,
        approval: Mapping[str, Any] | None = None,
        stream: str | None = None,
        name: str | None = None,
    ) -> None:
        self.stream = None if stream is None else check_name(stream, "stream name")
        self.model_options = checked_options(model or {}, StepOptions, "model")
        self.mcp_options = checked_options(mcp or {}, StepOptions, "mcp")
        self._tools = {
            tool: checked_options(tool_options, ToolOptions, f"The tool {tool}") for tool, tool_options in (tools or {}).items()
        }
        self._approval = checked_approval({"edits": False, **(approval or {})})
        self._name = name

    async def run(
        self,
        agent: Agent[Any],
        input: Any,  # noqa: A002
        *,
        ctx: FunctionContext | None = None,
        run_config: RunConfig | None = None,
        **options: Any,
    ) -> RunResult:
        """Run the agent in the durable function that calls this, until it has an output; options are those of `Runner.run`.

        The context of the run and a session are objects of the process: a replay does not repeat what tools did to them.
        """
        if isinstance(input, RunState):
            raise InvalidInput("A durable run continues by itself after approvals. Pass `result.to_input_list()`, not a RunState.")
        function = function_of(ctx)
        durable = _Durable(self, function, self._name or agent.name, run_config or RunConfig())
        token = _durable_run.set(True)
        try:
            return _DurableResult(await self._run(durable, agent, input, options), durable)
        except openai.APIError as error:
            raise durable.failures.get(id(error), error) from None
        finally:
            _durable_run.reset(token)

    async def _run(self, durable: _Durable, agent: Agent[Any], given: Any, options: dict[str, Any]) -> RunResult:
        starting, config = durable.agent(agent), durable.config()
        if options.get("hooks") is not None:
            options["hooks"] = durable.hooks(options["hooks"], RunHooks, "")
        result = await Runner.run(starting, given, run_config=config, **options)
        while result.interruptions:
            state = result.to_state()
            decisions = await asyncio.gather(*(self._decide(durable, item) for item in result.interruptions))
            for item, denied in zip(result.interruptions, decisions, strict=True):
                if denied is None:
                    state.approve(item)
                else:
                    state.reject(item, rejection_message=denied)
            options.pop("context", None)
            result = await Runner.run(starting, state, run_config=config, **options)
        return result

    def options_of(self, tool: str) -> dict[str, Any]:
        """Return the options of a tool."""
        return {**self._tools.get(_ANY, {}), **self._tools.get(tool, {})}

    async def _decide(self, durable: _Durable, item: ToolApprovalItem) -> str | None:
        """Ask whether a tool may be called; return the reason of a denial."""
        tool = item.tool_name or "tool"
        raw = to_jsonable_python(item.raw_item, fallback=repr)
        context = {"agent": item.agent.name, "args": _arguments(raw.get("arguments"))}
        name = f"{durable.name}.approval:{tool} {raw.get('call_id') or raw.get('id') or ''}"
        options = {**self._approval, **(self.options_of(tool).get("approval") or {})}
        return (await ask(durable.function, name, tool, context, options)).denied


class _DurableResult(RunResult):
    """The result of a run, with the agents of the caller."""

    def __init__(self, result: RunResult, durable: _Durable) -> None:
        self.__dict__.update(result.__dict__)
        self._last_of_caller: Agent[Any] = durable.original(result.last_agent)
        for part in (*self.new_items, *self.output_guardrail_results):
            for name in ("agent", "source_agent", "target_agent"):
                if hasattr(part, name):
                    setattr(part, name, durable.original(getattr(part, name)))

    @property
    def last_agent(self) -> Agent[Any]:
        """The agent of the caller that ran last."""
        return self._last_of_caller


class _Durable:
    """The agents of one run, with everything that they do wrapped in steps."""

    def __init__(self, runner: TreadleRunner, function: FunctionContext, name: str, config: RunConfig) -> None:
        self.runner, self.function, self.name = runner, function, name
        self._config = config
        self._agents: dict[int, Agent[Any]] = {}
        self._originals: dict[int, Agent[Any]] = {}
        self._named: dict[str, Agent[Any]] = {}
        self.failures: dict[int, Exception] = {}
        """The failures of steps, by the id of the SDK's error that stands for them."""

    async def step(self, what: str, code: Callable[[], Awaitable[Any]], options: Mapping[str, Any]) -> Any:
        """Record the code as a step of the run."""
        return await run_step(self.function, f"{self.name}.{what}", code, options)

    def original(self, value: Any) -> Any:
        """Return the caller's agent for a durable one; other values as they are."""
        return self._originals.get(id(value), value)

    def callback(self, what: str, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """Return a callback that is called once, with the agents of the caller, and whose result is recorded."""

        async def invoke(*arguments: Any, **keywords: Any) -> Any:
            async def call() -> Any:
                return await _awaited(function(*map(self.original, arguments), **keywords))

            call_id = getattr(arguments[0], "tool_call_id", "") if arguments else ""
            return await self.step(f"{what} {call_id}".rstrip(), call, {})

        return invoke

    def hooks(self, hooks: Any, base: type[Any], owner: str) -> Any:
        """Return hooks whose overridden methods are called once."""
        durable = base()
        for name in (name for name in dir(base) if name.startswith("on_")):
            method = getattr(hooks, name)
            if getattr(method, "__func__", method) is not getattr(base, name):
                setattr(durable, name, self.callback(f"hook:{owner}{name}", method))
        return durable

    def config(self) -> RunConfig:
        """Return the configuration of the run, with durable models."""
        config = self._config
        return replace(
            config,
            model=_DurableModel(self, config.model) if isinstance(config.model, Model) else config.model,
            model_provider=_DurableProvider(self, config.model_provider),
            input_guardrails=[self._guardrail(guardrail) for guardrail in config.input_guardrails or ()],
            output_guardrails=[self._guardrail(guardrail) for guardrail in config.output_guardrails or ()],
        )

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the durable agent, the same for the same one: agents may hand off to each other in circles."""
        if id(agent) in self._agents:
            return self._agents[id(agent)]
        durable = agent.clone(
            tools=[self._tool(tool) if isinstance(tool, FunctionTool) else tool for tool in agent.tools],
            input_guardrails=[self._guardrail(guardrail) for guardrail in agent.input_guardrails],
            output_guardrails=[self._guardrail(guardrail) for guardrail in agent.output_guardrails],
            mcp_servers=[self._server(server) for server in agent.mcp_servers],
            handoffs=[],
        )
        if isinstance(agent.model, Model):
            durable.model = _DurableModel(self, agent.model)
        if callable(agent.instructions):
            instructions = self.callback(f"instructions:{agent.name}", agent.instructions)

            async def instruct(context: RunContextWrapper[Any], of: Agent[Any]) -> Any:
                return await instructions(context, of)

            durable.instructions = instruct
        if agent.hooks is not None:
            durable.hooks = self.hooks(agent.hooks, AgentHooks, f"{agent.name}.")
        self._agents[id(agent)] = self._agents[id(durable)] = self._named[agent.name] = durable
        self._originals[id(durable)] = agent
        durable.handoffs = [self._handoff(target) for target in agent.handoffs]
        return durable

    def _handoff(self, given: Agent[Any] | Handoff[Any, Any]) -> Handoff[Any, Any]:
        original = handoff(given) if isinstance(given, Agent) else given
        target = given if isinstance(given, Agent) else _target_of(given)
        if target is not None:
            self.agent(target)

        async def invoke(context: RunContextWrapper[Any], arguments: str) -> Any:
            targets: list[Agent[Any]] = []

            async def hand_off() -> str:
                targets.append(await original.on_invoke_handoff(context, arguments))
                return targets[0].name

            name = await self.step(f"handoff:{original.agent_name}", hand_off, {})
            if target is not None:
                return self.agent(target)
            if not targets and name in self._named:
                return self._named[name]
            return self.agent(targets[0] if targets else await original.on_invoke_handoff(context, arguments))

        enabled = self._predicate(f"enabled:{original.tool_name}", original.is_enabled)
        return replace(original, on_invoke_handoff=invoke, is_enabled=enabled)

    def _predicate(self, what: str, value: Any) -> Any:
        return self.callback(what, value) if callable(value) else value

    def _tool(self, tool: FunctionTool) -> FunctionTool:
        options = self.runner.options_of(tool.name)

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            name = f"tool:{tool.name} {context.tool_call_id}"
            if options.get("task"):
                payload = _arguments(arguments)
                if not isinstance(payload, dict):
                    raise InvalidInput(f"The arguments of {tool.name} are not a JSON object: {arguments[:200]}")
                name = f"{self.name}.task:{tool.name} {context.tool_call_id}"
                return json.dumps(await call_task(self.function, name, options, payload))

            async def call() -> Any:
                return _storable(await tool.on_invoke_tool(context, arguments))

            return await self.step(name, call, options)

        durable = replace(
            tool,
            on_invoke_tool=invoke,
            is_enabled=self._predicate(f"enabled:{tool.name}", tool.is_enabled),
            needs_approval=self._predicate(f"needs_approval:{tool.name}", tool.needs_approval),
        )
        durable.tool_input_guardrails = [self._tool_guardrail(guardrail) for guardrail in tool.tool_input_guardrails or ()] or None
        durable.tool_output_guardrails = [
            self._tool_guardrail(guardrail) for guardrail in tool.tool_output_guardrails or ()
        ] or None
        return durable

    # guardrails

    def _guardrail(self, guardrail: G) -> G:
        check = self._check(guardrail.get_name(), guardrail.guardrail_function)
        return replace(guardrail, guardrail_function=check, name=guardrail.get_name())

    def _check(self, name: str, function: Callable[..., Any]) -> Callable[..., Awaitable[GuardrailFunctionOutput]]:
        async def check(*arguments: Any) -> GuardrailFunctionOutput:
            async def call() -> Any:
                output = await _awaited(function(*map(self.original, arguments)))
                return [to_jsonable_python(output.output_info, fallback=repr), output.tripwire_triggered]

            return GuardrailFunctionOutput(*await self.step(f"guardrail:{name}", call, {}))

        return check

    def _tool_guardrail(self, guardrail: Any) -> Any:
        async def check(data: Any) -> ToolGuardrailFunctionOutput:
            async def call() -> Any:
                output = await _awaited(guardrail.guardrail_function(data))
                return [to_jsonable_python(output.output_info, fallback=repr), output.behavior]

            name = f"guardrail:{guardrail.get_name()} {data.context.tool_call_id}"
            return ToolGuardrailFunctionOutput(*await self.step(name, call, {}))

        return replace(guardrail, guardrail_function=check, name=guardrail.get_name())

    # MCP

    def _server(self, server: MCPServer) -> MCPServer:
        """Return a server on the same session whose calls are steps; equal calls in one turn share their order."""
        durable: Any = copy.copy(server)

        async def list_tools(run_context: Any = None, agent: Any = None) -> list[MCPTool]:
            async def call() -> Any:
                return _MCP_TOOLS.dump_python(await server.list_tools(run_context, agent), mode="json", by_alias=True)

            return _MCP_TOOLS.validate_python(await self.step(f"mcp:{server.name}", call, self.runner.mcp_options))

        async def call_tool(tool: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None) -> CallToolResult:
            async def call() -> Any:
                result = await server.call_tool(tool, arguments, meta)
                return result.model_dump(mode="json", by_alias=True)

            digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()[:12]
            name = f"mcp:{server.name}.{tool} {digest}"
            return CallToolResult.model_validate(await self.step(name, call, self.runner.mcp_options))

        durable.list_tools, durable.call_tool = list_tools, call_tool
        return cast("MCPServer", durable)


class _DurableProvider(ModelProvider):
    def __init__(self, durable: _Durable, provider: ModelProvider) -> None:
        self._durable, self._provider = durable, provider

    def get_model(self, model_name: str | None) -> Model:
        return _DurableModel(self._durable, self._provider.get_model(model_name), model_name)

    async def aclose(self) -> None:
        await self._provider.aclose()


class _DurableModel(Model):
    def __init__(self, durable: _Durable, model: Model, name: str | None = None) -> None:
        self._durable, self._model = durable, model
        self._name = name or str(getattr(model, "model", None) or type(model).__name__)

    async def close(self) -> None:
        await self._model.close()

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002
        model_settings: ModelSettings,
        *arguments: Any,
        **options: Any,
    ) -> ModelResponse:
        function, stream = self._durable.function, self._durable.runner.stream
        if model_settings.max_tokens is None and await meter_of(function).limit() is not None:
            model_settings = replace(model_settings, max_tokens=most_output(function))

        async def send() -> Any:
            request = (system_instructions, input, model_settings, *arguments)
            if stream is None:
                response = await self._model.get_response(*request, **options)
            else:
                response = await _streamed(stream, self._model.stream_response(*request, **options))
            return _RESPONSE.dump_python(response, mode="json", by_alias=True, exclude_unset=True)

        async def recorded() -> Any:
            try:
                return await send()
            except openai.APIError as error:
                raise _RecordedError(error) from error

        async def within_budget() -> Any:
            sent = {"system": system_instructions, "input": input, "options": options, "rest": arguments}
            request = to_jsonable_python(sent, fallback=repr)
            request["max_tokens"] = model_settings.max_tokens or most_output(function)
            return await metered(function, self._name, request, recorded, _tokens, _status)

        name, options_of_step = f"{self._durable.name}.model", self._durable.runner.model_options
        try:
            return _RESPONSE.validate_python(await run_model_step(function, name, within_budget, options_of_step))
        except (StepFailed, LLMError) as failed:
            error = _RecordedError.restored(failed)
            if error is None:
                raise
            self._durable.failures[id(error)] = failed
        raise error

    def stream_response(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("A durable agent runs with `TreadleRunner.run`, not with `Runner.run_streamed`.")


async def _streamed(stream: str, events: AsyncIterator[Any]) -> ModelResponse:
    """Write the events to the stream of the run, and return the response at their end."""
    response = None
    async for event in events:
        write_to(stream, event)
        if event.type in ("response.completed", "response.incomplete"):
            response = event.response
    if response is None:
        raise ModelBehaviorError("The stream of the model ended without a response.")
    usage = Usage() if response.usage is None else Usage(
        requests=1,
        input_tokens=response.usage.input_tokens,
        output_tokens=response.usage.output_tokens,
        total_tokens=response.usage.total_tokens,
        input_tokens_details=response.usage.input_tokens_details,
        output_tokens_details=response.usage.output_tokens_details,
    )  # fmt: skip
    return ModelResponse(output=response.output, usage=usage, response_id=response.id)


def _tokens(response: Any) -> TokenCounts:
    usage = response.get("usage") or {}
    details = usage.get("input_tokens_details") or {}
    return TokenCounts.of_total(
        int(usage.get("input_tokens") or 0),
        int(usage.get("output_tokens") or 0),
        int(details.get("cache_write_tokens") or 0),
        int(details.get("cached_tokens") or 0),
    )


class _RecordedError(Exception):
    """An error of the service whose text has all that the SDK's retry policies decide by, so that a replay decides the same."""

    def __init__(self, error: openai.APIError) -> None:
        response: httpx2.Response | None = getattr(error, "response", None)
        self.status = None if response is None else response.status_code
        body = error.body if len(json.dumps(error.body, default=str)) <= _BODY_LIMIT else None
        details: dict[str, Any] = {"error": type(error).__name__, "body": to_jsonable_python(body, fallback=str)}
        if response is not None:
            headers = {name: value for name, value in response.headers.items() if name in _DECISIVE_HEADERS}
            details |= {"status": response.status_code, "headers": headers}
        super().__init__(f"{error}\n{json.dumps(details)}")

    @staticmethod
    def restored(failed: StepFailed | LLMError) -> openai.APIError | None:
        """Return the SDK's error for a failed step; None if another error failed it."""
        message, _, text = (failed.error if isinstance(failed, StepFailed) else str(failed)).rpartition("\n")
        details = _arguments(text)
        if not isinstance(details, dict) or "error" not in details:
            return None
        request = httpx2.Request("POST", "https://recorded.invalid")
        kind: type[Any] = getattr(openai, details["error"], openai.APIError)
        body = details.get("body")
        if "status" in details:
            response = httpx2.Response(details["status"], headers=details["headers"], request=request)
            kind = kind if issubclass(kind, openai.APIStatusError) else openai.APIStatusError
            return cast("openai.APIError", kind(message, response=response, body=body))
        if issubclass(kind, openai.APITimeoutError):
            return openai.APITimeoutError(request)
        if issubclass(kind, openai.APIConnectionError):
            return openai.APIConnectionError(message=message, request=request)
        return openai.APIError(message, request, body=body)


def _status(error: Exception) -> int | None:
    return error.status if isinstance(error, _RecordedError) else None


def _target_of(original: Handoff[Any, Any]) -> Agent[Any] | None:
    """Return the agent that a handoff object refers to: in a replay, asking the object for it would call `on_handoff` again."""
    targets = (value() for value in vars(original).values() if isinstance(value, weakref.ref))
    return next((target for target in targets if isinstance(target, Agent)), None)


def _arguments(text: Any) -> Any:
    try:
        return json.loads(text or "{}")
    except (TypeError, ValueError):
        return text


def _storable(value: Any) -> Any:
    """Return the output of a tool as JSON; other objects as the text that the SDK would send."""
    outputs = value if isinstance(value, list) else [value]
    if outputs and all(isinstance(output, _STRUCTURED) for output in outputs):
        return to_jsonable_python(value, exclude_none=True)
    try:
        return value if to_jsonable_python(value) == value else str(value)
    except Exception:
        return str(value)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
