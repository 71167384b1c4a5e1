"""Tasks enqueued in transactions of the caller's own (`engine.within`), and waiting workers woken by their commits.

*Commit to start* is the time from the return of the caller's commit to the first line of the handler, with one client and an
idle worker in the same process. *Clients* insert a row and enqueue a task per transaction, 16 at the same time, with NOTIFY and
without in turn: PostgreSQL serialises commits that notify. Ratios are those of neighbouring rounds.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import asyncpg

from bench.benchmark import Figures, Found
from bench.figures import Aim, Row, by_store, judged, ratios
from treadle import Engine

NAME = "transactional"
TITLE = "The caller's transaction"
STORES = ("postgresql",)


@dataclass(frozen=True)
class Sizes:
    """`starts` measured one by one; `rounds` of `transactions` by each of `clients`."""

    starts: int = 400
    rounds: int = 5
    transactions: int = 60
    clients: int = 16


SIZES = Sizes()
QUICK = Sizes(starts=20, rounds=1, transactions=5)


async def measure(url: str, sizes: Sizes) -> Figures:
    """Measure the latency of a wake-up, then the throughput of clients."""
    engine = Engine(url)
    began: asyncio.Queue[float] = asyncio.Queue()

    @engine.handler("order.charge")
    async def charge(payload: Any) -> None:
        began.put_nowait(time.perf_counter())

    dsn = url.partition("?schema")[0]
    async with engine:
        clients = [await asyncpg.connect(dsn) for _ in range(sizes.clients)]
        await clients[0].execute("drop table if exists bench_orders; create table bench_orders (id bigserial, total int)")
        async with engine.worker(poll_interval=60):
            for _ in range(10):
                await _order(engine, clients[0], notify=True)
                await began.get()
            delays = [await _start(engine, clients[0], began) for _ in range(sizes.starts)]
        rates: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * sizes.rounds):
            notify = bool(number % 2)
            at = time.perf_counter()
            await asyncio.gather(*(_client(engine, client, sizes.transactions, notify) for client in clients))
            rates[notify].append(sizes.clients * sizes.transactions / (time.perf_counter() - at))
        await clients[0].execute("drop table bench_orders")
        for client in clients:
            await client.close()
    delays.sort()
    return {
        "start_p50_ms": delays[len(delays) // 2],
        "start_p99_ms": delays[min(len(delays) * 99 // 100, len(delays) - 1)],
        "plain_rate": rates[False],
        "notify_rate": rates[True],
        "ratio": ratios(rates[True], rates[False]),
    }


async def _order(engine: Engine, client: Any, *, notify: bool) -> None:
    async with client.transaction():
        number = await client.fetchval("insert into bench_orders (total) values (7) returning id")
        await engine.within(client, notify=notify).enqueue("order.charge", {"order": number})


async def _start(engine: Engine, client: Any, began: asyncio.Queue[float]) -> float:
    await _order(engine, client, notify=True)
    committed = time.perf_counter()
    return max(await began.get() - committed, 0.0) * 1000


async def _client(engine: Engine, client: Any, transactions: int, notify: bool) -> None:
    for _ in range(transactions):
        await _order(engine, client, notify=notify)


ROWS = (
    Row("commit to start, p50", "start_p50_ms", " ms"),
    Row("commit to start, p99", "start_p99_ms", " ms"),
    Row("16 clients, without NOTIFY", "plain_rate", " transactions/s"),
    Row("16 clients, with NOTIFY", "notify_rate", " transactions/s"),
    Row("with / without NOTIFY", "ratio"),
)
AIMS = (Aim("commit to start, p99", "start_p99_ms", " ms", at_most=20.0, stores=STORES),)


def show(found: Found) -> str:
    """Figures, and the target of the wake-up."""
    return f"{by_store(found, ROWS)}\n\n{judged(found, AIMS)}"
