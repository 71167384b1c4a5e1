"""LangGraph graphs as durable runs: recorded supersteps, approvals for interrupts, retries, budgets and threads."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt
from tests.engines import make_engine
from tests.limits import BOUND

from treadle import Engine, RetryPolicy, RunFailed
from treadle.integrations.langgraph import durable_graph
from treadle.model.errors import InvalidInput
from treadle.model.usage import total
from treadle.testing import crash_test


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]
    answers: list[Any]


def built(*edges: tuple[Any, Any], state: Any = State, **nodes: Any) -> Any:
    builder: Any = StateGraph(state)
    for name, node in nodes.items():
        builder.add_node(name, node)
    for start, end in edges:
        builder.add_edge(start, end)
    return builder


async def decided(engine: Engine, *, deny: bool = False, **edits: Any) -> str:
    """Decide the one pending approval, once it is asked; return its question."""
    async with asyncio.timeout(BOUND):
        while not (pending := (await engine.approvals.list()).approvals):  # noqa: ASYNC110 - the store changes
            await asyncio.sleep(0.005)
    (asked,) = pending
    await engine.approvals.decide(asked.id, "deny" if deny else "approve", actor="ann", reason="because", edits=edits or None)
    return asked.title


async def names(engine: Engine, run: Any) -> list[str]:
    return [step.row.name.partition("#")[0] for step in await engine.kernel.run_reads.list_steps(run.id)]


def add_three(engine: Engine, effects: list[Any]) -> None:
    def node(name: str) -> Any:
        async def call(state: State) -> dict[str, Any]:
            effects.append(name)
            return {"log": [name]}

        return call

    edges = [(START, "first"), ("first", "left"), ("first", "right"), ("left", END), ("right", END)]
    graph = built(*edges, **{name: node(name) for name in ("first", "left", "right")})
    durable_graph(engine, graph.compile(), "three")


async def start_three(engine: Engine) -> Any:
    return await engine.start_function("three", {"input": {"log": []}})


def test_a_crash_at_any_write_repeats_at_most_the_nodes_in_flight() -> None:
    report = crash_test(add_three, start_three)
    assert report.effects == ("first", "left", "right")
    assert report.writes > 9
    for case in report.cases:
        assert case.lost == (), case.text()
        assert case.outcome == report.outcome
        assert len(case.repeated) <= 1 or set(case.repeated) == {"left", "right"}, case.text()
        if case.crash.startswith("after"):  # what was written is not repeated
            assert set(case.repeated) < {"left", "right"}, case.text()


async def test_interrupts_become_approvals_and_the_answer_resumes() -> None:
    calls = []

    async def review(state: State) -> dict[str, Any]:
        calls.append("review")
        first = interrupt({"question": "Publish it?", "n": state["n"]})
        second = interrupt("Really?")
        return {"answers": [first, second, interrupt(["what", state["n"]])]}

    engine = make_engine("memory://")
    graph = built((START, "add"), ("add", "review"), ("review", END), add=lambda state: {"n": state["n"] + 1}, review=review)
    flow = durable_graph(engine, graph.compile(), "flow", approval={"deciders": ["ann"]})
    async with engine, engine.worker():
        run = await engine.start(flow, {"n": 1})
        assert await decided(engine) == "Publish it?"
        assert await decided(engine, answer="not sure") == "Really?"
        assert await decided(engine, deny=True) == 'LangGraph: review asks about ["what",2]'
        assert await run.result(timeout=BOUND) == {"n": 2, "log": [], "answers": [True, "not sure", False]}
        assert calls == ["review"] * 4
        assert await names(engine, run) == ["input", "add", "review", *["approval", "review"] * 3]


async def test_parallel_interrupts_are_requested_together_and_answered_separately() -> None:
    async def ask(state: Any) -> dict[str, Any]:
        return {"log": [f"{state['n']}: {interrupt(str(state['n']))}"]}

    engine = make_engine("memory://")
    builder = built(("ask", END), ask=ask)
    builder.add_conditional_edges(START, lambda state: [Send("ask", {"n": number}) for number in range(3)])
    flow = durable_graph(engine, builder.compile(), "many", answer=lambda decision: decision["by"])
    async with engine, engine.worker():
        run = await engine.start(flow, {"n": 0})
        async with asyncio.timeout(BOUND):
            while len(pending := (await engine.approvals.list()).approvals) < 3:  # noqa: ASYNC110 - the store changes
                await asyncio.sleep(0.005)
        for asked in pending:
            title = asked.title
            await engine.approvals.decide(asked.id, "approve", actor=f"person {title}")
        result = await run.result(timeout=BOUND)
        assert sorted(result["log"]) == ["0: person 0", "1: person 1", "2: person 2"]


async def test_a_subgraph_may_interrupt() -> None:
    inner = built((START, "ask"), ("ask", END), ask=lambda state: {"answers": [interrupt("Inside?")]}).compile()
    engine = make_engine("memory://")
    flow = durable_graph(engine, built((START, "inner"), ("inner", END), inner=inner).compile(), "outer")
    async with engine, engine.worker():
        run = await engine.start(flow, {"n": 0})
        assert await decided(engine, answer=42) == "Inside?"
        assert (await run.result(timeout=BOUND))["answers"] == [42]


async def test_breakpoints_of_the_graph_are_approvals() -> None:
    engine = make_engine("memory://")
    graph = built((START, "a"), ("a", "b"), ("b", END), a=lambda _: {"log": ["a"]}, b=lambda _: {"log": ["b"]})
    flow = durable_graph(engine, graph.compile(interrupt_before=["b"]), "flow")
    async with engine, engine.worker():
        run = await engine.start(flow, {"log": []})
        assert await decided(engine) == "flow: continue with b?"
        assert (await run.result(timeout=BOUND))["log"] == ["a", "b"]
        run = await engine.start(flow, {"log": []})
        await decided(engine, deny=True)
        with pytest.raises(RunFailed, match="because"):
            await run.result(timeout=BOUND)


async def test_a_retry_does_not_run_finished_nodes_again() -> None:
    calls: list[str] = []

    async def good(state: State) -> dict[str, Any]:
        calls.append("good")
        return {"log": ["good"]}

    async def flaky(state: State) -> dict[str, Any]:
        await asyncio.sleep(0)
        calls.append("flaky")
        if calls.count("flaky") < 3:
            await asyncio.sleep(0.01)  # the other node ends first
            raise OSError("try again")
        return {"log": ["flaky"]}

    engine = make_engine("memory://")
    graph = built((START, "good"), (START, "flaky"), ("good", END), ("flaky", END), good=good, flaky=flaky)
    flow = durable_graph(engine, graph.compile(), "flow", retry=RetryPolicy(retries=3, first_for=1))
    async with engine, engine.worker():
        run = await engine.start(flow, {"log": []})
        assert sorted((await run.result(timeout=BOUND))["log"]) == ["flaky", "good"]
        assert (calls.count("good"), calls.count("flaky")) == (1, 3)


async def test_a_thread_continues_in_the_next_run_and_belongs_to_one_at_a_time() -> None:
    class Chat(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    async def reply(state: Chat) -> dict[str, Any]:
        if state["messages"][-1].content == "wait":
            interrupt("Wait?")
        return {"messages": [AIMessage(f"heard {len(state['messages'])}")]}

    engine = make_engine("memory://")
    flow = durable_graph(engine, built((START, "reply"), ("reply", END), state=Chat, reply=reply).compile(), "chat")

    def said(text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}]}

    async with engine, engine.worker():
        for text, heard in (("a", 1), ("b", 3)):
            result = await (await engine.start(flow, said(text), thread_id="ann")).result(timeout=BOUND)
            assert result["messages"][-1]["content"] == f"heard {heard}"
        waiting = await engine.start(flow, said("wait"), thread_id="ann")
        async with asyncio.timeout(BOUND):
            while not (await engine.approvals.list()).approvals:  # noqa: ASYNC110 - the store changes
                await asyncio.sleep(0.005)
        other = await engine.start(flow, said("c"), thread_id="ann")
        with pytest.raises(RunFailed, match="only its worker may write it"):
            await other.result(timeout=BOUND)
        await decided(engine)
        assert (await waiting.result(timeout=BOUND))["messages"][-1]["content"] == "heard 5"


class Model(BaseChatModel):
    """A chat model that says how much it used."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {"ls_model_name": "claude-haiku-4-5", "ls_max_tokens": 100}

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        usage = UsageMetadata(input_tokens=1000, output_tokens=100, total_tokens=1100)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("hello", usage_metadata=usage))])


