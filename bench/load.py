"""One server under load: a large queue, many waiting calls and many event streams.

One process (`treadle serve`) has a backlog of queued tasks. Long polls wait at it, half of them for the result of a task and half
for a task to claim, each for 20 s and then again, evenly distributed over time; streams follow all events. Eight callers take turns
with enqueueing, claiming and completing, and reading a list, a task and the status; the time of each call is measured, and the
resident memory of the server twenty times. Memory is *flat* if the median of the last fifth of these samples is at most 1.1 times
that of the second fifth (the first fifth is warm-up).

Then the server is stopped (SIGTERM) while all of them are connected, and another process is started on the same port. All polls and
streams reconnect together as soon as it listens: a poll is served again when its first call, which does not wait, is answered, and
a stream when it is open. Eight callers continue until all are served. Calls refused with 503 are sent again after a second.

The issue's size is `python -m bench load --set queued=500000 --set polls=2000 --set streams=200 --set seconds=600`.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged
from bench.http import cpu_of
from bench.http_load import Connection, Rejected
from bench.processes import CHILD_TIMEOUT, Child, child, rss_mb
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
RETRY_AFTER = 1.0
"""Seconds until a refused call is sent again."""
WAITING, WORK, NOBODY = "bench.waiting", "bench.work", "bench.nobody"


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
class Herd:
    """Waiters that lose their server together and come back together."""

    waiting: set[int]
    """The numbers of those that are not served yet."""
    back: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the new server listens."""
    served: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all are served by it."""
    refused: int = 0
    lost: int = 0
    """Connections to the new server that ended."""

    def serve(self, number: int) -> None:
        """Note that this waiter has an answer; those of the old server do not count."""
        if self.back.is_set():
            self.waiting.discard(number)
            if not self.waiting:
                self.served.set()


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
    herd: Herd | None = None
    """Set while losing the server is expected."""

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

        async def ask(connection: Connection) -> None:
            wait_for = WAIT if self.herd is None else 0.0
            while True:
                if number % 2:
                    claim = {"worker_id": self.worker, "names": [NOBODY], "wait_for": wait_for}
                    await connection.post("/tasks/claim", json.dumps(claim).encode())
                else:
                    await connection.get(f"/tasks/{self.ids[number % len(self.ids)]}/result?wait_for={wait_for:g}")
                self.answered += 1
                self._serve(number)
                wait_for = WAIT

        await self._stay(ask)

    async def follow(self, number: int) -> None:
        """Read an event stream, and the next one when it ends."""

        async def read(connection: Connection) -> None:
            async for line in connection.stream("/events/stream"):
                self._serve(number)
                self.events += line.startswith(b"data:")
            raise EOFError("the server ended a stream")

        await self._stay(read)

    async def _stay(self, use: Callable[[Connection], Awaitable[None]]) -> None:
        """Use one connection after the other; the next one when the new server listens."""
        while True:
            try:
                async with self.connect() as connection:
                    await use(connection)
            except Rejected as error:
                await self._refuse(error)
            except (OSError, EOFError):
                if self.herd is None:
                    raise
                self.herd.lost += self.herd.back.is_set()
            if self.herd is not None:
                await self.herd.back.wait()

    def _serve(self, number: int) -> None:
        if self.herd is not None:
            self.herd.serve(number)

    async def _refuse(self, error: Rejected) -> None:
        """Count a refused call and wait; a refusal without a herd, or for another reason, ends the benchmark."""
        if self.herd is None or error.status != HTTPStatus.SERVICE_UNAVAILABLE:
            raise error
        self.herd.refused += self.herd.back.is_set()
        await asyncio.sleep(RETRY_AFTER)

    async def call(self, goes_on: Callable[[], bool]) -> None:
        """Take turns with the calls of programs and people, and measure them; at least once."""
        async with self.connect() as connection:
            while True:
                try:
                    await self._take_turns(connection)
                except Rejected as error:
                    await self._refuse(error)
                if not goes_on():
                    return

    async def _take_turns(self, connection: Connection) -> None:
        await self._timed("enqueue", connection.post("/tasks", json.dumps({"name": WORK, "payload": {"n": 1}}).encode()))
        claim = json.dumps({"worker_id": self.worker, "names": [WORK], "limit": 1}).encode()
        for task in json.loads(await self._timed("claim", connection.post("/tasks/claim", claim)))["tasks"]:
            said = {"worker_id": self.worker, "claim_version": task["claim_version"], "result": {"n": 1}}
            path = f"/tasks/{task['task_id']}/complete"
            await self._timed("complete", connection.post(path, json.dumps(said).encode()))
        await self._timed("list", connection.get("/tasks?limit=20"))
        await self._timed("show", connection.get(f"/tasks/{self.ids[len(self.times['list']) % len(self.ids)]}"))
        await self._timed("status", connection.get("/status"))

    async def _timed(self, kind: str, call: Awaitable[bytes]) -> bytes:
        began = time.perf_counter()
        answer = await call
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
            ids += [each.id for each in await engine.enqueue_many(TaskSpec(name=WAITING, payload={"n": n}) for n in range(count))]
        say(f"{len(ids):,} tasks are queued")
    waiters: list[asyncio.Task[None]] = []
    try:
        async with _serve(url, "0", waiting) as (server, address):
            load = Load(address, token, ids[:: max(len(ids) // 1000, 1)])
            found = await _run(load, server.pid, sizes, waiters)
            before = rss_mb(server.pid)
            load.times, load.herd = {}, Herd(set(range(sizes.polls + sizes.streams)))
            began = time.perf_counter()
        async with _serve(url, address.rpartition(":")[2], waiting) as (server, _):
            down = time.perf_counter() - began
            return found | {"herd_down_s": down, "herd_before_mb": before} | await _come_back(load, load.herd, server.pid, waiters)
    finally:
        for each in waiters:
            each.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)


@asynccontextmanager
async def _serve(url: str, port: str, waiting: str) -> AsyncIterator[tuple[Child, str]]:
    async with child(
        "treadle", "serve", "--port", port, "--json",
        store=url, TREADLE_LOG_LEVEL="WARNING", TREADLE_HTTP_WAITING=waiting, TREADLE_HTTP_WAITING_EACH=waiting,
    ) as server:  # fmt: skip
        yield server, (await server.said())["url"]


async def _run(load: Load, pid: int, sizes: Sizes, waiters: list[asyncio.Task[None]]) -> Figures:
    """Let all wait and follow, which goes on afterwards, and measure for a while."""
    async with load.connect() as connection:
        registered = await connection.post("/workers", json.dumps({"name": "bench", "handlers": [WORK, NOBODY]}).encode())
        load.worker = json.loads(registered)["worker_id"]
    begin = rss_mb(pid)
    spread = min(WAIT, sizes.seconds / 2)
    waiters += [asyncio.create_task(load.poll(number, spread * number / sizes.polls)) for number in range(sizes.polls)]
    waiters += [asyncio.create_task(load.follow(sizes.polls + number)) for number in range(sizes.streams)]
    until = time.perf_counter() + sizes.seconds
    series: list[float] = []
    async with _callers(load, lambda: time.perf_counter() < until) as callers:
        for _ in range(SAMPLES):
            await _watch([*waiters, *callers], sizes.seconds / SAMPLES)
            series.append(rss_mb(pid))
        await asyncio.gather(*callers)
    return _figures(load, sizes, begin, series)


async def _come_back(load: Load, herd: Herd, pid: int, waiters: list[asyncio.Task[None]]) -> Figures:
    """Let all waiters reconnect, and measure calls until all are served."""
    began, cpu = time.perf_counter(), cpu_of(pid)
    herd.back.set()
    async with _callers(load, lambda: not herd.served.is_set()) as callers, asyncio.timeout(CHILD_TIMEOUT):
        await _watch([asyncio.create_task(herd.served.wait()), *waiters, *callers], None, asyncio.FIRST_COMPLETED)
        seconds, cpu = time.perf_counter() - began, cpu_of(pid) - cpu
        await asyncio.gather(*callers)
    every = sorted(each for times in load.times.values() for each in times)
    return {
        "herd_s": seconds, "herd_cpu_s": cpu, "herd_calls": len(every),
        "herd_p50_ms": _quantile(every, 0.5), "herd_p99_ms": _quantile(every, 0.99),
        "herd_refused": herd.refused, "herd_lost": herd.lost, "herd_after_mb": rss_mb(pid),
    }  # fmt: skip


@asynccontextmanager
async def _callers(load: Load, goes_on: Callable[[], bool]) -> AsyncIterator[list[asyncio.Task[None]]]:
    callers = [asyncio.create_task(load.call(goes_on)) for _ in range(CALLERS)]
    try:
        yield callers
    finally:
        for each in callers:
            each.cancel()


async def _watch(tasks: list[asyncio.Task[Any]], seconds: float | None, until: str = asyncio.FIRST_EXCEPTION) -> None:
    """Wait for that long; an error of a task ends the benchmark."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=until)
    for each in done:
        each.result()


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
    Row("restart: until the new server listens", "herd_down_s", " s"),
    Row("restart: from then until all are served", "herd_s", " s"),
    Row("restart: CPU time of the server in that time", "herd_cpu_s", " s"),
    Row("restart: measured calls in that time", "herd_calls"),
    Row("restart: median of these", "herd_p50_ms", " ms"),
    Row("restart: 99th percentile of these", "herd_p99_ms", " ms"),
    Row("restart: refused calls (503)", "herd_refused"),
    Row("restart: connections lost again", "herd_lost"),
    Row("restart: resident memory before", "herd_before_mb", " MB"),
    Row("restart: resident memory after", "herd_after_mb", " MB"),
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
