"""`LLMHandler`: the conversation as a plain handler, for pollers and plain tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from tests.engines import make_engine
from tests.limits import BOUND
from tests.llm.scene import FLOW, GOOD, TARGET

from treadle.agents import AgentPoller, AgentPollerConfig, Evaluator, MemoryStore
from treadle.lang.nodes import NamedType, Param
from treadle.llm import LLMConfig, LLMError, LLMHandler
from treadle.testing.llm import MessagesServer, status, text, uses
from treadle.testing.workflows import compile_program

CONFIG = LLMConfig(model="claude-haiku-4-5", max_retries=0, system_prompt="Be brief.")
NUMBER = (Param("number", NamedType("Long")),)


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with MessagesServer() as made:
        yield made


@pytest.fixture(params=["Anthropic", "AsyncAnthropic"])
def client(request: pytest.FixtureRequest, server: MessagesServer) -> Any:
    return getattr(anthropic, request.param)(api_key="very-secret", base_url=server.url, max_retries=0)


def test_it_fills_the_template_checks_the_answer_and_counts_tokens(server, client):
    server.script(uses(("answer", {"number": 7})), uses(("answer", {"number": "7"})))
    handler = LLMHandler(client, CONFIG, prompt_template="Count {things}.", returns=NUMBER)
    assert handler.handle({"things": ["a", "b"], "_facet_name": "x"}) == {"number": 7}
    with pytest.raises(LLMError) as raised:
        handler.handle({"things": 1})
    assert raised.value.error_code == "answer_mismatch"
    assert (handler.meter.requests, handler.meter.input_tokens, handler.meter.output_tokens) == (2, 200, 40)
    assert server.requests[0]["messages"][0]["content"] == 'Count ["a", "b"].'
    assert server.requests[0]["system"] == "Be brief."
    handler.close()


def test_tools_without_a_handler_return_their_input(server, client):
    server.script(uses(("note", {"line": 1})), uses(("answer", {"number": 1})))
    note = {"name": "note", "description": "Takes a note.", "input_schema": {"type": "object"}}
    handler = LLMHandler(client, CONFIG, tool_definitions=[note], returns=NUMBER)
    assert handler.handle({"x": 1}) == {"number": 1}
    (result,) = server.requests[1]["messages"][-1]["content"]
    assert (result["content"], "is_error" in result) == ('{"line": 1}', False)
    handler.close()


def test_errors_do_not_reveal_the_key(server, client):
    server.script(status(403, "permission_error", "very-secret may not"))
    handler = LLMHandler(client, CONFIG)
    with pytest.raises(LLMError) as raised:
        handler.handle({"x": 1})
    assert "[hidden] may not" in str(raised.value)
    assert "very-secret" not in repr(raised.value)
    handler.close()


async def test_the_prompt_handler_can_be_registered_with_an_engine(server):
    client = anthropic.AsyncAnthropic(api_key="k", base_url=server.url, max_retries=0)
    handler = LLMHandler(client, CONFIG, returns=NUMBER)
    server.script(uses(("answer", {"number": 3})), text("no"))
    engine = make_engine("memory://")
    engine.handler("count")(handler.handle_async)
    async with engine, engine.worker():
        task = await engine.enqueue("count", {"x": 1})
        assert await engine.result(task, timeout=BOUND) == {"number": 3}
        with pytest.raises(Exception, match="answer_missing"):
            await engine.result(await engine.enqueue("count", {"x": 1}), timeout=BOUND)


def test_a_poller_answers_steps_with_it(server, client):
    server.script(uses((TARGET, GOOD)))
    program = compile_program(FLOW[0][1])
    handler = LLMHandler(client, CONFIG, prompt_template="Sum up: {letter}", program=program)
    with MemoryStore() as store:
        evaluator = Evaluator(store)
        started = evaluator.execute("desk.Sort", {"letter": "Hi"}, FLOW[0][1])
        poller = AgentPoller(store, evaluator, AgentPollerConfig())
        poller.register("desk.Summarize", lambda payload: handler.handle(payload | {"_facet_name": "desk.Summarize"}))
        assert poller.poll_once() == 1
        assert evaluator.resume(started.workflow_id).outputs == {"summary": "All fine.", "urgent": False}
    handler.close()
