"""One server under load: a large queue, many waiting calls and many event streams.

One process (`treadle serve`) has a backlog of queued tasks. Long polls wait at it, half of them for the result of a task and half
for a task to claim, each for 20 s and then again, evenly distributed over time; streams follow all events. Eight callers take turns
with enqueueing, claiming and completing, and reading a list, a task and the status; the time of each call is measured, and the
resident memory of the server twenty times. Memory is *flat* if the median of the last fifth of these samples is at most 1.1 times
that of the second fifth (the first fifth is warm-up).

The issue's size is `python -m bench load --set queued=500000 --set polls=2000 --set streams=200 --set seconds=600`.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged
from bench.http_load import Connection
from bench.processes import child, rss_mb
from treadle import Engine, TaskSpec
from treadle.model.access import Scope
from treadle.settings import Settings

NAME = "load"
TITLE = "Long polls and streams"
STORES = BOTH
CALLERS = 8
SAMPLES = 20
CHUNK = 10_000
WAIT = 20.0
"""Seconds that a long poll waits before it is sent again."""
PARKED, WORK, NOBODY = "bench.parked", "bench.work", "bench.nobody"


@dataclass(frozen=True)
class Sizes:
    """The backlog, the waiting calls of both kinds, the event streams, and the time."""

    queued: int = 50_000
    polls: int = 300
    streams: int = 50
    seconds: float = 60.0


SIZES = Sizes()
QUICK = Sizes(queued=2_000, polls=20, streams=5, seconds=3.0)


@dataclass
class Load:
    """The callers of one server, and their figures."""

    url: str
    token: str
    ids: list[str]
    worker: str = ""
    times: dict[str, list[float]] = field(default_factory=dict)
    events: int = 0
    answered: int = 0

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        connection = Connection(self.url, self.token)
        await connection.open()
        try:
            yield connection
        finally:
            connection.close()

    async def poll(self, number: int, after: float) -> None:
        """Wait for a result, or for a task to claim, again and again, first after a delay: clients do not start together."""
        await asyncio.sleep(after)
        claim = json.dumps({"worker_id": self.worker, "names": [NOBODY], "wait_for": WAIT}).encode()
        async with self.connect() as connection:
            while True:
                if number % 2:
                    await connection.post("/tasks/claim", claim)
                else:
                    await connection.get(f"/tasks/{self.ids[number % len(self.ids)]}/result?wait_for={WAIT:g}")
                self.answered += 1

    async def follow(self) -> None:
        """Read one event stream to its end."""
        async with self.connect() as connection:
            async for line in connection.stream("/events/stream"):
                self.events += line.startswith(b"data:")

    async def call(self, until: float) -> None:
        """Take turns with the calls of programs and people, and measure them."""
        async with self.connect() as connection:
            while time.perf_counter() < until:
                await self._timed("enqueue", connection.post("/tasks", json.dumps({"name": WORK, "payload": {"n": 1}}).encode()))
                claim = json.dumps({"worker_id": self.worker, "names": [WORK], "limit": 1}).encode()
                for task in json.loads(await self._timed("claim", connection.post("/tasks/claim", claim)))["tasks"]:
                    said = {"worker_id": self.worker, "claim_version": task["claim_version"], "result": {"n": 1}}
                    path = f"/tasks/{task['task_id']}/complete"
                    await self._timed("complete", connection.post(path, json.dumps(said).encode()))
                await self._timed("list", connection.get("/tasks?limit=20"))
                await self._timed("show", connection.get(f"/tasks/{self.ids[len(self.times['list']) % len(self.ids)]}"))
                await self._timed("status", connection.get("/status"))

    async def _timed(self, kind: str, call: asyncio.Future[bytes] | object) -> bytes:
        began = time.perf_counter()
        answer: bytes = await call  # type: ignore[misc]
        self.times.setdefault(kind, []).append((time.perf_counter() - began) * 1000)
        return answer


async def measure(url: str, sizes: Sizes) -> Figures:
    """Fill the queue, let all wait and follow, and measure for a while."""
    _allow_files(sizes.polls + sizes.streams + 1000)
    waiting = str(sizes.polls + sizes.streams + 100)
    async with Engine(url, settings=Settings(), emit=lambda _: None) as engine:
        token = (await engine.kernel.tokens.create("bench", [Scope.READ, Scope.ENQUEUE, Scope.WORK])).secret
        ids: list[str] = []
        for start in range(0, sizes.queued, CHUNK):
            count = min(CHUNK, sizes.queued - start)
            ids += [each.id for each in await engine.enqueue_many(TaskSpec(name=PARKED, payload={"n": n}) for n in range(count))]
        say(f"{len(ids):,} tasks are queued")
    async with child(
        "treadle", "serve", "--port", "0", "--json",
        store=url, TREADLE_LOG_LEVEL="WARNING", TREADLE_HTTP_WAITING=waiting, TREADLE_HTTP_WAITING_EACH=waiting,
    ) as server:  # fmt: skip
        load = Load((await server.said())["url"], token, ids[:: max(len(ids) // 1000, 1)])
        return await _run(load, server.pid, sizes)


async def _run(load: Load, pid: int, sizes: Sizes) -> Figures:
    async with load.connect() as connection:
        registered = await connection.post("/workers", json.dumps({"name": "bench", "handlers": [WORK, NOBODY]}).encode())
        load.worker = json.loads(registered)["worker_id"]
    begin = rss_mb(pid)
    waiters = [asyncio.create_task(load.poll(number, WAIT * number / sizes.polls)) for number in range(sizes.polls)]
    waiters += [asyncio.create_task(load.follow()) for _ in range(sizes.streams)]
    callers = [asyncio.create_task(load.call(time.perf_counter() + sizes.seconds)) for _ in range(CALLERS)]
    series: list[float] = []
    async with AsyncExitStack() as stack:
        for each in (*waiters, *callers):
            stack.callback(each.cancel)
        for _ in range(SAMPLES):
            done, _ = await asyncio.wait([*waiters, *callers], timeout=sizes.seconds / SAMPLES, return_when=asyncio.FIRST_EXCEPTION)
            for each in done:
                each.result()
            series.append(rss_mb(pid))
        await asyncio.gather(*callers)
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*waiters, return_exceptions=True)
    return _figures(load, sizes, begin, series)


def _figures(load: Load, sizes: Sizes, begin: float, series: list[float]) -> Figures:
    second, last = [statistics.median(series[at : at + SAMPLES // 5]) for at in (SAMPLES // 5, SAMPLES - SAMPLES // 5)]
    every = sorted(each for times in load.times.values() for each in times)
    found: Figures = {
        "queued": sizes.queued, "polls": sizes.polls, "streams": sizes.streams, "seconds": sizes.seconds,
        "load_average": os.getloadavg()[0],
        "begin_rss_mb": begin, "rss_mb": series, "second_fifth_mb": second, "last_fifth_mb": last, "growth": last / second,
        "calls": len(every), "events": load.events, "polls_answered": load.answered,
        "p50_ms": _quantile(every, 0.5), "p99_ms": _quantile(every, 0.99),
    }  # fmt: skip
    return found | {f"{kind}_p99_ms": _quantile(sorted(times), 0.99) for kind, times in load.times.items()}


def _quantile(times: list[float], share: float) -> float:
    return times[min(int(len(times) * share), len(times) - 1)]


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


ROWS = (
    Row("resident memory before the load", "begin_rss_mb", " MB"),
    Row("second fifth, median", "second_fifth_mb", " MB"),
    Row("last fifth, median", "last_fifth_mb", " MB"),
    Row("growth", "growth"),
    Row("measured calls", "calls"),
    Row("long polls answered", "polls_answered"),
    Row("events delivered", "events"),
    Row("all calls, median", "p50_ms", " ms"),
    Row("all calls, 99th percentile", "p99_ms", " ms"),
    *(
        Row(f"{kind}, 99th percentile", f"{kind}_p99_ms", " ms")
        for kind in ("enqueue", "claim", "complete", "list", "show", "status")
    ),
    Row("load average at the end", "load_average"),
)

AIMS = (Aim("growth of memory from the second to the last fifth", "growth", at_most=1.1),)


def show(found: Found) -> str:
    """Figures and the aim."""
    each = next(iter(found.values()))
    size = (
        f"{each['queued']:,} queued tasks, {each['polls']:,} long polls, {each['streams']:,} streams, "
        f"{CALLERS} callers, {each['seconds']:g} s."
    )
    return f"{size}\n\n{by_store(found, ROWS)}\n\n{judged(found, AIMS)}"
