"""A flow with prompts, an engine whose workers ask the scripted server, and short words for both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from treadle import Engine
from treadle.llm import use_llm
from treadle.settings import Settings
from treadle.testing.llm import MessagesServer

KEY = "sk-secret-0123456789"
FLOW = [
    (
        "desk.afl",
        """
namespace desk {
  schema Item { sku: String, count: Long }

  /** Looks a word up.
   * @param word what to look up */
  event facet Lookup(word: String) => (meaning: String)

  event facet Price(sku: String) => (cents: Long)

  /** Sums a letter up.
   * @return summary in one sentence */
  event facet Summarize(letter: String, tone: String = "dry") => (summary: String, items: [Item], urgent: Boolean) prompt {
    system "You write in a {tone} tone. Keep {unknown} and {\\"json\\": 1}."
    template "Letter: {letter}"
    model "claude-haiku-4-5"
  }

  workflow Sort(letter: String) => (summary: String, urgent: Boolean) andThen {
    s = Summarize(letter = $.letter)
    yield Sort(summary = s.summary, urgent = s.urgent)
  }
}
""".replace("Keep {unknown} and", "Keep"),
    )
]
TARGET = "desk__Summarize"
GOOD = {"summary": "All fine.", "items": [{"sku": "a", "count": 2}], "urgent": False}
OUTPUTS = {"summary": "All fine.", "urgent": False}


class Words:
    """Tools of a registry: two lookups, and one that fails."""

    def __init__(self, **tools: Any) -> None:
        self._tools = {name.replace("__", "."): tool for name, tool in tools.items()}

    def names(self) -> list[str]:
        return sorted(self._tools)

    def find(self, name: str) -> Any:
        return self._tools.get(name) or self._tools.get(name.rpartition(".")[2])


def settings_for(server: MessagesServer, **values: Any) -> Settings:
    return Settings(anthropic_api_key=KEY, anthropic_base_url=server.url, **values)


@asynccontextmanager
async def desk(server: MessagesServer, url: str = "memory://", **options: Any) -> AsyncIterator[Engine]:
    """An open engine with a worker that serves prompts."""
    values = {name: options.pop(name) for name in list(options) if name.startswith("llm_")}
    emit = options.pop("emit", None)
    engine = Engine(url, settings=settings_for(server, **values), **({} if emit is None else {"emit": emit}))
    use_llm(engine, **options)
    async with engine, engine.worker():
        yield engine
