"""The connection to PostgreSQL breaks repeatedly during requests: before the server receives them, or after it has executed them.

A proxy stands between the engine and the server. Whoever is cut off never hears whether its commit was done; it sends it again,
and nothing is lost, done twice or completed twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import psycopg.conninfo
import pytest
from tests.limits import BOUND

from treadle import Context, Engine, RetryPolicy
from treadle.settings import Settings

TASKS = 30
GAPS = (7, 3, 12, 5, 26, 9, 80)
"""Messages from one break to the next; the last is more than any transaction takes, or one that is sent again would never end."""


class Proxy:
    """Relays messages between both sides, and sometimes breaks a connection instead of relaying a message.

    `breaks` says which messages: those to the server (`asked`), which are then not heard, or the server's answers (`answered`).
    """

    def __init__(self, server: str) -> None:
        told = psycopg.conninfo.conninfo_to_dict(server)
        self._host, self._port = str(told.get("host") or "127.0.0.1"), int(told.get("port") or 5432)
        self._who = (str(told.get("user") or ""), str(told.get("password") or ""), str(told.get("dbname") or "postgres"))
        self.breaks: str | None = None
        self.cuts = 0
        self.hangs = False
        self._gaps = itertools.cycle(GAPS)
        self._left = next(self._gaps)
        self._server: asyncio.Server | None = None
        self._ways: set[asyncio.Future[None]] = set()

    async def start(self) -> str:
        """The URL under which the database is reached through here."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user, password, database = map(quote, self._who)
        return f"postgresql://{user}:{password}@127.0.0.1:{port}/{database}?sslmode=disable"

    def cut(self) -> None:
        """Break all connections that hang."""
        self.hangs = False
        for way in self._ways:
            way.cancel()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._host.startswith("/"):
            there = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        else:
            there = await asyncio.open_connection(self._host, self._port)
        ways = [
            asyncio.ensure_future(self._pass("asked", reader, there[1])),
            asyncio.ensure_future(self._pass("answered", there[0], writer)),
        ]
        self._ways.update(ways)
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, there[1]):
                end.transport.abort()

    async def _pass(self, way: str, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while said := await source.read(1 << 20):
                if way == self.breaks:
                    self._left -= 1
                    if self._left == 0:
                        self._left = next(self._gaps)
                        self.cuts += 1
                        return
                if self.hangs:
                    await asyncio.Event().wait()  # the connection stays open, and nothing passes any more
                target.write(said)
                await target.drain()


@pytest.fixture
async def proxy(postgres_server: str) -> AsyncIterator[Proxy]:
    made = Proxy(postgres_server)
    yield made
    await made.stop()


@pytest.mark.parametrize("way", ["asked", "answered"])
async def test_a_commit_with_a_lost_answer_is_resent_and_applied_once(
    proxy: Proxy, postgres_url: str, postgres_schema: str, way: str
) -> None:
    ran: Counter[str] = Counter()
    steps: Counter[int] = Counter()
    engine = Engine(f"{await proxy.start()}&schema={postgres_schema}", settings=Settings())

    @engine.handler("flaky", retry=RetryPolicy.of(2, first=0.01))
    async def flaky(payload: Any, ctx: Context) -> dict[str, Any]:
        ran[ctx.task_id] += 1
        if ran[ctx.task_id] == 1 and payload["fails"]:
            raise RuntimeError("once")
        return {"n": payload["n"]}

    async def step(number: int) -> int:
        steps[number] += 1
        return number

    @engine.function("five")
    async def five(payload: Any, ctx: Any) -> Any:
        return [await ctx.step(step, number, name=f"step{number}") for number in range(5)]

    async with Engine(postgres_url, settings=Settings()) as direct, engine:
        async with engine.worker(lease=3, concurrency=5):
            proxy.breaks = way
            tasks = [await engine.enqueue("flaky", {"n": number, "fails": number % 3 == 0}) for number in range(TASKS)]
            run = await engine.start_function("five")
            async with asyncio.timeout(BOUND):
                results = await asyncio.gather(*(direct.result(task) for task in tasks), direct.run_result(run))
            proxy.breaks = None
        assert results == [*({"n": number} for number in range(TASKS)), list(range(5))]
        assert proxy.cuts >= 5
        assert (await direct.kernel.verify()).problems == ()
        found = {task.id: task for task in await direct.kernel.reads.list_tasks(kind="handler", name="flaky", limit=1000)}
        assert set(found) == {task.id for task in tasks}  # none lost, and none there twice
        for number, task in enumerate(tasks):
            transitions = [transition.transition for transition in await direct.kernel.reads.list_transitions(task.id)]
            # Tasks claimed for a worker that never received them are released, or their lease expires, without having run.
            once = ["retry", "succeed"] if number % 3 == 0 else ["succeed"]
            assert transitions == once or {"expire", "release"} & set(transitions)
            assert transitions.count("succeed") == 1
            most = len(once) if transitions == once else len(transitions) - transitions.count("release")
            assert ran[task.id] == most if transitions == once else ran[task.id] <= most, (transitions, ran[task.id])
        (own,) = await direct.kernel.reads.list_tasks(kind="function", run_id=run.id)
        lost = [transition.transition for transition in await direct.kernel.reads.list_transitions(own.id)].count("expire")
        assert set(steps) == set(range(5))
        assert steps.total() <= 5 + lost


async def test_on_a_half_open_connection_a_handler_stops_before_its_successor_starts(
    proxy: Proxy, postgres_url: str, postgres_schema: str
) -> None:
    cut_off = Engine(f"{await proxy.start()}&schema={postgres_schema}", settings=Settings())
    direct = Engine(postgres_url, settings=Settings())
    seen: list[str] = []
    started = asyncio.Event()

    @cut_off.handler("work")
    async def first() -> None:
        seen.append("first starts")
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("first stops")

    @direct.handler("work")
    async def second() -> None:
        seen.append("second starts")

    async with direct, cut_off:
        async with cut_off.worker(lease=5, grace=0):
            task = await direct.enqueue("work")
            async with asyncio.timeout(BOUND):
                await started.wait()
                proxy.hangs = True
                async with direct.worker(lease=5):
                    await direct.result(task)
            proxy.cut()
        assert seen == ["first starts", "first stops", "second starts"]
