"""The workflows that are measured, an engine for them, and, as a process, a worker that serves them until it is ended."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.processes import listen, own_store, tell_parent
from treadle import Engine
from treadle.interfaces.cli.host import calm_collector
from treadle.settings import Settings

STEPS = 10

FLOW = (
    """
namespace bench {
    event facet Item(n: Long) => (n: Long)
    workflow Fan(items: Json) => (done: Long) andThen foreach i in $.items {
        s = Item(n = $.i)
    } andThen { yield Fan(done = 1) }
    event facet Link(n: Long) => (n: Long)
    workflow Chain(n: Long) => (n: Long) andThen {
        s0 = Link(n = $.n)
"""
    + "".join(f"        s{k} = Link(n = s{k - 1}.n)\n" for k in range(1, STEPS))
    + f"""        yield Chain(n = s{STEPS - 1}.n)
    }}
    workflow Script(n: Long) => (n: Long) andThen script "result['n'] = params['n'] + 1"
}}
"""
)
SOURCES = [("bench.afl", FLOW)]


def make_engine(url: str) -> Engine:
    """An engine whose handlers give back what they get."""
    engine = Engine(url, settings=Settings(), emit=lambda _: None)

    async def same(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    engine.handler("bench.Item")(same)
    engine.handler("bench.Link")(same)
    return engine


async def fan(engine: Engine, size: int) -> None:
    """One run over so many items."""
    run = await engine.start_run(SOURCES, "bench.Fan", {"items": list(range(size))})
    await engine.run_result(run, timeout=600)


async def chains(engine: Engine, runs: int) -> None:
    """So many chains at once."""
    await _at_once(engine, "bench.Chain", runs)


async def scripts(engine: Engine, runs: int) -> None:
    """So many runs of a small script at once."""
    await _at_once(engine, "bench.Script", runs)


async def _at_once(engine: Engine, workflow: str, runs: int) -> None:
    begun = await asyncio.gather(*(engine.start_run(SOURCES, workflow, {"n": n}) for n in range(runs)))
    await asyncio.gather(*(engine.run_result(run, timeout=600) for run in begun))


async def main() -> None:
    engine = make_engine(own_store())
    calm_collector()
    async with engine, engine.worker(concurrency=500):
        tell_parent(ready=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    listen()
    asyncio.run(main())
