"""Outside jobs in figures: `python -m bench.external [--jobs N] [--interval S] [--seconds S] [--store URL] [--json]`.

So many jobs with the same interval, in one process: how late polls are (from when a job is due to when its specialist is asked),
the memory of the process, and what the database is asked for (commits and rows of PostgreSQL, bytes of SQLite). A specialist
answers at once: what is measured is the engine. Dispatching comes first, and its rate is told too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from pathlib import Path
from typing import Any

from bench.servers import temporary_store
from treadle import Engine, ExternalProductionHandle, TaskSpec
from treadle.settings import Settings


class Service:
    """A specialist that knows when each of its jobs is due, and notes how late it is asked."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._due: dict[str, float] = {}
        self.late: list[float] = []
        self.measuring = False

    async def start(self, payload: dict[str, Any], ctx: Any) -> ExternalProductionHandle:
        """Begin at a time of its own, so that jobs are spread over the interval as they are in life."""
        first = self._interval * (payload["n"] % 1000 + 1) / 1000
        self._due[ctx.task_id] = time.perf_counter() + first
        return ExternalProductionHandle(ctx.task_id, first)

    async def poll(self, external_job_id: str) -> ExternalProductionHandle:
        now = time.perf_counter()
        if self.measuring:
            self.late.append(max(now - self._due[external_job_id], 0.0))
        self._due[external_job_id] = now + self._interval
        return ExternalProductionHandle(external_job_id, self._interval)


async def measure(url: str, jobs: int, interval: float, seconds: float) -> dict[str, Any]:
    """Dispatch the jobs, let one interval pass, and measure for so long."""
    engine = Engine(url, settings=Settings(), emit=lambda _: None)
    service = Service(interval)
    engine.specialist("render", service, concurrency=100)
    async with engine:
        await engine.enqueue_many([TaskSpec(name="render", payload={"n": number}) for number in range(jobs)])
        began = time.perf_counter()
        async with engine.worker(concurrency=200):
            while len(service._due) < jobs:
                await asyncio.sleep(0.1)
            dispatched = time.perf_counter() - began
            await asyncio.sleep(interval)
            load = await _load(url)
            used = resource.getrusage(resource.RUSAGE_SELF)
            service.measuring = True
            await asyncio.sleep(seconds)
            service.measuring = False
            after, now = await _load(url), resource.getrusage(resource.RUSAGE_SELF)
    late = sorted(service.late) or [0.0]
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return {
        "jobs": jobs,
        "interval_s": interval,
        "dispatched_per_s": round(jobs / dispatched),
        "polls": len(service.late),
        "polls_per_s": round(len(service.late) / seconds, 1),
        "late_p50_ms": round(1000 * late[len(late) // 2], 1),
        "late_p99_ms": round(1000 * late[int(0.99 * (len(late) - 1))], 1),
        "late_max_ms": round(1000 * late[-1], 1),
        "cpu_percent": round(100 * cpu / seconds),
        "peak_rss_mb": round(now.ru_maxrss / 1024),
        "database": {name: round((after[name] - load[name]) / seconds, 1) for name in after},
    }


async def _load(url: str) -> dict[str, float]:
    """Counters of the database that only rise."""
    if not url.startswith("postgresql"):
        path = Path(url.removeprefix("sqlite:///"))
        wal = path.with_name(path.name + "-wal")
        return {"file_bytes": float(path.stat().st_size), "wal_bytes": float(wal.stat().st_size if wal.exists() else 0)}
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        row = await connection.fetchrow(
            "select xact_commit, tup_updated, tup_inserted, tup_fetched from pg_stat_database where datname = current_database()"
        )
        return {f"{name}_per_s": float(value) for name, value in row.items()}
    finally:
        await connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--interval", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--store", choices=["sqlite", "postgresql"], default="postgresql")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with temporary_store(options.store) as url:
        found = asyncio.run(measure(url, options.jobs, options.interval, options.seconds))
    print(json.dumps(found) if options.json else "\n".join(f"{name:18} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
