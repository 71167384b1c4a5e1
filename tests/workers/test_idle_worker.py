"""An idle worker sends few statements, and finds work whose signal was lost with its next poll."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest
from bench.queue_worker import count_statements
from tests.engines import SHARED, make_engine, url_of
from tests.limits import BOUND
from tests.workers.harness import until

from treadle import Engine
from treadle.settings import Settings
from treadle.stores.sqlite import SqliteStore
from treadle.testing import ManualClock

pytestmark = pytest.mark.parametrize("kind", SHARED)

PER_SECOND = {"postgres": 0.5, "sqlite": 0.8}
SECONDS = 60


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The statements that this process sends on connections to come."""
    monkeypatch.setattr(apsw, "connection_hooks", list(apsw.connection_hooks))
    monkeypatch.setattr(asyncpg, "connect", asyncpg.connect)
    return count_statements()


@pytest.mark.postgres
async def test_an_idle_worker_sends_few_statements(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, statements: Counter[str]
) -> None:
    clock = ManualClock()
    engine = Engine(url_of(kind, request, tmp_path), settings=Settings(), clock=clock)

    @engine.handler("work")
    async def work() -> None: ...

    async with asyncio.timeout(BOUND), engine, engine.worker() as host:
        await engine.result(await engine.enqueue("work"))
        await host.worker.drained()
        for step in range(SECONDS + 1):
            await until(lambda: host._waker._next_at > clock.monotonic())
            await asyncio.sleep(0)  # it has begun to sleep
            if step == 0:
                statements.clear()
            clock.advance(1)
        assert 0 < statements.total() <= PER_SECOND[kind] * SECONDS


def silence(store: Any) -> None:
    """Lose all signals that the store sends."""

    async def notify(queue_ids: Sequence[int]) -> None: ...

    inner = store
    inner.notify = notify
    if isinstance(inner, SqliteStore):
        inner._announce = lambda answers: answers


async def _enqueue(asks: Engine) -> None:
    await asks.enqueue("work")


async def _enqueue_first(asks: Engine) -> None:
    await asks.enqueue("new")


async def _resume(asks: Engine) -> None:
    await asks.kernel.lists.pause("default")
    await asks.enqueue("work")
    await asks.kernel.lists.resume("default")


async def _set_rate(asks: Engine) -> None:
    await asks.kernel.lists.limit_rate("default", "work", 100)
    await asks.enqueue("work")


@pytest.mark.parametrize("change", [_enqueue, _enqueue_first, _resume, _set_rate])
async def test_the_next_poll_finds_work_after_a_lost_signal(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, change: Callable[[Engine], Awaitable[None]]
) -> None:
    clock, done = ManualClock(), asyncio.Event()
    url = url_of(kind, request, tmp_path)
    works, asks = Engine(url, settings=Settings(), clock=clock), make_engine(url)

    async def work() -> None:
        done.set()

    works.handler("work")(work)
    works.handler("new")(work)
    async with asyncio.timeout(BOUND), works, asks, works.worker() as host:
        await works.result(await works.enqueue("work"))
        await host.worker.drained()
        done.clear()
        silence(asks.kernel.store)
        await change(asks)
        assert not done.is_set()
        clock.advance(Settings().poll_interval)
        await done.wait()
