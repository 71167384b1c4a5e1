"""A LangGraph agent for crash tests: real requests to a scripted model server, effects in a file, and a person's approval."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anthropic
import openai
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from treadle import Engine
from treadle.integrations.langgraph import durable_graph

EFFECTS = ("plan", "search", "read", "write", "publish")


class State(TypedDict, total=False):
    topic: str
    plan: str
    notes: Annotated[list[str], operator.add]
    text: str
    published: bool


def add_graphs(engine: Engine, effects: Path, url: str) -> None:
    def effect(what: str) -> None:
        with effects.open("ab", buffering=0) as file:
            file.write(f"{what} - 0 {os.getpid()}\n".encode())

    async def plan(state: State) -> dict[str, Any]:
        async with anthropic.AsyncAnthropic(api_key="key", base_url=url, max_retries=0) as client:
            asked: Any = [{"role": "user", "content": f"Plan {state['topic']}"}]
            answer: Any = await client.messages.create(model="claude-haiku-4-5", max_tokens=100, messages=asked)
        effect("plan")
        return {"plan": answer.content[0].text}

    async def search(state: State) -> dict[str, Any]:
        effect("search")
        return {"notes": ["found"]}

    async def read(state: State) -> dict[str, Any]:
        effect("read")
        return {"notes": ["has read"]}

    async def write(state: State) -> dict[str, Any]:
        async with openai.AsyncOpenAI(api_key="key", base_url=f"{url}/v1", max_retries=0) as client:
            asked: Any = [{"role": "user", "content": f"Write {state['notes']}"}]
            answer: Any = await client.chat.completions.create(model="m", messages=asked)
        effect("write")
        return {"text": answer.choices[0].message.content}

    async def publish(state: State) -> dict[str, Any]:
        if interrupt({"question": f"Publish {state['text']!r}?"}):
            effect("publish")
            return {"published": True}
        return {"published": False}

    builder: Any = StateGraph(State)
    for node in (plan, search, read, write, publish):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "search")
    builder.add_edge("plan", "read")
    builder.add_edge(["search", "read"], "write")
    builder.add_edge("write", "publish")
    builder.add_edge("publish", END)
    durable_graph(engine, builder.compile(), "article")
