"""The protocol of a subject: `python -m bench.peers.subjects.NAME URL ROLE [ARGUMENTS]`, JSON lines on stdout, `go` on stdin.

    prepare           make the tables
    fill NAME N       enqueue N tasks of that name as fast as possible: not measured
    enqueue S         one caller for S seconds, then 32 concurrent callers: {"callers", "count", "seconds"} twice
    work              a worker set up for throughput: {"ready"}, then on `go` {"started"}, and it works until it is stopped
    serve             a worker set up for occasional work; the same messages
    watch NAME S      {"ready"}, then on `go` it asks the database until no such task is left, for S seconds at most: {"left", "at"}
    send              {"ready"}, then for each `go` one task `stamp` is enqueued: {"sent"}

Tasks are named `noop`, which does nothing; `stamp`, which says {"at"} when it starts; and `ten`, a durable function of ten no-op
steps. A subject has a function for each role that it can play, with the URL first; it may be a coroutine function. Instants are
`time.time_ns()`: all processes are on one machine.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

CALLERS = 32
STEPS = 10


def pause(begun: float) -> float:
    """Seconds until the next look at a database that is drained: 2 % of what passed, so that it costs little and errs little."""
    return max(0.005, 0.02 * (time.monotonic() - begun))


def main(roles: dict[str, Callable[..., Any]], run: Callable[[Any], Any] = asyncio.run) -> None:
    """Play the role that the command line names; `run` runs a coroutine."""
    url, role, *arguments = sys.argv[1:]
    played = roles[role](url, *(_argument(each) for each in arguments))
    if inspect.isawaitable(played):
        run(played)


def _argument(text: str) -> str | int | float:
    if not text[0].isdigit():
        return text
    return float(text) if "." in text else int(text)


def say(**line: Any) -> None:
    """One line to whoever measures, at once and whole, from any thread or process."""
    os.write(1, (json.dumps(line) + "\n").encode())


def say_at() -> None:
    """The handler of `stamp`: record the time at which it starts."""
    say(at=time.time_ns())


def ready() -> None:
    """Everything is imported and connected: wait for `go`; end when nobody is there any more."""
    say(ready=True)
    wait_for_go()


def wait_for_go() -> None:
    """The next line of stdin; the process ends with it."""
    if not sys.stdin.readline():
        os._exit(0)


def end_with_parent() -> None:
    """From now on end this process when stdin ends."""

    def watch() -> None:
        while sys.stdin.readline():
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def started() -> None:
    """The worker starts to work now."""
    end_with_parent()
    say(started=time.time_ns())


def enqueue_for(seconds: float, one: Callable[[], object]) -> None:
    """One caller."""
    one()
    begun = time.perf_counter()
    count = 0
    while (passed := time.perf_counter() - begun) < seconds:
        one()
        count += 1
    say(callers=1, count=count, seconds=passed)


async def aenqueue_for(seconds: float, one: Callable[[], Awaitable[object]], callers: int = 1) -> None:
    """So many callers at once, each one after the other."""
    await aenqueue_with(seconds, [one] * callers)


async def aenqueue_with(seconds: float, callers: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """These callers at once, each one after the other; the first call of each is not measured."""
    await asyncio.gather(*(one() for one in callers))
    begun = time.perf_counter()

    async def calling(one: Callable[[], Awaitable[object]]) -> int:
        count = 0
        while time.perf_counter() - begun < seconds:
            await one()
            count += 1
        return count

    counts = await asyncio.gather(*(calling(one) for one in callers))
    say(callers=len(callers), count=sum(counts), seconds=time.perf_counter() - begun)


def enqueue_in_threads(seconds: float, one: Callable[[], object], callers: int = CALLERS) -> None:
    """So many callers at once, each in a thread of its own."""
    counts = [0] * callers
    barrier = threading.Barrier(callers + 1)

    def caller(number: int) -> None:
        one()
        barrier.wait()
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds:
            one()
            counts[number] += 1

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    barrier.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    say(callers=callers, count=sum(counts), seconds=time.perf_counter() - begun)


def send_each(one: Callable[[], object]) -> None:
    """One task for each `go`."""
    say(ready=True)
    while True:
        wait_for_go()
        sent = time.time_ns()
        one()
        say(sent=sent)


async def asend_each(one: Callable[[], Awaitable[object]]) -> None:
    """One task for each `go`; nothing else has to happen in this process meanwhile."""
    say(ready=True)
    while True:
        await asyncio.to_thread(wait_for_go)
        sent = time.time_ns()
        await one()
        say(sent=sent)


def watch_until_empty(seconds: float, any_left: Callable[[], bool], count_left: Callable[[], int]) -> None:
    """Ask until nothing is left, or for so long: how many are left then."""
    ready()
    begun = time.monotonic()
    while any_left():
        if time.monotonic() - begun > seconds:
            at = time.time_ns()
            say(left=count_left(), at=at)
            return
        time.sleep(pause(begun))
    say(left=0, at=time.time_ns())


async def watch_postgres(url: str, seconds: float, what: str) -> None:
    """The same for a PostgreSQL database; `what` begins with `from` and names the rows that are not done."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        exists = await connection.prepare(f"select exists (select 1 {what})")
        ready()
        begun = time.monotonic()
        while await exists.fetchval():
            if time.monotonic() - begun > seconds:
                at = time.time_ns()
                say(left=await connection.fetchval(f"select count(*) {what}"), at=at)
                return
            await asyncio.sleep(pause(begun))
        say(left=0, at=time.time_ns())
    finally:
        await connection.close()


def watch_sqlite(url: str, seconds: float, what: str) -> None:
    """The same for an SQLite file."""
    import sqlite3

    connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30, isolation_level=None)
    watch_until_empty(
        seconds,
        lambda: bool(connection.execute(f"select exists (select 1 {what})").fetchone()[0]),
        lambda: int(connection.execute(f"select count(*) {what}").fetchone()[0]),
    )
