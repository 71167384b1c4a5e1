"""The work of `bench.against`, in a process of either revision: uses only names that all revisions have."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from treadle import Engine, TaskSpec

STEPS = 10
CALLERS = 8
LINKS = "".join(f"        s{number} = Link(n = s{number - 1}.n)\n" for number in range(1, STEPS))
FLOW = f"""
namespace bench {{
    event facet Link(n: Long) => (n: Long)
    workflow Chain(n: Long) => (n: Long) andThen {{
        s0 = Link(n = $.n)
{LINKS}        yield Chain(n = s{STEPS - 1}.n)
    }}
}}
"""


def make_engine(left: list[int], done: asyncio.Event) -> Engine:
    """An engine with a task that counts down, a function of ten steps, and the handler of a workflow's steps."""
    engine = Engine(os.environ["TREADLE_STORE"])

    async def nothing() -> None:
        return None

    @engine.handler("count")
    async def count(payload: dict[str, Any]) -> dict[str, Any]:
        left[0] -= 1
        if not left[0]:
            done.set()
        return payload

    @engine.handler("bench.Link")
    async def link(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    @engine.function("ten")
    async def ten(payload: dict[str, Any], ctx: Any) -> None:
        for _ in range(STEPS):
            await ctx.step(nothing)

    return engine


async def main(size: int) -> None:
    left, done = [0], asyncio.Event()
    async with make_engine(left, done) as engine, server() as http:
        while await asyncio.to_thread(sys.stdin.readline):
            gc.collect()
            left[0] = size
            done.clear()
            enqueued = Took(size)
            await engine.enqueue_many([TaskSpec(name="count", payload={"n": n}) for n in range(size)])
            figures = {"enqueue_cpu_us": enqueued.cpu_us}
            drained = Took(size)
            async with engine.worker(concurrency=500):
                await done.wait()
                figures |= {"drain_cpu_us": drained.cpu_us, "drain_wall_us": drained.wall_us}
                stepped = Took(size)
                runs = await asyncio.gather(*(engine.start_function("ten") for _ in range(size // STEPS)))
                await asyncio.gather(*(engine.run_result(run, timeout=600) for run in runs))
                figures |= {"step_cpu_us": stepped.cpu_us, "step_wall_us": stepped.wall_us}
                linked = Took(size)
                sources = [("bench.afl", FLOW)]
                runs = await asyncio.gather(*(engine.start_run(sources, "bench.Chain", {"n": n}) for n in range(size // STEPS)))
                await asyncio.gather(*(engine.run_result(run, timeout=600) for run in runs))
                figures |= {"link_cpu_us": linked.cpu_us, "link_wall_us": linked.wall_us}
            figures |= await http.enqueue(max(size // 4, 200))  # fewer would not show in the CPU time
            print(json.dumps(figures), flush=True)


class Took:
    """The CPU and wall time of a process, of this one by default, since it was made, in microseconds for each of `count` things."""

    def __init__(self, count: int, pid: int | None = None) -> None:
        self._count, self._pid = count, pid
        self._cpu, self._wall = self._used(), time.perf_counter()

    def _used(self) -> float:
        if self._pid is None:
            return time.process_time()
        used = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")

    @property
    def cpu_us(self) -> float:
        return (self._used() - self._cpu) / self._count * 1e6

    @property
    def wall_us(self) -> float:
        return (time.perf_counter() - self._wall) / self._count * 1e6


class Server:
    """A server on this process's store, seen from its callers."""

    def __init__(self, pid: int, address: str, token: str) -> None:
        self._pid = pid
        self._host, _, port = address.removeprefix("http://").partition(":")
        self._port = int(port)
        self._head = f"POST /v1/tasks HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {token}\r\n"

    async def enqueue(self, count: int) -> dict[str, float]:
        """Enqueue tasks that nobody claims, over some connections, each one request after another."""
        took = Took(count, self._pid)
        await asyncio.gather(*(self._caller(count // CALLERS) for _ in range(CALLERS)))
        return {"http_cpu_us": took.cpu_us, "http_wall_us": took.wall_us}

    async def _caller(self, count: int) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        body = json.dumps({"name": "unserved", "task_list": "unserved", "payload": {"n": 1}}).encode()
        request = f"{self._head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        for _ in range(count):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            answer = await reader.readexactly(length)
            if head[9:10] != b"2":
                raise SystemExit(answer.decode())
        writer.close()


@asynccontextmanager
async def server() -> AsyncIterator[Server]:
    """A server process of this revision, with a token."""
    command = [sys.executable, "-m", "treadle", "token", "create", "bench", "--scope", "work", "--json"]
    created = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, check=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "treadle", "serve", "--port", "0", "--json",
        stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip

    def end() -> None:
        process.terminate()
        os._exit(0)  # a thread still reads from the parent

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    try:
        assert process.stdout is not None
        started = json.loads(await process.stdout.readline())
        yield Server(process.pid, started["url"], json.loads(created.stdout)["secret"])
    finally:
        process.terminate()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
