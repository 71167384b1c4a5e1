"""Streams: the cost of 1,000 streamed tokens.

A handler receives 1,000 tokens from a model, alternately without a stream and with `ctx.stream("tokens").write(token)` for
each. *At once*: tasks one after the other, and the tokens come as fast as the event loop turns. *Paced*: eight tasks at a time,
and a token every 2 ms to each, as a fast model sends them; its cost is processor time of the worker, per 1,000 tokens, and the
number of chunks that are stored, each by one commit or less.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged, ratios
from treadle import Context, Engine
from treadle.settings import Settings

NAME = "streams"
TITLE = "Streams"
STORES = BOTH
TOKENS = 1000
TOKEN = "token "


@dataclass(frozen=True)
class Sizes:
    """`tasks` at once and eight paced ones in each of `rounds`."""

    tasks: int = 50
    rounds: int = 5


SIZES = Sizes()
QUICK = Sizes(tasks=5, rounds=2)


async def measure(url: str, sizes: Sizes) -> Figures:
    """Stream tokens with and without a stream, in turns."""
    figures: Figures = {"rounds": sizes.rounds, "tasks": sizes.tasks}
    engine = Engine(url, settings=Settings())

    @engine.handler("bench.speak")
    async def speak(payload: dict[str, Any], ctx: Context) -> None:
        tokens = ctx.stream("tokens") if payload["streams"] else None
        for _ in range(TOKENS):
            await asyncio.sleep(payload["pause"])
            if tokens is not None:
                tokens.write(TOKEN)

    async def run(count: int, streams: bool, pause: float) -> list[str]:
        payload = {"streams": streams, "pause": pause}
        tasks = [await engine.enqueue("bench.speak", payload) for _ in range(count)]
        await asyncio.gather(*(engine.result(task) for task in tasks))
        return [task.id for task in tasks]

    async with engine, engine.worker(concurrency=8):
        await run(1, True, 0)
        for number in range(sizes.rounds):
            for kind, streams in (("plain", False), ("stream", True)):
                started = time.perf_counter()
                for _ in range(sizes.tasks):
                    await run(1, streams, 0)
                figures.setdefault(f"burst_{kind}", []).append((time.perf_counter() - started) / sizes.tasks * 1000)
                started = time.process_time()
                ids = await run(8, streams, 0.002)
                figures.setdefault(f"paced_{kind}", []).append((time.process_time() - started) / 8 * 1000)
            chunks = [await engine.kernel.store.streams.list_chunks(task_id, "tokens", 0, 10_000) for task_id in ids]
            figures.setdefault("chunks", []).append(sum(map(len, chunks)) / len(chunks))
            burst = [figures[f"burst_{kind}"][-1] for kind in ("stream", "plain")]
            say(f"round {number + 1}: {burst[0]:.1f} ms with a stream, {burst[1]:.1f} ms without")
    figures["burst_ratio"] = ratios(figures["burst_stream"], figures["burst_plain"])
    figures["paced_ratio"] = ratios(figures["paced_stream"], figures["paced_plain"])
    return figures


ROWS = (
    Row("at once, without a stream", "burst_plain", " ms"),
    Row("at once, with a stream", "burst_stream", " ms"),
    Row("paced, without a stream: processor time", "paced_plain", " ms"),
    Row("paced, with a stream: processor time", "paced_stream", " ms"),
    Row("paced: chunks stored", "chunks"),
)

AIMS = (
    Aim("at once, with a stream, of the time without", "burst_ratio", at_most=2),
    Aim("paced, with a stream, of the processor time without", "paced_ratio", at_most=2),
    Aim("chunks per 1,000 tokens at 500 tokens/s", "chunks", at_most=40),
)


def show(found: Found) -> str:
    """Figures and aims."""
    each = next(iter(found.values()))
    return (
        f"Per 1,000 tokens; {each['rounds']} rounds of {each['tasks']} tasks.\n\n{by_store(found, ROWS)}\n\n{judged(found, AIMS)}"
    )
