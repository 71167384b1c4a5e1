"""Callers of a server: a process that sends requests over kept connections for a while, whenever it is told to."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from bench.processes import listen, tell_parent, told
from treadle.settings import child_environment

CALLERS = 32
BATCH = 100
"""Tasks in a batch."""

WORK = "bench.outside"
"""The name of the tasks that are claimed."""


class Figure(NamedTuple):
    """Tasks in a second, and microseconds of CPU for each, which say more than the former on a machine that has other work."""

    rate: float
    cpu_us: float
    done: int


async def for_a_while(seconds: float, callers: int, work: Callable[[], Awaitable[int]]) -> Figure:
    """The combined throughput of all callers; `work` returns the number of tasks that it processed."""
    done = 0
    end = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end:
            did = await work()  # not in one line: others add theirs meanwhile
            done += did

    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return Figure(done / (time.perf_counter() - started), (time.process_time() - cpu) * 1e6 / max(done, 1), done)


class Rejected(SystemExit):
    """A call without success; it ends a benchmark that does not expect it."""

    def __init__(self, path: str, head: bytes, answer: bytes) -> None:
        self.status = int(head[9:12])
        super().__init__(f"{path} was answered with {(answer or head).decode()}")


class Connection:
    """A kept connection, with as little around it as possible: what sends must not be what is measured."""

    def __init__(self, url: str, token: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._head = f"Host: {self._host}:{port}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    def close(self) -> None:
        self._writer.close()

    async def post(self, path: str, body: bytes) -> bytes:
        return await self._ask(path, f"POST /v1{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def get(self, path: str) -> bytes:
        return await self._ask(path, f"GET /v1{path} HTTP/1.1\r\n{self._head}\r\n".encode())

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """The lines of an event stream, until the server ends it; the first one is empty, when it is open."""
        self._writer.write(f"GET /v1{path} HTTP/1.1\r\n{self._head}\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        if head[9:10] != b"2":
            raise Rejected(path, head, b"")
        yield b""
        while line := await self._reader.readline():
            yield line

    async def _ask(self, path: str, request: bytes) -> bytes:
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        answer = await self._reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        if head[9:10] != b"2":
            raise Rejected(path, head, answer)
        return answer


async def load(url: str, kind: str, seconds: float, token: str) -> Figure:
    """Tasks in a second, by as many connections as there are callers: `enqueue`, `batch`, or `work_N` with claims of N tasks."""
    connections = [Connection(url, token) for _ in range(CALLERS)]
    for connection in connections:
        await connection.open()
    body = b'{"name":"bench.waiting","payload":{"n":1},"task_list":"waiting"}'
    batch = b'{"tasks":[' + b",".join([body] * BATCH) + b"]}"
    registered = await connections[0].post("/workers", json.dumps({"name": "bench", "handlers": [WORK]}).encode())
    worker = json.loads(registered)["worker_id"]
    claim = json.dumps({"worker_id": worker, "limit": int(kind.partition("_")[2] or 1), "wait_for": 5}).encode()
    free = list(connections)

    async def work() -> int:
        connection = free.pop()
        done = 1
        if kind == "enqueue":
            await connection.post("/tasks", body)
        elif kind == "batch":
            await connection.post("/tasks/batch", batch)
            done = BATCH
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


async def main(url: str, seconds: str) -> None:
    token = child_environment()["TREADLE_TOKEN"]
    while True:
        kind = await told()
        tell_parent(**(await load(url, kind, float(seconds), token))._asdict())


if __name__ == "__main__":
    listen()
    asyncio.run(main(*sys.argv[1:]))
