"""The cost of recording an agent: the same conversation with and without Treadle, on the same scripted model server.

A turn is a request to the model and a call of one tool, which answer immediately; the last turn is text. *Alone* is the framework
by itself, *durable* the same agent in a durable function, which commits two steps per turn. The model server is another process.
*Overhead* is the additional time of a turn; a real model takes seconds.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Row, by_store, ratios
from treadle import Engine
from treadle.settings import Settings

NAME = "agents"
TITLE = "Agents"
STORES = BOTH

_SERVER = """
import sys
from treadle.testing.llm import ModelServer, text, uses
with ModelServer() as server:
    server.conversation(*(uses(("look", {"turn": turn})) for turn in range(int(sys.argv[1]))), text("Done."))
    print(server.url, flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True)
class Sizes:
    """Conversations of `turns` turns, with each framework, alone and durable, in each of `rounds`."""

    turns: int = 30
    rounds: int = 5


SIZES = Sizes()
QUICK = Sizes(turns=5, rounds=1)
FRAMEWORKS = {"pydantic": "Pydantic AI", "openai": "OpenAI Agents SDK"}

Run = Callable[[], Awaitable[Any]]


def pydantic_ai(url: str) -> tuple[Run, Run]:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.usage import UsageLimits

    from treadle.integrations.pydantic_ai import TreadleDurability

    def look(turn: int) -> int:
        return turn

    model = OpenAIChatModel("m", provider=OpenAIProvider(api_key="k", base_url=f"{url}/v1"))
    agents = [Agent(model, name="a", tools=[look], capabilities=more) for more in ([], [TreadleDurability[None]()])]
    limits = UsageLimits(request_limit=None)
    alone, durable = ((lambda agent=agent: agent.run("Go", usage_limits=limits)) for agent in agents)
    return alone, durable


def openai_agents(url: str) -> tuple[Run, Run]:
    from openai import AsyncOpenAI

    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
    from treadle.integrations.openai_agents import TreadleRunner

    @function_tool
    def look(turn: int) -> int:
        return turn

    client = AsyncOpenAI(api_key="k", base_url=f"{url}/v1")
    agent = Agent[Any](name="a", model=OpenAIChatCompletionsModel("m", openai_client=client), tools=[look])
    options: Any = {"max_turns": None, "run_config": RunConfig(tracing_disabled=True)}
    return (lambda: Runner.run(agent, "Go", **options)), (lambda: TreadleRunner().run(agent, "Go", **options))


async def measure(url: str, sizes: Sizes) -> Figures:
    """In every round: a conversation of each kind."""
    found: dict[str, list[float]] = {}
    command = [sys.executable, "-c", _SERVER, str(sizes.turns)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = (await asyncio.to_thread(server.stdout.readline)).strip()
        kinds = {"pydantic": pydantic_ai(address), "openai": openai_agents(address)}
        engine = Engine(url, settings=Settings())
        for name, (_, durable) in kinds.items():
            _register(engine, name, durable)
        async with engine, engine.worker():
            for number in range(sizes.rounds + 1):  # the first one imports and connects
                for name, (alone, _) in kinds.items():

                    async def recorded(name: str = name) -> None:
                        await engine.run_result(await engine.start_function(name), timeout=600)

                    for kind, run in (("alone", alone), ("durable", recorded)):
                        began = time.perf_counter()
                        await run()
                        if number:
                            took = (time.perf_counter() - began) * 1000 / (sizes.turns + 1)
                            found.setdefault(f"{kind}_{name}", []).append(took)
                say(f"round {number} of {sizes.rounds}")
        server.terminate()
    for name in kinds:
        pairs = zip(found[f"durable_{name}"], found[f"alone_{name}"], strict=True)
        found[f"overhead_{name}"] = [durable - alone for durable, alone in pairs]
        found[f"ratio_{name}"] = ratios(found[f"durable_{name}"], found[f"alone_{name}"])
    return {"turns": sizes.turns, "rounds": sizes.rounds, **found}


def _register(engine: Engine, name: str, run: Run) -> None:
    @engine.function(name)
    async def function(payload: Any) -> None:
        await run()


ROWS = tuple(
    row
    for name, title in FRAMEWORKS.items()
    for row in (
        Row(f"{title} alone, a turn", f"alone_{name}", " ms"),
        Row(f"{title} durable, a turn", f"durable_{name}", " ms"),
        Row(f"{title}, overhead of a turn", f"overhead_{name}", " ms"),
        Row(f"{title}, durable of alone", f"ratio_{name}"),
    )
)


def show(found: Found) -> str:
    """Figures."""
    each = next(iter(found.values()))
    told = f"Conversations of {each['turns']} turns in each of {each['rounds']} rounds. Medians (minimum to maximum)."
    return f"{told}\n\n{by_store(found, ROWS)}"
