"""The scripted model server against the real SDKs: each wire format, plain and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from tests.limits import BOUND

from treadle.testing.llm import ModelServer, Reply, status, text, uses

TOOLS = Reply(({"type": "text", "text": "Let me see."}, {"type": "tool_use", "name": "look", "input": {"at": "tea"}}), "tool_use")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as made:
        yield made


def messages(url: str, stream: bool, said: list[Any]) -> Any:
    client = anthropic.Anthropic(api_key="k", base_url=url, max_retries=0)
    request: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": said}
    if stream:
        with client.messages.stream(**request) as events:
            found = events.get_final_message()
    else:
        found = client.messages.create(**request)
    return [
        (block.text if block.type == "text" else (block.name, block.input))  # type: ignore[union-attr]
        for block in found.content
    ], (found.usage.input_tokens, found.usage.output_tokens)


def chat(url: str, stream: bool, said: list[Any]) -> Any:
    client = openai.OpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0)
    if stream:
        with client.chat.completions.stream(model="m", messages=said, stream_options={"include_usage": True}) as events:
            found: Any = events.get_final_completion()
    else:
        found = client.chat.completions.create(model="m", messages=said)
    message = found.choices[0].message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    return [*([message.content] if message.content else []), *calls], (found.usage.prompt_tokens, found.usage.completion_tokens)


def responses(url: str, stream: bool, said: list[Any]) -> Any:
    client = openai.OpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0)
    if stream:
        with client.responses.stream(model="m", input=said) as events:
            found: Any = events.get_final_response()
    else:
        found = client.responses.create(model="m", input=said)
    items = [item.content[0].text if item.type == "message" else (item.name, json.loads(item.arguments)) for item in found.output]
    return items, (found.usage.input_tokens, found.usage.output_tokens)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ask", [messages, chat, responses])
def test_the_sdks_read_every_format(server: ModelServer, ask: Any, stream: bool) -> None:
    server.script(TOOLS, status(429, message="busy"))
    said = [{"role": "user", "content": "Hello"}]
    assert ask(server.url, stream, said) == (["Let me see.", ("look", {"at": "tea"})], (100, 20))
    with pytest.raises((anthropic.RateLimitError, openai.RateLimitError), match="busy"):
        ask(server.url, stream, said)


@pytest.mark.parametrize(
    ("path", "field", "spoken"),
    [
        ("messages", "messages", [{"role": "assistant", "content": "a"}]),
        ("chat/completions", "messages", [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}]),
        (
            "responses",
            "input",
            [{"type": "function_call", "name": "a"}, {"type": "function_call", "name": "b"}, {"type": "function_call_output"}],
        ),
    ],
)
def test_a_conversation_answers_by_turn_and_counts_repeated_requests(path: str, field: str, spoken: list[Any]) -> None:
    with ModelServer() as server:
        server.conversation(uses(("look", {})), text("done"), key="tea")

        def ask(*more: Any) -> str:
            body = {"model": "m", field: [{"role": "user", "content": "about tea"}, *more]}
            return httpx.post(f"{server.url}/v1/{path}", json=body, timeout=BOUND).text

        assert "look" in ask()
        assert "done" in ask(*spoken)
        assert server.repeated() == {}
        assert "done" in ask(*spoken)
        assert server.repeated() == {("tea", 1): 2}
        assert "the script is over" in ask(*spoken, {"role": "user", "content": "more"}, *spoken)