async def test_a_budget_stops_the_graph_before_the_request_that_could_exceed_it() -> None:
    requests: list[int] = []

    async def ask(state: State) -> dict[str, Any]:
        await Model().ainvoke("hi")
        requests.append(1)
        return {"n": state["n"] + 1}

    engine = make_engine("memory://")
    builder = built((START, "ask"), ask=ask)
    builder.add_conditional_edges("ask", lambda state: "ask" if state["n"] < 9 else END)
    flow = durable_graph(engine, builder.compile(), "spender", retry=5)
    async with engine:
        run = await engine.start_function(flow.name, {"input": {"n": 0}}, budget=0.004)  # a request costs 0.0015
        async with engine.worker():
            with pytest.raises(RunFailed, match="may spend"):
                await engine.run_result(run, timeout=BOUND)
        spent = total(await engine.kernel.store.usage.list_requests(run.id))
        assert (len(requests), spent.requests, spent.cost_micros, spent.unsettled) == (2, 2, 3000, 0)


async def test_messages_and_events_of_nodes_are_streamed() -> None:
    async def tell(state: State) -> dict[str, Any]:
        get_stream_writer()({"done": 0.5})
        get_stream_writer()("x" * 100_000)
        await Model().ainvoke("hi")
        return {"n": 1}

    engine = make_engine("memory://")
    flow = durable_graph(engine, built((START, "tell"), ("tell", END), tell=tell).compile(), "teller")
    async with engine, engine.worker():
        run = await engine.start(flow, {"n": 0})
        await run.result(timeout=BOUND)
        found = {name: [each.value async for each in engine.stream(run.id, name)] for name in ("messages", "custom")}
        assert found["messages"] == [{"node": "tell", "text": "hello"}]
        assert found["custom"][0] == {"done": 0.5}
        assert "100" in found["custom"][1]["error"]


async def test_a_graph_without_an_end_is_stopped() -> None:
    engine = make_engine("memory://")
    builder = built((START, "again"), ("again", "again"), again=lambda state: {"n": state["n"] + 1})
    flow = durable_graph(engine, builder.compile(), "endless", config={"recursion_limit": 3})
    async with engine, engine.worker():
        with pytest.raises(RunFailed, match="not ended after 3 supersteps"):
            await (await engine.start(flow, {"n": 0})).result(timeout=BOUND)


def test_a_graph_with_another_checkpointer_is_refused() -> None:
    graph = built((START, "a"), ("a", END), a=lambda _: {})
    with pytest.raises(InvalidInput, match="without a checkpointer, not with a InMemorySaver"):
        durable_graph(make_engine("memory://"), graph.compile(checkpointer=InMemorySaver()), "flow")
