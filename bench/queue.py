"""Throughput, latency and idle cost of the queue, compared with the maximum of the same database.

*Drain*: no-op tasks per second through real worker processes, with full history. The time starts when a process with loaded
code and an open store starts its worker, so it includes registration, recovery and the first claim, and ends with the last
settle; *start* is the part before the first tasks are done. The two *limits* are measured in every round, in the same
database, by a bare loop on one connection: `bare` takes and completes 100 rows of a two-column table per transaction; `with
history` does the same with copies of the task rows in the tables that the drain uses: claimed through the same index, ended
by a row in `finished` (the log entry) with payload and result, and deleted from the live table. Neither runs handlers,
renews leases or checks claims.

*Latency* is the time from the call of `enqueue` in one process to the first line of the handler in another, idle process,
on an otherwise empty store. *Under load*, one process sends a batch every 10 ms, at half the rate at which one worker drains,
and a worker with the default concurrency handles them: the latency of every task counts, from the call that sent its batch.

*CPU* is that of the worker processes. *WAL* are the bytes that PostgreSQL writes during a drain, with the start of the worker and
page images after checkpoints. *Idle queries* are the statements that one idle worker sends, without `begin` and `commit`. The
transactions that PostgreSQL counts for the database (including autovacuum) are listed separately. *The disk's own sync* appends 4
KiB to a plain file and syncs it: a caller that waits for its commit cannot be faster.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged, ratios
from bench.limits import limit_with_history, set_based_limit, sync_us
from bench.processes import Child, child
from bench.servers import counters, second_store
from treadle import Engine, TaskSpec
from treadle.settings import Settings

NAME = "queue"
TITLE = "The queue"
STORES = BOTH
CALLERS = 32
TICK = 0.01
"""Seconds between two batches of the steady load."""


@dataclass(frozen=True)
class Sizes:
    """`tasks` are drained in each of `rounds`; `samples` of latency are taken."""

    tasks: int = 10_000
    rounds: int = 7
    samples: int = 300
    settle_seconds: float = 11.0
    """PostgreSQL's counters are late by up to ten seconds where a connection rests."""
    idle_seconds: float = 20.0
    loaded_seconds: float = 30.0


SIZES = Sizes()
QUICK = Sizes(tasks=1000, rounds=2, samples=20, settle_seconds=1.0, idle_seconds=3.0, loaded_seconds=1.0)


async def measure(url: str, sizes: Sizes) -> Figures:
    """In every round: enqueue, the limits, one worker, the limits once more, two workers, one with the default concurrency."""
    figures: Figures = {"tasks": sizes.tasks, "rounds": sizes.rounds}
    samples: dict[str, list[float]] = {}

    def add(**found: float) -> None:
        for name, value in found.items():
            samples.setdefault(name, []).append(value)

    for number in range(1, sizes.rounds + 1):
        async with Engine(url, settings=Settings()) as engine:
            add(sync_us=sync_us(), **await enqueue_rates(engine, sizes.tasks))
        for workers in (1, 2):
            name = f"bench.noop{workers}.{number}"
            add(enqueue_batched=await fill(url, name, sizes.tasks))
            add(**{f"limit_beside_{workers}": await set_based_limit(url, sizes.tasks)})
            add(**{f"limit_with_history_beside_{workers}": await limit_with_history(url, name)})
            before = await counters(url)
            drained = await drain(url, name, sizes.tasks, workers)
            if "wal_written" in before:
                drained["_wal_bytes"] = ((await counters(url))["wal_written"] - before["wal_written"]) / sizes.tasks
            add(**{f"drain_{workers}{what}": value for what, value in drained.items()})
        name = f"bench.noop0.{number}"
        await fill(url, name, sizes.tasks)
        add(drain_default=(await drain(url, name, sizes.tasks, 1, concurrency=0))[""])
        say(f"round {number} of {sizes.rounds}: {samples['drain_1'][-1]:,.0f}/s, with two workers {samples['drain_2'][-1]:,.0f}/s")
    figures |= samples
    for workers in (1, 2):
        for limit in ("limit", "limit_with_history"):
            figures[f"drain_{workers}_of_{limit}"] = ratios(samples[f"drain_{workers}"], samples[f"{limit}_beside_{workers}"])
    figures["drain_default_of_tuned"] = ratios(samples["drain_default"], samples["drain_1"])
    figures["limit"] = samples["limit_beside_1"] + samples["limit_beside_2"]
    figures["limit_with_history"] = samples["limit_with_history_beside_1"] + samples["limit_with_history_beside_2"]
    async with second_store(url) as empty:
        figures |= await idle_figures(empty, sizes)
        return figures | await loaded_figures(empty, statistics.median(samples["drain_1"]) / 2, sizes.loaded_seconds)


