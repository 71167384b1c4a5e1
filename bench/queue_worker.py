"""The worker processes of `bench.queue` and `bench.memory`: `drain`, `idle`, `timed` and `steady`."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from bench.processes import listen, own_store, rss_mb, run_lasting, tell_parent, told
from treadle import Engine
from treadle.settings import Settings

QUIET = 0.05
"""Seconds without a settle after which a worker says how far it is."""


def noop_engine(name: str) -> Engine:
    """An engine with one handler, which gives back what it gets."""
    engine = Engine(own_store(), settings=Settings())
    if name.startswith("bench.typed."):
        from bench.conversion import ORDERS

        order = ORDERS[name.split(".")[2]]

        async def typed(order: Any) -> Any:
            return order

        typed.__annotations__ = {"order": type(order), "return": type(order)}
        engine.handler(name)(typed)
        return engine

    @engine.handler(name)
    async def noop(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    return engine


async def drain(name: str, count: str, concurrency: str = "2000") -> None:
    """Told to, run no-op tasks, with that concurrency (0: the default); say how many, when it began, and when the first and the
    last were seen settled."""
    from treadle.interfaces.cli.host import calm_collector

    engine = noop_engine(name)
    async with engine:
        async with engine.worker(concurrency=2000, task_lists=("none",)):
            pass  # what a worker loads when it first starts is loaded
        calm_collector()  # as `treadle worker` does
        tell_parent(ready=True)
        await told()
        first = last = time.time()
        cpu = time.process_time()
        begun, by_then, done, reported = 0.0, 0, 0, -1
        async with engine.worker(concurrency=int(concurrency) or None) as host:
            while True:
                await asyncio.sleep(0.005)
                if host.worker.handled > done:
                    done, last = host.worker.handled, time.time()
                    begun, by_then = (begun, by_then) if begun else (last, done)
                elif done != reported and (done == int(count) or time.time() - last > QUIET):
                    reported = done
                    tell_parent(
                        handled=done, first=first, begun=begun or last, by_then=by_then, last=last, cpu=time.process_time() - cpu
                    )


async def idle() -> None:
    """Answer stamps; told to, count what the database is asked for; told again, say so, and the memory."""
    statements = count_statements()
    engine = Engine(own_store(), settings=Settings())

    @engine.handler("bench.stamp")
    async def stamp() -> dict[str, Any]:
        return {"at": time.time_ns()}

    async with engine, engine.worker():
        await asyncio.sleep(1)
        tell_parent(ready=True)
        await told()
        statements.clear()
        await told()
        tell_parent(statements=statements.total(), rss_mb=rss_mb())


async def timed(count: str) -> None:
    """Handle that many tasks that have the time of their call; say how long they took until their handlers."""
    from treadle.interfaces.cli.host import calm_collector

    engine = Engine(own_store(), settings=Settings())
    took: list[int] = []
    done = asyncio.Event()

    @engine.handler("bench.timed")
    async def timed(payload: dict[str, Any]) -> None:
        took.append(time.time_ns() - payload["sent"])
        if len(took) == int(count):
            done.set()

    async with engine:
        calm_collector()
        async with engine.worker():
            tell_parent(ready=True)
            await done.wait()
            cuts = statistics.quantiles(took, n=100)
            tell_parent(p50=cuts[49] / 1e6, p99=cuts[98] / 1e6)
            await told()


async def steady(name: str, every: str) -> None:
    """Run no-op tasks until ended, and say after every so many how much memory that takes."""
    from treadle.interfaces.cli.host import calm_collector

    engine = noop_engine(name)
    every_, reported = int(every), 0
    async with engine:
        calm_collector()
        async with engine.worker(concurrency=2000) as host:
            tell_parent(handled=0, rss_mb=rss_mb())
            while True:
                await asyncio.sleep(0.02)
                if (handled := host.worker.handled) >= reported + every_:
                    reported = handled - handled % every_
                    tell_parent(handled=handled, rss_mb=rss_mb())


def count_statements() -> Counter[str]:
    """Statements that this process sends from now on, on connections to come."""
    import apsw
    import asyncpg

    seen: Counter[str] = Counter()

    def count(statement: str) -> None:
        text = " ".join(line for line in statement.lower().splitlines() if not line.startswith("--")).strip()
        if not text.startswith(("begin", "commit", "rollback")):
            seen["statement"] += 1

    def trace(cursor: Any, statement: str, bindings: Any) -> bool:
        count(statement)
        return True

    async def connect(*arguments: Any, **options: Any) -> Any:
        connection = await connect_as_ever(*arguments, **options)
        connection.add_query_logger(lambda logged: count(logged.query))
        return connection

    apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", trace))
    connect_as_ever, asyncpg.connect = asyncpg.connect, connect
    return seen


if __name__ == "__main__":
    listen()
    roles: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"drain": drain, "idle": idle, "timed": timed, "steady": steady}
    run_lasting(roles[sys.argv[1]](*sys.argv[2:]))
