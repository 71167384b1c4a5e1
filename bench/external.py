"""Many external jobs, polled by one process.

All jobs have the same interval, their polls are spread over it, and the service responds immediately, so this measures the
engine. *Late* is the time from when a poll is due to when the specialist is called. CPU and peak memory are those of the
process; database figures are counted by PostgreSQL, or are the growth of the SQLite files. The rate of dispatching, which
comes first, is reported, too.
"""

from __future__ import annotations

import asyncio
import resource
import time
from dataclasses import dataclass
from typing import Any

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Row, by_store
from bench.servers import counters
from treadle import Engine, ExternalProductionHandle, TaskSpec
from treadle.settings import Settings

NAME = "external"
TITLE = "External jobs"
STORES = BOTH


@dataclass(frozen=True)
class Sizes:
    """`jobs` with an `interval`, measured for `seconds`, from `settle_seconds` after the last was dispatched."""

    jobs: int = 10_000
    interval: float = 30.0
    settle_seconds: float = 5.0
    seconds: float = 20.0


SIZES = Sizes()
QUICK = Sizes(jobs=200, interval=2.0, settle_seconds=1.0, seconds=3.0)


class Service:
    """A specialist that knows when each of its jobs is due, and notes how late it is asked."""

    def __init__(self, interval: float, jobs: int) -> None:
        self._interval, self._jobs = interval, jobs
        self.due: dict[str, float] = {}
        self.late: list[float] = []
        self.measuring = False

    async def start(self, payload: dict[str, Any], ctx: Any) -> ExternalProductionHandle:
        """Begin at a time of its own, so that jobs are spread over the interval as they are in life."""
        first = self._interval * (payload["n"] + 1) / self._jobs
        self.due[ctx.task_id] = time.perf_counter() + first
        return ExternalProductionHandle(ctx.task_id, first)

    async def poll(self, external_job_id: str) -> ExternalProductionHandle:
        now = time.perf_counter()
        if self.measuring:
            self.late.append(max(now - self.due[external_job_id], 0.0))
        self.due[external_job_id] = now + self._interval
        return ExternalProductionHandle(external_job_id, self._interval)


async def measure(url: str, sizes: Sizes) -> Figures:
    """Dispatch the jobs, let a while pass, and measure for so long."""
    engine = Engine(url, settings=Settings(), emit=lambda _: None)
    service = Service(sizes.interval, sizes.jobs)
    engine.specialist("render", service, concurrency=100)
    async with engine:
        await engine.enqueue_many([TaskSpec(name="render", payload={"n": number}) for number in range(sizes.jobs)])
        began = time.perf_counter()
        async with engine.worker(concurrency=200):
            while len(service.due) < sizes.jobs:
                await asyncio.sleep(0.1)
            dispatched = time.perf_counter() - began
            say(f"{sizes.jobs:,} jobs are dispatched; measuring for {sizes.seconds:.0f} s")
            await asyncio.sleep(sizes.settle_seconds)
            before, used = await counters(url), resource.getrusage(resource.RUSAGE_SELF)
            service.measuring = True
            await asyncio.sleep(sizes.seconds)
            service.measuring = False
            after, now = await counters(url), resource.getrusage(resource.RUSAGE_SELF)
    late = sorted(service.late) or [0.0]
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return {
        "jobs": sizes.jobs,
        "interval_s": sizes.interval,
        "dispatched_per_s": sizes.jobs / dispatched,
        "polls": len(service.late),
        "polls_per_s": len(service.late) / sizes.seconds,
        "polls_of_due": len(service.late) / sizes.seconds / (sizes.jobs / sizes.interval),
        "late_p50_ms": 1000 * late[len(late) // 2],
        "late_p99_ms": 1000 * late[int(0.99 * (len(late) - 1))],
        "late_max_ms": 1000 * late[-1],
        "cpu_percent": 100 * cpu / sizes.seconds,
        "peak_rss_mb": now.ru_maxrss / 1024,
        **{f"{name}_per_s": (after[name] - before[name]) / sizes.seconds for name in after},
    }


ROWS = (
    Row("dispatched", "dispatched_per_s", "/s"),
    Row("polls", "polls_per_s", "/s"),
    Row("share of the polls that were due", "polls_of_due"),
    Row("late, median", "late_p50_ms", " ms"),
    Row("late, p99", "late_p99_ms", " ms"),
    Row("latest", "late_max_ms", " ms"),
    Row("CPU of the process", "cpu_percent", " %"),
    Row("peak memory", "peak_rss_mb", " MB"),
    Row("transactions", "transactions_per_s", "/s"),
    Row("rows updated", "updates_per_s", "/s"),
    Row("rows inserted", "inserts_per_s", "/s"),
    Row("rows fetched", "fetches_per_s", "/s"),
    Row("growth of the file", "file_bytes_per_s", " bytes/s"),
    Row("growth of the WAL", "wal_bytes_per_s", " bytes/s"),
)


def show(found: Found) -> str:
    """Figures."""
    each = next(iter(found.values()))
    told = f"{each['jobs']:,} jobs with an interval of {each['interval_s']:.0f} s."
    return f"{told}\n\n{by_store(found, ROWS)}"