async def enqueue_rates(engine: Engine, count: int) -> dict[str, float]:
    """Tasks per second: one caller after the other, and many at once."""
    singles, each = min(count // 10, 500), count // 4 // CALLERS

    async def caller(times: int) -> None:
        for _ in range(times):
            await engine.enqueue("bench.waiting", task_list="waiting")

    started = time.perf_counter()
    await caller(singles)
    single = singles / (time.perf_counter() - started)
    started = time.perf_counter()
    await asyncio.gather(*(caller(each) for _ in range(CALLERS)))
    return {"enqueue_single": single, "enqueue_32_callers": CALLERS * each / (time.perf_counter() - started)}


async def fill(url: str, name: str, count: int) -> float:
    """So many tasks for a drain, in one call: how many per second that was."""
    async with Engine(url, settings=Settings()) as engine:
        started = time.perf_counter()
        await engine.enqueue_many(TaskSpec(name=name, payload={"n": n}) for n in range(count))
        return count / (time.perf_counter() - started)


async def drain(url: str, name: str, count: int, workers: int, concurrency: int = 2000) -> dict[str, float]:
    """No-op tasks per second with so many worker processes; the milliseconds until the first was done, the rate from then on."""
    async with AsyncExitStack() as stack:
        crew = [
            await stack.enter_async_context(child("bench.queue_worker", "drain", name, str(count), str(concurrency), store=url))
            for _ in range(workers)
        ]
        for each in crew:
            await each.said()
        for each in crew:
            await each.tell("go")
        spans: dict[int, dict[str, float]] = {}

        async def follow(each: Child) -> None:
            while sum(span["handled"] for span in spans.values()) < count:
                spans[each.pid] = await each.said()

        following = [asyncio.ensure_future(follow(each)) for each in crew]
        await asyncio.wait(following, return_when=asyncio.FIRST_COMPLETED)
        for one in following:
            one.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    if (handled := sum(span["handled"] for span in spans.values())) != count:
        raise SystemExit(f"{handled} of {count} tasks were handled: the benchmark is broken or work was lost")
    first, last = min(span["first"] for span in spans.values()), max(span["last"] for span in spans.values())
    begun, by_then = min((span["begun"], span["by_then"]) for span in spans.values() if span["handled"])
    return {
        "": count / (last - first),
        "_start_ms": (begun - first) * 1000,
        "_once_started": (count - by_then) / max(last - begun, 0.001),
        "_cpu_us": sum(span["cpu"] for span in spans.values()) / count * 1e6,
    }


async def idle_figures(url: str, sizes: Sizes) -> dict[str, float]:
    """An idle worker process: how soon it starts what comes, its memory, and what it asks the database while nothing comes."""
    latencies = []
    async with child("bench.queue_worker", "idle", store=url) as worker:
        await worker.said()
        async with Engine(url, settings=Settings()) as engine:
            for _ in range(sizes.samples):
                sent = time.time_ns()
                task = await engine.enqueue("bench.stamp")
                latencies.append(((await engine.result(task, timeout=10))["at"] - sent) / 1e6)
                await asyncio.sleep(0.01)
        say(f"latency: median {statistics.median(latencies):.1f} ms; resting for {sizes.settle_seconds + sizes.idle_seconds:.0f} s")
        await asyncio.sleep(sizes.settle_seconds if url.startswith("postgresql") else 1.0)
        await worker.tell("count")
        before = await counters(url)
        await asyncio.sleep(sizes.idle_seconds)
        after = await counters(url)
        await worker.tell("say")
        said = await worker.said()
    cuts = statistics.quantiles(latencies, n=100)
    figures = {"latency_ms_p50": cuts[49], "latency_ms_p95": cuts[94], "latency_ms_p99": cuts[98]}
    figures |= {"idle_queries_per_s": said["statements"] / sizes.idle_seconds, "idle_rss_mb": said["rss_mb"]}
    if "transactions" in after:
        figures["idle_transactions_per_s"] = (after["transactions"] - before["transactions"]) / sizes.idle_seconds
    return figures


async def loaded_figures(url: str, rate: float, seconds: float) -> dict[str, float]:
    """The latency of tasks that come at that rate for so long, in batches."""
    batch = max(round(rate * TICK), 1)
    count = batch * round(seconds / TICK)
    async with child("bench.queue_worker", "timed", str(count), store=url) as worker, Engine(url, settings=Settings()) as engine:
        await worker.said()
        started = time.perf_counter()
        for number in range(count // batch):
            await asyncio.sleep(max(started + number * TICK - time.perf_counter(), 0))
            sent = time.time_ns()
            await engine.enqueue_many(TaskSpec(name="bench.timed", payload={"sent": sent}) for _ in range(batch))
        took = time.perf_counter() - started
        said = await worker.said()
    return {"loaded_rate": count / took, "loaded_latency_ms_p50": said["p50"], "loaded_latency_ms_p99": said["p99"]}


ROWS = (
    Row("the disk's own sync, 4 KiB appended", "sync_us", " µs"),
    Row("enqueue, one caller", "enqueue_single", "/s"),
    Row("enqueue, 32 concurrent callers", "enqueue_32_callers", "/s"),
    Row("enqueue, batched", "enqueue_batched", "/s"),
    Row("drain, one worker process", "drain_1", "/s"),
    Row("drain, two worker processes", "drain_2", "/s"),
    Row("drain, one worker process, default concurrency", "drain_default", "/s"),
    Row("default concurrency, of 2,000", "drain_default_of_tuned"),
    Row("start, one worker", "drain_1_start_ms", " ms"),
    Row("start, two workers", "drain_2_start_ms", " ms"),
    Row("drain once started, one worker", "drain_1_once_started", "/s"),
    Row("drain once started, two workers", "drain_2_once_started", "/s"),
    Row("CPU per drained task, one worker", "drain_1_cpu_us", " µs"),
    Row("CPU per drained task, two workers", "drain_2_cpu_us", " µs"),
    Row("WAL per drained task, one worker", "drain_1_wal_bytes", " B"),
    Row("limit, bare", "limit", "/s"),
    Row("limit, with history", "limit_with_history", "/s"),
    Row("one worker, of the bare limit", "drain_1_of_limit"),
    Row("one worker, of the limit with history", "drain_1_of_limit_with_history"),
    Row("two workers, of the bare limit", "drain_2_of_limit"),
    Row("two workers, of the limit with history", "drain_2_of_limit_with_history"),
    Row("latency, p50", "latency_ms_p50", " ms"),
    Row("latency, p95", "latency_ms_p95", " ms"),
    Row("latency, p99", "latency_ms_p99", " ms"),
    Row("load, half of the drain by one worker", "loaded_rate", "/s"),
    Row("latency under that load, p50", "loaded_latency_ms_p50", " ms"),
    Row("latency under that load, p99", "loaded_latency_ms_p99", " ms"),
    Row("idle worker: queries per second", "idle_queries_per_s"),
    Row("idle worker: transactions per second, counted by the server", "idle_transactions_per_s"),
    Row("idle worker: memory", "idle_rss_mb", " MB"),
)

POSTGRES, SQLITE = ("postgresql",), ("sqlite",)
AIMS = (
    Aim("drain, one worker, of the bare limit", "drain_1_of_limit", at_least=0.6, stores=POSTGRES),
    Aim("drain, two workers, of the bare limit", "drain_2_of_limit", at_least=0.6, stores=POSTGRES),
    Aim("drain, one worker, of the limit with history", "drain_1_of_limit_with_history", at_least=0.6, stores=POSTGRES),
    Aim("drain, one worker (2.2 times PgQueuer's 13,000/s)", "drain_1", "/s", at_least=28_600, stores=POSTGRES),
    Aim("drain, two workers (2.2 times PgQueuer's 17,600/s)", "drain_2", "/s", at_least=38_700, stores=POSTGRES),
    Aim("drain, one worker (six times Huey's 3,000/s)", "drain_1", "/s", at_least=18_000, stores=SQLITE),
    Aim("drain, default concurrency, of 2,000", "drain_default_of_tuned", at_least=0.9),
    Aim("enqueue, 32 callers (five times the best peer's single one, 1,900/s)", "enqueue_32_callers", "/s", at_least=9_500),
    Aim("latency p50", "latency_ms_p50", " ms", at_most=2.5, stores=POSTGRES),
    Aim("latency p99", "latency_ms_p99", " ms", at_most=5.5, stores=POSTGRES),
    Aim("latency p99 at half the drain load", "loaded_latency_ms_p99", " ms", at_most=50.0),
    Aim("latency p50", "latency_ms_p50", " ms", at_most=2.0, stores=SQLITE),
    Aim("latency p99", "latency_ms_p99", " ms", at_most=5.0, stores=SQLITE),
    Aim("idle queries per second (the best peer's transactions)", "idle_queries_per_s", at_most=0.6),
    Aim("idle memory", "idle_rss_mb", " MB", at_most=60),
)


def show(found: Found) -> str:
    """Figures and aims; those that name a peer use its figure of another day: the section of the peers has them side by side."""
    each = next(iter(found.values()))
    told = f"{each['tasks']:,} tasks in each of {each['rounds']} rounds. Medians (minimum to maximum)."
    note = "Targets that name a peer use a figure measured on another day; the section on peers has figures of the same session."
    return f"{told}\n\n{by_store(found, ROWS)}\n\n{judged(found, AIMS)}\n\n{note}"
