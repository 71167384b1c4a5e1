"""Agents of the OpenAI Agents SDK in durable functions: steps, handoffs, guardrails, approvals, MCP, budgets and streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from agents.mcp import MCPServer
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as MCPTool
from openai import AsyncOpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic import BaseModel
from tests.approvals.test_functions import asked
from tests.engines import make_engine
from tests.functions.test_streams import read
from tests.integrations.tool_retries import POLICIES, Tool
from tests.limits import BOUND

from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    InputGuardrail,
    Model,
    ModelResponse,
    ModelRetrySettings,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    OutputGuardrail,
    RunConfig,
    RunHooks,
    Runner,
    ToolGuardrailFunctionOutput,
    Usage,
    function_tool,
    handoff,
    retry_policies,
    tool_input_guardrail,
)
from treadle import Engine, RunFailed
from treadle.integrations.openai_agents import ToolOptions, TreadleRunner
from treadle.model.errors import InvalidApproval, InvalidInput, MisusedContext
from treadle.model.usage import Budget
from treadle.testing import crash_test
from treadle.testing.llm import ModelServer, Reply, status, text, uses

CONFIG = RunConfig(tracing_disabled=True)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as made:
        yield made


def model_of(server: ModelServer, kind: type[Any] = OpenAIResponsesModel, http_client: Any = None) -> Any:
    client = AsyncOpenAI(api_key="k", base_url=f"{server.url}/v1", max_retries=0, http_client=http_client)
    return kind("gpt-5-mini", openai_client=client)


class Blocking(httpx2.AsyncBaseTransport):
    """A transport for crash tests, whose event loop has no sockets."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        with httpx2.HTTPTransport() as transport:
            response = transport.handle_request(request)
            headers = {"content-type": response.headers["content-type"], **{
                name: value for name, value in response.headers.items() if name == "retry-after"
            }}  # fmt: skip
            return httpx2.Response(response.status_code, headers=headers, content=response.read())


def blocking() -> Any:
    return httpx2.AsyncClient(transport=Blocking())


@dataclass
class Scene:
    """One run of an agent as a function, and its results."""

    engine: Engine
    agent: Any
    runner: TreadleRunner

    async def ended(self, **options: Any) -> tuple[Any, str | None, list[str], Any]:
        """Run it; return its result, the code of its failure, the names of its steps, and its budget."""
        agent, runner, engine = self.agent, self.runner, self.engine

        @engine.function("agent")
        async def run(payload: Any) -> Any:
            return str((await runner.run(agent, "Go", run_config=CONFIG)).final_output)

        async with engine, engine.worker():
            started = await engine.start_function("agent", **options)
            result = code = None
            try:
                result = await engine.run_result(started, timeout=BOUND)
            except RunFailed:
                code = json.loads((await engine.kernel.runs.get_run(started.id)).error or "{}")["code"]
            steps = await engine.kernel.store.runs.list_steps(started.id, None, 100)
            _, budget = await engine.kernel.run_reads.usage(started.id)
            return result, code, sorted(step.name for step in steps), budget


async def ended(agent: Any, runner: TreadleRunner | None = None, **options: Any) -> tuple[Any, str | None, list[str], Any]:
    return await Scene(make_engine("memory://"), agent, runner or TreadleRunner()).ended(**options)


# crashes


