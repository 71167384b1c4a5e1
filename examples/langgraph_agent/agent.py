"""A research agent in LangGraph as a durable run: it plans, searches, writes, and publishes after a person's approval.

A scripted model answers, unless ANTHROPIC_API_KEY is set.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

from treadle import Engine
from treadle.integrations.langgraph import durable_graph

MODEL = "claude-haiku-4-5"

engine = Engine()


class Claude(BaseChatModel):
    """Anthropic's SDK as a LangChain model; `pip install langchain-anthropic` has a complete one."""

    @property
    def _llm_type(self) -> str:
        return "claude"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {"ls_model_name": MODEL, "ls_max_tokens": 500}

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        asked = str(messages[-1].content)
        key = engine.kernel.settings.anthropic_api_key
        if key:
            import anthropic

            answer: Any = anthropic.Anthropic(api_key=key).messages.create(
                model=MODEL, max_tokens=500, messages=[{"role": "user", "content": asked}]
            )
            text, used = answer.content[0].text, (answer.usage.input_tokens, answer.usage.output_tokens)
        else:
            text, used = scripted(asked), (len(asked) // 4, 40)
        usage = UsageMetadata(input_tokens=used[0], output_tokens=used[1], total_tokens=sum(used))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text, usage_metadata=usage))])


def scripted(asked: str) -> str:
    """Answer like a model, always the same."""
    if asked.startswith("Name"):
        return "warp\nweft\ntreadle"
    if asked.startswith("Explain"):
        return f"{asked.split()[1]} is a part of a loom."
    return "A loom holds the warp; a treadle lifts it, and the weft passes through."


async def ask(text: str) -> str:
    return str((await Claude().ainvoke(text)).text)


class State(TypedDict, total=False):
    topic: str
    words: list[str]
    notes: Annotated[list[str], operator.add]
    article: str
    published: bool


async def plan(state: State) -> State:
    words = await ask(f"Name three words that an article about {state['topic']} must explain, one per line, nothing else.")
    return {"words": words.split("\n")[:3]}


async def explain(state: dict[str, str]) -> State:
    return {"notes": [await ask(f"Explain {state['word']} in one sentence.")]}


async def write(state: State) -> State:
    return {"article": await ask("Write an article in one sentence from these notes:\n" + "\n".join(state["notes"]))}


async def publish(state: State) -> State:
    """Ask a person first: `interrupt` returns the answer, maybe days later and in another process."""
    answer = interrupt({"question": "Publish this article?", "article": state["article"]})
    return {"published": bool(answer)}


builder = StateGraph(State)
builder.add_node("plan", plan)
builder.add_node("explain", explain)
builder.add_node("write", write)
builder.add_node("publish", publish)
builder.add_edge(START, "plan")
builder.add_conditional_edges("plan", lambda state: [Send("explain", {"word": word}) for word in state["words"]], ["explain"])
builder.add_edge("explain", "write")
builder.add_edge("write", "publish")
builder.add_edge("publish", END)

research = durable_graph(engine, builder.compile(), "research", retry=3)
