"""The HTTP interface in figures, beside the Python API in the same run: `python -m bench.http [--store URL] [--json]`.

A real server process (`treadle serve`) with a token, and a real process that sends requests over kept connections:
`POST /v1/tasks`, and `POST /v1/tasks/claim` with `POST /v1/tasks/{id}/complete` for each task. The Python API does the same with as
many callers in one process. Ratios are what to compare between machines: both sides had the same database and the same neighbours,
one after the other. `--profile` says where the time of a request goes instead.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.servers import temporary_store
from treadle import Engine, TaskSpec
from treadle.model.access import Scope
from treadle.settings import Settings, child_environment

CALLERS = 32
NAME = "bench.outside"
LIMITS = (1, 10)
"""Tasks that one claim takes."""
BACKLOG = 20_000
"""Tasks that are there to be claimed: more than anybody manages in the time."""


# --- the Python API ---


class Figure(NamedTuple):
    """Tasks in a second, and microseconds of CPU for each, which say more than the former on a machine that has other work."""

    rate: float
    cpu_us: float


async def for_a_while(seconds: float, callers: int, work: Callable[[], Awaitable[int]]) -> Figure:
    """What all callers together have done; `work` says how much it did."""
    done = 0
    end = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end:
            did = await work()  # not in one line: others add theirs meanwhile
            done += did

    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return Figure(done / (time.perf_counter() - started), (time.process_time() - cpu) * 1e6 / max(done, 1))


async def python_figures(engine: Engine, seconds: float) -> dict[str, Figure]:
    async def enqueue() -> int:
        await engine.enqueue("bench.parked", {"n": 1}, task_list="parked")
        return 1

    figures = {"enqueue": await for_a_while(seconds, CALLERS, enqueue)}
    workers = engine.outside_workers
    worker = await workers.register("bench", handlers=[NAME])

    async def work(limit: int) -> int:
        found = await workers.claim(worker.id, limit=limit)
        for claimed in found:
            await workers.complete(worker.id, claimed.task.id, claimed.task.claim_version, {"n": 1})
        return len(found)

    for limit in LIMITS:
        figures[f"work_{limit}"] = await for_a_while(seconds, CALLERS, partial(work, limit))
    await workers.leave(worker.id)
    return figures


# --- HTTP ---


class Connection:
    """A kept connection, with as little around it as possible: what sends must not be what is measured."""

    def __init__(self, url: str, token: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._head = f"Host: {self._host}:{port}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def post(self, path: str, body: bytes) -> bytes:
        self._writer.write(f"POST /v1{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        answer = await self._reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        if head[9:10] != b"2":
            raise SystemExit(f"{path} was answered with {answer.decode()}")
        return answer


async def load(url: str, kind: str, seconds: float, token: str) -> Figure:
    """Tasks in a second, by as many connections as there are callers: `enqueue`, or `work_N` with claims of N tasks."""
    connections = [Connection(url, token) for _ in range(CALLERS)]
    for connection in connections:
        await connection.open()
    wish = b'{"name":"bench.parked","payload":{"n":1},"task_list":"parked"}'
    registered = await connections[0].post("/workers", json.dumps({"name": "bench", "handlers": [NAME]}).encode())
    worker = json.loads(registered)["worker_id"]
    claim = json.dumps({"worker_id": worker, "limit": int(kind.partition("_")[2] or 1)}).encode()
    free = list(connections)

    async def work() -> int:
        connection = free.pop()
        done = 1
        if kind == "enqueue":
            await connection.post("/tasks", wish)
        else:
            tasks = json.loads(await connection.post("/tasks/claim", claim))["tasks"]
            done = len(tasks)
            for task in tasks:
                said = {"worker_id": worker, "claim_version": task["claim_version"], "result": {"n": 1}}
                await connection.post(f"/tasks/{task['task_id']}/complete", json.dumps(said).encode())
        free.append(connection)
        return done

    rate = await for_a_while(seconds, CALLERS, work)
    await connections[0].post(f"/workers/{worker}/leave", b"{}")
    return rate


@contextmanager
def served(store: str) -> Iterator[tuple[str, int]]:
    """The URL and the process id of a server on that store."""
    command = [sys.executable, "-m", "treadle", "serve", "--port", "0", "--json"]
    environment = child_environment(TREADLE_STORE=store)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"], process.pid
        finally:
            process.terminate()


def loaded(url: str, kind: str, seconds: float, token: str) -> float:
    """The rate of `load`, in a process of its own."""
    command = [sys.executable, "-m", "bench.http", "--load", kind, "--server", url, "--seconds", str(seconds)]
    environment = child_environment(TREADLE_TOKEN=token)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return float(ended.stdout)


def cpu_of(pid: int) -> float:
    """Seconds of CPU that the process has used; none where the system does not say."""
    stat = Path(f"/proc/{pid}/stat")
    used = stat.read_text().rpartition(")")[2].split()[11:13] if stat.exists() else []
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


def served_figure(server: str, pid: int, kind: str, seconds: float, token: str) -> Figure:
    """The rate of a load, and the CPU that the server used for it."""
    cpu = cpu_of(pid)
    rate = loaded(server, kind, seconds, token)
    return Figure(rate, (cpu_of(pid) - cpu) * 1e6 / max(rate * seconds, 1))


async def measure(url: str, seconds: float) -> dict[str, Any]:
    """All figures for one store."""
    figures: dict[str, Any] = {"store": url.partition("://")[0], "callers": CALLERS, "load": os.getloadavg()[0]}
    async with Engine(url, settings=Settings()) as engine:
        token = (await engine.tokens.create("bench", [Scope.WORK])).secret
        await engine.enqueue_many(TaskSpec(name=NAME, payload={"n": n}) for n in range(BACKLOG))
        python = await python_figures(engine, seconds)
    with served(url) as (server, pid):
        http = {what: await asyncio.to_thread(served_figure, server, pid, what, seconds, token) for what in python}
    for what in python:
        figures |= {f"python_{what}": python[what].rate, f"http_{what}": http[what].rate}
        figures |= {f"{what}_ratio": http[what].rate / python[what].rate}
        figures |= {f"python_{what}_cpu_us": python[what].cpu_us, f"http_{what}_cpu_us": http[what].cpu_us}
    return figures


# --- where the time goes ---


async def profile(url: str, kind: str, seconds: float) -> pstats.Stats:
    """A profile of a server in this process, while another process sends requests."""
    from treadle.http.serving import HttpOptions, HttpServer

    async with Engine(url, settings=Settings()) as engine:
        token = (await engine.tokens.create("bench", [Scope.WORK])).secret
        await engine.enqueue_many(TaskSpec(name=NAME, payload={"n": n}) for n in range(BACKLOG))
        async with HttpServer(engine, HttpOptions(port=0)) as server:
            profiler = cProfile.Profile()
            profiler.enable()
            rate = await asyncio.to_thread(loaded, server.url, kind, seconds, token)
            profiler.disable()
    print(f"{kind}: {rate:.0f} a second while profiled")
    return pstats.Stats(profiler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="store URL; default: a temporary SQLite file, then a temporary PostgreSQL")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", choices=["enqueue", *(f"work_{limit}" for limit in LIMITS)])
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--server", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        token = child_environment()["TREADLE_TOKEN"]
        print(asyncio.run(load(arguments.server, arguments.load, arguments.seconds, token)).rate)
        return
    all_figures = []
    for kind in [arguments.store] if arguments.store else ["sqlite", "postgresql"]:
        if "://" in kind:
            url: str = kind
            all_figures.append(asyncio.run(measure(url, arguments.seconds)))
            continue
        with temporary_store(kind) as url:
            if arguments.profile:
                asyncio.run(profile(url, arguments.profile, arguments.seconds)).sort_stats("tottime").print_stats(40)
                continue
            all_figures.append(asyncio.run(measure(url, arguments.seconds)))
    if arguments.json:
        print(json.dumps(all_figures))
    else:
        for figures in all_figures:
            print(
                "\n".join(
                    f"{name:>28}  {value:.3f}" if isinstance(value, float) else f"{name:>28}  {value}"
                    for name, value in figures.items()
                )
            )
            print()


if __name__ == "__main__":
    main()