class Scripted(Model):
    """A model in the process, which counts its requests."""

    def __init__(self, effects: list[Any], *turns: list[Any]) -> None:
        self._effects, self._turns = effects, turns

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> ModelResponse:  # noqa: A002
        items = input if isinstance(input, list) else []
        turn = len({item["call_id"][0] for item in items if item.get("type") == "function_call"})
        self._effects.append(f"request {turn}")
        await asyncio.sleep(0)
        return ModelResponse(output=self._turns[turn], usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


def call(turn: int, name: str, **arguments: Any) -> Any:
    call_id = f"{turn}-{name}-{len(arguments)}-{'-'.join(map(str, arguments.values()))}"
    return ResponseFunctionToolCall(arguments=json.dumps(arguments), call_id=call_id, name=name, type="function_call")


def said(what: str) -> Any:
    content = ResponseOutputText(text=what, type="output_text", annotations=[])
    return ResponseOutputMessage(id="m", content=[content], role="assistant", status="completed", type="message")


def test_no_recorded_step_is_repeated_after_any_crash() -> None:
    def setup(engine: Engine, effects: list[Any]) -> None:
        turns = (
            [call(0, "look", at="a"), call(0, "look", at="b")],
            [call(1, "transfer_to_second")],
            [call(2, "remote", at="c")],
            [said("done")],
        )
        model = Scripted(effects, *turns)

        @function_tool
        async def look(at: str) -> str:
            effects.append(at)
            await asyncio.sleep(0)
            return at.upper()

        @function_tool
        async def remote(at: str) -> str:
            raise NotImplementedError

        @engine.task("there")
        async def there(at: str) -> str:
            return at.upper()

        def moved(_: Any) -> None:
            effects.append("moved")

        def check(*_: Any) -> GuardrailFunctionOutput:
            effects.append("checked")
            return GuardrailFunctionOutput(None, tripwire_triggered=False)

        runner = TreadleRunner(tools={"remote": ToolOptions(task="there")})
        guard = InputGuardrail(check, name="before", run_in_parallel=False)
        second = Agent[Any](name="second", model=model, tools=[remote], output_guardrails=[OutputGuardrail(check, name="after")])
        first = Agent[Any](
            name="first", model=model, tools=[look], handoffs=[handoff(second, on_handoff=moved)], input_guardrails=[guard]
        )

        @engine.function("agent")
        async def run(payload: Any) -> Any:
            return (await runner.run(first, "Go", run_config=CONFIG)).final_output

    async def start(engine: Engine) -> Any:
        return await engine.start_function("agent")

    report = crash_test(setup, start)
    assert report.outcome == '"done"'
    assert sorted(report.effects) == sorted(
        ["a", "b", "checked", "checked", "moved", *(f"request {turn}" for turn in range(4))]
    )  # fmt: skip
    for case in report.cases:
        assert case.outcome == report.outcome, case.text()
        assert not case.lost
        assert len(case.repeated) <= 2, case.text()  # two calls may be under way
        assert "before" in case.crash or set(case.repeated) <= {"a", "b"}, case.text()


# steps


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
async def test_requests_calls_and_guardrails_are_steps_in_both_formats(server: ModelServer, kind: type[Any]) -> None:
    server.conversation(uses(("look", {"at": "tea"}), ("look", {"at": "milk"})), text("Found."))

    @tool_input_guardrail
    def gate(data: Any) -> ToolGuardrailFunctionOutput:
        if "milk" in data.context.tool_arguments:
            return ToolGuardrailFunctionOutput.reject_content("no milk")
        return ToolGuardrailFunctionOutput.allow()

    @function_tool(tool_input_guardrails=[gate])
    async def look(at: str) -> dict[str, str]:
        return {"at": at}

    result, _, steps, _ = await ended(Agent(name="a", model=model_of(server, kind), tools=[look]))
    assert result == "Found."
    assert [step.partition(" ")[0] for step in steps] == ["a.guardrail:gate"] * 2 + ["a.model", "a.model#2", "a.tool:look"]
    assert "no milk" in json.dumps(server.requests[-1])
    assert server.repeated() == {}


async def test_a_guardrail_that_trips_ends_the_run_with_its_error(server: ModelServer) -> None:
    server.conversation(text("Hello."))

    async def trip(*_: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput("off topic", tripwire_triggered=True)

    agent = Agent[Any](name="a", model=model_of(server), input_guardrails=[InputGuardrail(trip, run_in_parallel=False)])
    result, code, steps, _ = await ended(agent)
    assert (result, code, steps) == (None, "function_error", ["a.guardrail:trip"])
    assert server.requests == []


class Shelf(MCPServer):
    """An MCP server in the process."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    name = "shelf"

    async def connect(self) -> None: ...
    async def cleanup(self) -> None: ...
    async def list_prompts(self) -> Any: ...
    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[MCPTool]:
        self.calls.append("list")
        return [MCPTool.model_validate({"name": "count", "inputSchema": {"type": "object", "properties": {}}})]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        self.calls.append(tool_name)
        return CallToolResult(content=[TextContent(type="text", text="three")])


async def test_mcp_calls_are_steps(server: ModelServer) -> None:
    server.conversation(uses(("count", {})), text("Three."))
    shelf = Shelf()
    result, code, steps, _ = await ended(Agent[Any](name="a", model=model_of(server), mcp_servers=[shelf]))
    assert (result, code) == ("Three.", None)
    assert [step.partition(" ")[0] for step in steps if "mcp" in step] == ["a.mcp:shelf", "a.mcp:shelf#2", "a.mcp:shelf.count"]
    assert shelf.calls == ["list", "count", "list"]
    assert "three" in json.dumps(server.requests[-1])


async def test_the_events_of_models_go_to_a_stream_of_the_run(server: ModelServer) -> None:
    server.conversation(text("Hello, world."))
    engine, runner = make_engine("memory://"), TreadleRunner(stream="events")
    agent = Agent[Any](name="a", model=model_of(server))

    @engine.function("agent")
    async def run(payload: Any) -> Any:
        return (await runner.run(agent, "Go", run_config=CONFIG)).final_output

    async with engine, engine.worker():
        started = await engine.start_function("agent")
        assert await engine.run_result(started, timeout=BOUND) == "Hello, world."
        values = [value for _, _, value in await read(engine, started.id, "events")]
        deltas = [each["delta"] for each in values if isinstance(each, dict) and each["type"] == "response.output_text.delta"]
        assert "".join(deltas) == "Hello, world."


# approvals


@pytest.mark.parametrize(
    ("decision", "said"), [("approve", "paid 40"), ("deny", "approval denied by ada: too much")], ids=["approved", "denied"]
)
async def test_a_tool_that_needs_approval_waits_without_a_worker(server: ModelServer, decision: str, said: str) -> None:
    server.conversation(uses(("pay", {"amount": 40}), ("look", {})), text("Done."))

    @function_tool(needs_approval=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    @function_tool
    async def look() -> str:
        return "seen"

    engine, runner = make_engine("memory://"), TreadleRunner(approval={"deciders": ["ada"]})
    agent = Agent[Any](name="a", model=model_of(server), tools=[pay, look])

    @engine.function("agent")
    async def run(payload: Any) -> Any:
        return (await runner.run(agent, "Go", run_config=CONFIG)).final_output

    async with engine:
        async with engine.worker():
            handle = await engine.start_function("agent")
            (shown,) = await asked(engine)
            assert shown.context == {"tool": "pay", "agent": "a", "args": {"amount": 40}}
        await engine.approvals.decide(shown.id, decision, actor="ada", reason="too much")
        async with engine.worker():
            assert await engine.run_result(handle, timeout=BOUND) == "Done."
    assert said in json.dumps(server.requests[-1])
    assert server.repeated() == {}


# budgets and options


async def test_the_budget_stops_the_run_at_its_limit(server: ModelServer) -> None:
    server.conversation(*(uses(("look", {"at": str(turn)})) for turn in range(50)))

    @function_tool
    async def look(at: str) -> str:
        return at

    agent = Agent[Any](name="a", model=model_of(server), tools=[look])
    engine = make_engine("memory://", llm_prices='{"gpt-5-mini": [1, 5]}')
    result, code, _, budget = await Scene(engine, agent, TreadleRunner()).ended(budget=0.024)
    assert (result, code) == (None, "budget_exhausted")
    assert budget == Budget(24_000, 200 * len(server.requests))
    assert 0 < len(server.requests) < 10
    assert {request["max_output_tokens"] for request in server.requests} == {4096}


async def test_a_request_is_retried_as_configured_and_a_refused_one_is_not(server: ModelServer) -> None:
    server.script(status(503), text("Hello."), status(400, message="no such thing"))
    agent = Agent[Any](name="a", model=model_of(server))
    result, *_ = await ended(agent, TreadleRunner(model={"retry": 1}))
    assert result == "Hello."
    _, code, *_ = await ended(agent, TreadleRunner(model={"retry": 1}))
    assert code == "llm_rejected"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"model": {"effect": True}}, InvalidInput, "model has the unknown option 'effect'"),
        ({"tools": {"pay": {"retries": 1}}}, InvalidInput, "The tool pay has the unknown option 'retries'"),
        ({"approval": {"who": "ada"}}, InvalidApproval, "unexpected keyword argument 'who'"),
    ],
)
def test_wrong_options_are_reported_when_the_runner_is_made(options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        TreadleRunner(**options)


async def test_a_runner_outside_a_function_raises_with_the_reason() -> None:
    with pytest.raises(MisusedContext, match="durable function"):
        await TreadleRunner().run(Agent(name="a"), "Go")


# the same as the SDK alone


class Wire(ModelServer):
    """A model server that notes each request in the effects of a crash test."""

    effects: list[Any]

    def take(self, request: dict[str, Any], key: str) -> Any:
        self.effects.append("request " + json.dumps(request, sort_keys=True))
        return super().take(request, key)


class Note(BaseModel):
    at: str


def callbacks(effects: list[Any], model: Any) -> tuple[Any, Any]:
    """Return an agent with every kind of callback, and the hooks of its run; each notes its call."""

    def note(what: str) -> None:
        effects.append(what)

    class Noted(RunHooks[Any]):
        async def on_llm_start(self, context: Any, agent: Any, *rest: Any) -> None:
            note(f"llm {agent.name}")

        async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
            note(f"from {from_agent.name} to {to_agent.name}")

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            note(f"end {tool.name} {result}")

    class Own(AgentHooks[Any]):
        async def on_start(self, context: Any, agent: Any) -> None:
            note(f"start {agent.name}")

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            note(f"tool {tool.name} {context.tool_call_id}")

    def check(*_: Any) -> GuardrailFunctionOutput:
        note("checked")
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    def instruct(_: Any, agent: Any) -> str:
        note(f"instruct {agent.name}")
        return f"You are {agent.name}."

    def enabled(*_: Any) -> bool:
        note("enabled")
        return True

    async def needed(*_: Any) -> bool:
        note("needed")
        return False

    @function_tool(is_enabled=enabled, needs_approval=needed)
    async def look(at: str) -> Note:
        note(f"look {at}")
        return Note(at=at)

    def moved(_: Any) -> None:
        note("moved")

    second = Agent[Any](name="second", model=model, output_guardrails=[OutputGuardrail(check, name="after")], hooks=Own())
    first = Agent[Any](
        name="first",
        model=model,
        instructions=instruct,
        tools=[look],
        handoffs=[handoff(second, on_handoff=moved)],
        input_guardrails=[InputGuardrail(check, name="before", run_in_parallel=False)],
        hooks=Own(),
    )
    return first, Noted()


CONVERSATION = (uses(("look", {"at": "tea"})), uses(("transfer_to_second", {})), text("Done."))


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
async def test_requests_and_callbacks_are_those_of_the_sdk_alone(kind: type[Any]) -> None:
    with Wire() as server:
        server.effects = alone = []
        server.conversation(*CONVERSATION)
        agent, hooks = callbacks(alone, model_of(server, kind))
        await Runner.run(agent, "Go", run_config=CONFIG, hooks=hooks)

        server.effects = durable = []
        agent, hooks = callbacks(durable, model_of(server, kind))
        engine = make_engine("memory://", warm_functions=0)

        @engine.function("agent")
        async def run(payload: Any, ctx: Any) -> Any:
            result = await TreadleRunner().run(agent, "Go", run_config=CONFIG, hooks=hooks)
            await ctx.sleep(0.01)  # the replay after it makes no request and calls nothing
            return result.final_output

        async with engine, engine.worker():
            await engine.run_result(await engine.start_function("agent"), timeout=BOUND)
    assert durable == alone


def test_no_callback_is_repeated_after_any_crash() -> None:
    with Wire() as server:
        server.conversation(*CONVERSATION)

        def setup(engine: Engine, effects: list[Any]) -> None:
            server.effects = effects
            agent, hooks = callbacks(effects, model_of(server, http_client=blocking()))

            @engine.function("agent")
            async def run(payload: Any) -> Any:
                return (await TreadleRunner().run(agent, "Go", run_config=CONFIG, hooks=hooks)).final_output

        async def start(engine: Engine) -> Any:
            return await engine.start_function("agent")

        report = crash_test(setup, start)
    assert report.outcome == '"Done."'
    for case in report.cases:
        assert case.outcome == report.outcome, case.text()
        assert not case.lost
        assert len(case.repeated) <= 2, case.text()  # a hook of the run and one of its agent may be under way
        assert "before" in case.crash or not case.repeated, case.text()


async def test_the_agents_of_a_result_are_those_of_the_caller(server: ModelServer) -> None:
    server.conversation(uses(("transfer_to_second", {})), text("Done."), text("Again."))
    second = Agent[Any](name="second", model=model_of(server))
    first = Agent[Any](name="first", model=model_of(server), handoffs=[handoff(second)])
    engine, same = make_engine("memory://"), []

    @engine.function("agent")
    async def run(payload: Any) -> Any:
        result = await TreadleRunner().run(first, "Go", run_config=CONFIG)
        same.append(result.last_agent is second)
        same.append({id(item.agent) for item in result.new_items} == {id(first), id(second)})
        more = [*result.to_input_list(), {"role": "user", "content": "More"}]
        again = await TreadleRunner().run(result.last_agent, more, run_config=CONFIG)
        return again.final_output

    async with engine, engine.worker():
        assert await engine.run_result(await engine.start_function("agent"), timeout=BOUND) == "Again."
    assert same == [True, True]
    assert server.repeated() == {}


class Refusing(ModelServer):
    """A model server that answers a number of requests with the same reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply, self.left = reply, 0

    def take(self, request: dict[str, Any], key: str) -> Any:
        if self.left > 0:
            self.left -= 1
            return self.reply, ""
        return super().take(request, key)


@pytest.mark.parametrize(
    ("reply", "policy"),
    [
        (status(503), retry_policies.http_status([503])),
        (status(429, after=0.01), retry_policies.retry_after()),
        (status(429), retry_policies.provider_suggested()),
        (status(400, message="no"), retry_policies.http_status([400])),
        (Reply(body=b"", headers={"content-length": "10"}), retry_policies.network_error()),
    ],
    ids=["status", "retry after", "suggested", "refused", "connection"],
)
def test_retries_of_the_sdk_are_kept_after_any_crash(reply: Any, policy: Any) -> None:
    retry = ModelRetrySettings(max_retries=2, policy=policy, backoff={"initial_delay": 0, "max_delay": 0})
    with Refusing(reply) as server:
        server.conversation(text("done"))

        def setup(engine: Engine, effects: list[Any]) -> None:
            model = model_of(server, http_client=blocking())
            agent = Agent[Any](name="a", model=model, model_settings=ModelSettings(retry=retry))

            @engine.function("agent")
            async def run(payload: Any) -> Any:
                result = await TreadleRunner().run(agent, "Go", run_config=CONFIG)
                return [result.final_output, result.context_wrapper.usage.requests]

        async def start(engine: Engine) -> Any:
            server.left = 2
            return await engine.start_function("agent")

        report = crash_test(setup, start)
    assert json.loads(report.outcome or "") == ["done", 3]
    for case in report.cases:  # a request that was under way is sent again, and its failure is not counted
        assert case.outcome in ([report.outcome] if "after" in case.crash else [report.outcome, '["done",2]']), case.text()


async def test_the_sdks_own_runner_is_refused_in_a_function_and_works_in_a_step(server: ModelServer) -> None:
    server.conversation(text("Hello."))
    agent, engine = Agent[Any](name="a", model=model_of(server)), make_engine("memory://")

    async def plain() -> str:
        return str((await Runner.run(agent, "Go", run_config=CONFIG)).final_output)

    @engine.function("plain")
    async def run(payload: Any) -> Any:
        return await plain()

    @engine.function("step")
    async def step(payload: Any, ctx: Any) -> Any:
        return await ctx.step(plain)

    async with engine, engine.worker():
        with pytest.raises(RunFailed, match=r"TreadleRunner\(\)\.run"):
            await engine.run_result(await engine.start_function("plain"), timeout=BOUND)
        assert server.requests == []
        assert await engine.run_result(await engine.start_function("step"), timeout=BOUND) == "Hello."
        assert await plain() == "Hello."


@pytest.mark.parametrize("effect", [False, True])
@pytest.mark.parametrize("name", POLICIES)
async def test_a_tool_is_retried_after_the_exceptions_that_its_policy_selects(name: str, effect: bool) -> None:
    policy, calls = POLICIES[name]
    tool = Tool()

    @function_tool(failure_error_function=None)
    async def look() -> str:
        return tool.call()

    agent = Agent[Any](name="a", model=Scripted([], [call(0, "look")], [said("done")]), tools=[look])
    runner = TreadleRunner(tools={"look": ToolOptions(retry=policy, effect=effect)})
    result, code, *_ = await ended(agent, runner)
    assert (result, code is None, tool.calls) == ("done" if calls > 1 else None, calls > 1, calls)
