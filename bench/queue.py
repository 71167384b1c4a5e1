"""The queue in figures: `python -m bench.queue --store URL [--json]`.

Without --store it measures a temporary SQLite file and a temporary PostgreSQL, one after the other. Workers are real
processes. `limit` is what the same database does when a bare loop claims 100 rows and completes 100 rows with set-based
statements and nothing else: no history, no retries, no leases. Ratios to it are what to compare between machines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from bench.limits import set_based_limit
from bench.servers import temporary_store
from treadle import Engine, TaskSpec
from treadle.settings import Settings


async def enqueue_figures(url: str, count: int) -> dict[str, float]:
    """Tasks per second: one caller after the other, 32 callers at once, and in batches."""
    async with Engine(url, settings=Settings()) as engine:
        singles = min(count // 10, 500)
        started = time.perf_counter()
        for _ in range(singles):
            await engine.enqueue("bench.parked", task_list="parked")
        single = singles / (time.perf_counter() - started)

        async def caller(times: int) -> None:
            for _ in range(times):
                await engine.enqueue("bench.parked", task_list="parked")

        each = count // 4 // 32
        started = time.perf_counter()
        await asyncio.gather(*(caller(each) for _ in range(32)))
        concurrent = 32 * each / (time.perf_counter() - started)
        started = time.perf_counter()
        await engine.enqueue_many(TaskSpec(name="bench.parked", task_list="parked") for _ in range(count))
        batched = count / (time.perf_counter() - started)
    return {"enqueue_single": single, "enqueue_32_callers": concurrent, "enqueue_batched": batched}


async def drain_figures(url: str, count: int, workers: int) -> float:
    """No-op tasks per second from the first claim to the last settle, with so many worker processes."""
    async with Engine(url, settings=Settings()) as engine:
        name = f"bench.noop{workers}"
        await engine.enqueue_many(TaskSpec(name=name, payload={"n": n}) for n in range(count))
    processes = [spawn("drain", url, name, str(count // workers)) for _ in range(workers)]
    spans = [json.loads(await asyncio.to_thread(process_output, process)) for process in processes]
    if (handled := sum(span["handled"] for span in spans)) != count:
        raise SystemExit(f"{handled} of {count} tasks were handled: the benchmark is broken or work was lost")
    return count / (max(span["last"] for span in spans) - min(span["first"] for span in spans))


async def idle_figures(url: str, samples: int, idle_seconds: float) -> dict[str, float]:
    """An idle worker process: latency from enqueue to start of the handler, its memory, and its store calls per second."""
    process = spawn("idle", url, str(idle_seconds))
    assert process.stdout is not None
    await asyncio.to_thread(process.stdout.readline)
    latencies = []
    async with Engine(url, settings=Settings()) as engine:
        for _ in range(samples):
            sent = time.time_ns()
            task = await engine.enqueue("bench.stamp")
            latencies.append(((await engine.result(task, timeout=10))["at"] - sent) / 1e6)
            await asyncio.sleep(0.01)
        await engine.enqueue("bench.rest")
    said = json.loads(await asyncio.to_thread(process_output, process))
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "latency_ms_p50": cuts[49],
        "latency_ms_p95": cuts[94],
        "latency_ms_p99": cuts[98],
        "idle_queries_per_s": said["calls"] / idle_seconds,
        "idle_rss_mb": said["rss_mb"],
    }


def spawn(role: str, *arguments: str) -> subprocess.Popen[str]:
    """A worker process of this benchmark."""
    command = [sys.executable, "-m", "bench.queue_worker", role, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def process_output(process: subprocess.Popen[str]) -> str:
    """The last line that the process prints; a process that fails ends the benchmark."""
    output, _ = process.communicate(timeout=300)
    if process.returncode:
        raise SystemExit(f"a worker process failed with exit code {process.returncode}")
    return output.strip().splitlines()[-1]


async def measure(url: str, count: int, samples: int, idle_seconds: float) -> dict[str, Any]:
    """All figures for one store."""
    figures: dict[str, Any] = {"store": url.partition("://")[0], "tasks": count}
    figures |= await enqueue_figures(url, count)
    figures["limit"] = await set_based_limit(url, count)
    figures["drain_1"] = await drain_figures(url, count, 1)
    figures["drain_2"] = await drain_figures(url, count, 2)
    figures["drain_1_of_limit"] = figures["drain_1"] / figures["limit"]
    figures |= await idle_figures(url, samples, idle_seconds)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="store URL; default: a temporary SQLite file, then a temporary PostgreSQL")
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    all_figures = []
    kinds = [arguments.store] if arguments.store else ["sqlite", "postgresql"]
    for kind in kinds:
        if arguments.store:
            all_figures.append(asyncio.run(measure(kind, arguments.tasks, arguments.samples, arguments.idle_seconds)))
        else:
            with temporary_store(kind) as url:
                all_figures.append(asyncio.run(measure(url, arguments.tasks, arguments.samples, arguments.idle_seconds)))
    if arguments.json:
        print(json.dumps(all_figures, indent=2))
        return
    for figures in all_figures:
        print(f"\n{figures.pop('store')}")
        for name, value in figures.items():
            print(f"  {name:22} {value:12,.2f}")


if __name__ == "__main__":
    main()
