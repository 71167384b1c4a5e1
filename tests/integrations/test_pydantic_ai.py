"""Agents of Pydantic AI in durable functions: steps, approvals, tasks, budgets and options, with scripted model servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from mcp.server import MCPServer
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset
from pydantic_ai.usage import UsageLimits
from tests.approvals.test_functions import asked
from tests.engines import make_engine
from tests.functions.test_streams import read
from tests.integrations.tool_retries import POLICIES, Tool
from tests.limits import BOUND

from treadle import Engine, RetryPolicy, RunFailed
from treadle.integrations.pydantic_ai import ToolOptions, TreadleDurability
from treadle.model.errors import InvalidApproval, InvalidInput
from treadle.model.usage import Budget
from treadle.testing import crash_test
from treadle.testing.llm import ModelServer, status, text, uses


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as made:
        yield made


def model_of(kind: str, url: str) -> Any:
    if kind == "messages":
        return AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(api_key="k", base_url=url))
    provider = OpenAIProvider(api_key="k", base_url=f"{url}/v1")
    return (OpenAIChatModel if kind == "chat" else OpenAIResponsesModel)("gpt-5-mini", provider=provider)


def claude(server: ModelServer, **options: Any) -> Agent[None, str]:
    return Agent(model_of("messages", server.url), name="support", capabilities=[TreadleDurability(**options)])


async def result_of(engine: Engine, agent: Any, **options: Any) -> Any:
    """Run the agent as a function, and return its output."""

    @engine.function("agent")
    async def run(payload: Any) -> Any:
        return (await agent.run("Go")).output

    async with engine, engine.worker():
        return await engine.run_result(await engine.start_function("agent", **options), timeout=BOUND)


async def failure_of(engine: Engine, agent: Any, **options: Any) -> tuple[str, list[int], Budget | None]:
    """Run the agent as a function that fails; return the code of the failure, the costs of its requests, and its budget."""

    @engine.function("agent")
    async def run(payload: Any) -> Any:
        return (await agent.run("Go")).output

    async with engine, engine.worker():
        started = await engine.start_function("agent", **options)
        with pytest.raises(RunFailed):
            await engine.run_result(started, timeout=BOUND)
        rows, budget = await engine.kernel.run_reads.usage(started.id)
        error = (await engine.kernel.runs.get_run(started.id)).error
        return json.loads(error or "{}")["code"], [row.cost_micros for row in rows], budget


async def steps_of(engine: Engine) -> dict[str, str]:
    (run,) = await engine.kernel.run_reads.list_runs(workflow="agent")
    return {step.name: step.kind for step in await engine.kernel.store.runs.list_steps(run.id, None, 100)}


# crashes


class Answer(BaseModel):
    text: str


def test_no_recorded_request_or_call_is_repeated_after_any_crash() -> None:
    def setup(engine: Engine, effects: list[Any]) -> None:
        async def respond(messages: list[ModelMessage], info: Any) -> ModelResponse:
            turn = sum(isinstance(message, ModelResponse) for message in messages)
            effects.append(f"request {turn}")
            if turn == 0:
                return ModelResponse([ToolCallPart("look", {"at": "a"}, "1"), ToolCallPart("look", {"at": "b"}, "2")])
            if turn == 1:
                return ModelResponse([ToolCallPart("remote", {"at": "c"}, "3")])
            return ModelResponse([ToolCallPart("final_result", {"text": f"{len(messages)} messages"}, "4")])

        agent = Agent(FunctionModel(respond), name="a", output_type=Answer, capabilities=[TreadleDurability()])

        @agent.tool_plain
        async def look(at: str) -> str:
            effects.append(at)
            await asyncio.sleep(0)
            if at == "b":
                raise ModelRetry("not there")
            return at.upper()

        @agent.tool_plain(metadata={"treadle": ToolOptions(task="there")})
        async def remote(at: str) -> str:
            raise NotImplementedError

        @engine.task("there")
        async def there(at: str) -> str:
            return at.upper()

        @engine.function("agent")
        async def run(payload: Any) -> Any:
            return (await agent.run("Go")).output.text

    async def start(engine: Engine) -> Any:
        return await engine.start_function("agent")

    report = crash_test(setup, start)
    assert report.outcome == '"5 messages"'
    assert set(report.effects) == {"request 0", "a", "b", "request 1", "request 2"}
    for case in report.cases:
        assert case.outcome == report.outcome, case.text()
        assert not case.lost
        assert len(case.repeated) <= 2, case.text()  # two calls may be under way
        assert "before" in case.crash or set(case.repeated) <= {"a", "b"}, case.text()


# requests


@pytest.mark.parametrize("kind", ["messages", "chat", "responses"])
async def test_each_request_and_call_is_a_step_and_a_replay_makes_none(server: ModelServer, kind: str) -> None:
    server.conversation(uses(("look", {"at": "tea"})), text("Found."))
    agent: Agent[None, str] = Agent(model_of(kind, server.url), name="support", capabilities=[TreadleDurability()])

    @agent.tool
    async def look(ctx: RunContext[None], at: str) -> list[str]:
        return [at, str(ctx.run_step)]

    engine = make_engine("memory://", warm_functions=0)

    @engine.function("agent")
    async def run(payload: Any, ctx: Any) -> Any:
        first = await agent.run("Go")
        await ctx.sleep(0.01)  # the replay after it makes no request
        again = await agent.run("Go on", message_history=first.all_messages())
        return [first.output, again.output, first.run_id != again.run_id, first.usage.requests]

    server.conversation(uses(("look", {"at": "tea"})), text("Found."), text("Still there."))
    async with engine, engine.worker():
        run_id = (await engine.start_function("agent")).id
        assert await engine.run_result(run_id, timeout=BOUND) == ["Found.", "Still there.", True, 2]
        steps = [step.name for step in await engine.kernel.store.runs.list_steps(run_id, None, 100) if step.kind == "step"]
    assert server.repeated() == {}
    assert sorted(name.partition(" ")[0] for name in steps) == [
        "support.model", "support.model", "support.model#2", "support.tool:look"
    ]  # fmt: skip


async def test_outside_a_function_and_inside_a_step_the_agent_is_an_ordinary_one(server: ModelServer) -> None:
    server.conversation(text("Hello."))
    agent, engine = claude(server), make_engine("memory://")
    assert (await agent.run("Go")).output == "Hello."

    @engine.function("agent")
    async def run(payload: Any, ctx: Any) -> Any:
        async def ask() -> str:
            return (await agent.run("Go")).output

        return await ctx.step(ask)

    async with engine, engine.worker():
        assert await engine.run_result(await engine.start_function("agent"), timeout=BOUND) == "Hello."
        assert await steps_of(engine) == {"ask": "step"}


async def test_a_request_is_retried_as_configured_and_a_refused_one_is_not(server: ModelServer) -> None:
    server.script(status(529), text("Hello."), status(400, message="no such thing"), text("never"))
    model = AnthropicModel(
        "claude-haiku-4-5",
        provider=AnthropicProvider(anthropic_client=AsyncAnthropic(api_key="k", base_url=server.url, max_retries=0)),
    )
    agent: Agent[None, str] = Agent(model, name="support", capabilities=[TreadleDurability(model={"retry": RetryPolicy(2, 10)})])
    assert await result_of(make_engine("memory://"), agent) == "Hello."
    assert (await failure_of(make_engine("memory://"), agent))[0] == "llm_rejected"
    assert len(server.requests) == 3


async def test_the_events_of_an_agent_go_to_a_stream_of_the_run_once(server: ModelServer) -> None:
    server.conversation(uses(("look", {"at": "tea"})), text("Hello, world."))
    agent, engine = claude(server, stream="events"), make_engine("memory://", warm_functions=0)

    @agent.tool_plain
    async def look(at: str) -> str:
        return at

    @engine.function("agent")
    async def run(payload: Any, ctx: Any) -> Any:
        output = (await agent.run("Go")).output
        await ctx.sleep(0.01)  # the replay after it writes nothing again
        return output

    async with engine, engine.worker():
        started = await engine.start_function("agent")
        assert await engine.run_result(started, timeout=BOUND) == "Hello, world."
        events = [value for _, _, value in await read(engine, started.id, "events") if isinstance(value, dict)]
    kinds = [event["event_kind"] for event in events]
    assert [kinds.count(kind) for kind in ("function_tool_call", "function_tool_result")] == [1, 1]
    said = [event["delta"]["content_delta"] for event in events if event.get("delta", {}).get("part_delta_kind") == "text"]
    assert "".join(["Hell", *said]) == "Hello, world."


async def test_mcp_calls_are_steps(server: ModelServer) -> None:
    server.conversation(uses(("count", {})), text("Three."))
    calls: list[str] = []
    shelf = MCPServer("shelf")

    @shelf.tool()
    def count() -> str:
        calls.append("count")
        return "three"

    agent: Agent[None, str] = Agent(
        model_of("messages", server.url),
        name="support",
        toolsets=[MCPToolset(shelf, id="shelf")],
        capabilities=[TreadleDurability()],
    )
    engine = make_engine("memory://", warm_functions=0)

    @engine.function("agent")
    async def run(payload: Any, ctx: Any) -> Any:
        output = (await agent.run("Go")).output
        await ctx.sleep(0.01)
        return output

    async with engine, engine.worker():
        assert await engine.run_result(await engine.start_function("agent"), timeout=BOUND) == "Three."
        steps = await steps_of(engine)
    assert any(name.startswith("support.mcp:shelf.count ") for name in steps), steps
    assert calls == ["count"]


# approvals


@pytest.mark.parametrize(
    ("decision", "edits", "reason", "said"),
    [
        ("approve", None, None, "paid 40"),
        ("approve", {"args": {"amount": 4}}, None, "paid 4"),
        ("deny", None, "too much", "approval denied by ada: too much"),
    ],
)
async def test_a_tool_that_requires_approval_waits_without_a_worker(
    server: ModelServer, decision: str, edits: Any, reason: str | None, said: str
) -> None:
    server.conversation(uses(("pay", {"amount": 40})), text("Done."))
    agent, engine = claude(server, approval={"deciders": ["ada"]}), make_engine("memory://")

    @agent.tool_plain(requires_approval=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    @engine.function("agent")
    async def run(payload: Any) -> Any:
        return (await agent.run("Go")).output

    async with engine:
        async with engine.worker():
            handle = await engine.start_function("agent")
            (shown,) = await asked(engine)
            assert shown.title == "pay?"
            assert shown.context == {"tool": "pay", "args": {"amount": 40}}
        await engine.approvals.decide(shown.id, decision, actor="ada", edits=edits, reason=reason)
        async with engine.worker():
            assert await engine.run_result(handle, timeout=BOUND) == "Done."
    assert said in str(server.requests[-1]["messages"][-1])
    assert server.repeated() == {}


async def test_a_person_gives_the_result_of_an_external_tool(server: ModelServer) -> None:
    server.conversation(uses(("weigh", {"what": "tea"})), text("Done."))
    schema = {"type": "object", "properties": {"what": {"type": "string"}}}
    agent: Agent[None, str] = Agent(
        model_of("messages", server.url),
        name="support",
        toolsets=[ExternalToolset([ToolDefinition(name="weigh", parameters_json_schema=schema)], id="scales")],
        capabilities=[TreadleDurability()],
    )
    engine = make_engine("memory://")

    @engine.function("agent")
    async def run(payload: Any) -> Any:
        return (await agent.run("Go")).output

    async with engine, engine.worker():
        handle = await engine.start_function("agent")
        (shown,) = await asked(engine)
        await engine.approvals.decide(shown.id, "approve", actor="ada", edits={"result": "500 g"})
        assert await engine.run_result(handle, timeout=BOUND) == "Done."
    assert "500 g" in str(server.requests[-1]["messages"][-1])


# budgets


async def test_the_budget_stops_the_run_at_its_limit(server: ModelServer) -> None:
    server.conversation(*(uses(("look", {"at": str(turn)})) for turn in range(50)))
    agent = claude(server)

    @agent.tool_plain
    async def look(at: str) -> str:
        return at

    code, costs, budget = await failure_of(make_engine("memory://"), agent, budget=0.026)
    assert code == "budget_exhausted"
    assert costs == [100 + 20 * 5] * len(server.requests)
    assert 0 < len(costs) < 50
    assert {request["max_tokens"] for request in server.requests} == {4096}
    assert budget == Budget(26_000, sum(costs))


async def test_a_budget_needs_a_price_and_refused_requests_are_free(server: ModelServer) -> None:
    server.script(status(400), text("Hello."))
    unpriced: Agent[None, str] = Agent(model_of("chat", server.url), name="other", capabilities=[TreadleDurability()])
    assert (await failure_of(make_engine("memory://"), unpriced, budget=1))[0] == "price_unknown"
    assert server.requests == []
    assert await failure_of(make_engine("memory://"), claude(server), budget=1) == ("llm_rejected", [0], Budget(1_000_000, 0))


# options


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"model": {"retries": 3}}, InvalidInput, "model has the unknown option 'retries'"),
        ({"model": {"task": "a"}}, InvalidInput, "model has the unknown option 'task'"),
        ({"tools": {"approval": {"expires": "7d"}}}, InvalidApproval, "expires must be a timedelta"),
        ({"approval": {"who": "ada"}}, InvalidApproval, "unexpected keyword argument 'who'"),
    ],
)
def test_wrong_options_are_reported_when_the_agent_is_made(options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        TreadleDurability(**options)


# delegation


async def test_the_usage_of_delegated_agents_is_the_same_in_a_replay(server: ModelServer) -> None:
    server.conversation(uses(("ask", {"of": "a"}), ("ask", {"of": "b"})), text("Done."))
    server.conversation(text("Told."), key="tell")
    helper: Agent[None, str] = Agent(model_of("messages", server.url), name="helper")
    agent, usages = claude(server), []

    @agent.tool
    async def ask(ctx: RunContext[None], of: str) -> str:
        return (await helper.run(f"tell {of}", usage=ctx.usage)).output

    engine = make_engine("memory://", warm_functions=0)

    @engine.function("agent")
    async def run(payload: Any, ctx: Any) -> Any:
        result = await agent.run("Go")
        usages.append(result.usage)
        await ctx.sleep(0.01)  # the replay after it makes no request
        return [result.usage.requests, result.usage.input_tokens, result.usage.tool_calls]

    async with engine, engine.worker():
        assert await engine.run_result(await engine.start_function("agent"), timeout=BOUND) == [4, 400, 2]
    assert len(usages) == 2
    assert usages[0] == usages[1]


def test_the_limit_of_a_delegated_agent_is_reached_at_the_same_request_after_any_crash() -> None:
    def setup(engine: Engine, effects: list[Any]) -> None:
        async def tell(messages: list[ModelMessage], info: Any) -> ModelResponse:
            return ModelResponse([TextPart("told")])

        async def respond(messages: list[ModelMessage], info: Any) -> ModelResponse:
            turn = sum(isinstance(message, ModelResponse) for message in messages)
            effects.append(f"request {turn}")
            return ModelResponse([ToolCallPart("ask", {}, str(turn))])

        helper = Agent(FunctionModel(tell), name="helper")
        agent = Agent(FunctionModel(respond), name="a", capabilities=[TreadleDurability()])

        @agent.tool
        async def ask(ctx: RunContext[None]) -> str:
            return (await helper.run("tell", usage=ctx.usage)).output

        @engine.function("agent")
        async def run(payload: Any) -> Any:
            try:
                await agent.run("Go", usage_limits=UsageLimits(request_limit=5))
            except UsageLimitExceeded as error:
                return str(error)

    async def start(engine: Engine) -> Any:
        return await engine.start_function("agent")

    report = crash_test(setup, start)
    assert report.effects == ("request 0", "request 1", "request 2")
    for case in report.cases:
        assert case.outcome == report.outcome, case.text()
        assert set(case.effects) == set(report.effects), case.text()


@pytest.mark.parametrize("effect", [False, True])
@pytest.mark.parametrize("name", POLICIES)
async def test_a_tool_is_retried_after_the_exceptions_that_its_policy_selects(name: str, effect: bool) -> None:
    policy, calls = POLICIES[name]
    tool, engine = Tool(), make_engine("memory://")

    async def respond(messages: list[ModelMessage], info: Any) -> ModelResponse:
        is_first = len(messages) == 1
        return ModelResponse([ToolCallPart("look", {}, "1")] if is_first else [TextPart("done")])

    agent = Agent(FunctionModel(respond), name="a", capabilities=[TreadleDurability()])

    @agent.tool_plain(metadata={"treadle": ToolOptions(retry=policy, effect=effect)})
    async def look() -> str:
        return tool.call()

    if calls > 1:
        assert await result_of(engine, agent) == "done"
    else:
        await failure_of(engine, agent)
    assert tool.calls == calls
