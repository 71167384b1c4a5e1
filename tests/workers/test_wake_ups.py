"""A worker whose poll never comes gets every task that becomes ready, however and wherever that happens (PostgreSQL).

`treadle_enqueue_v1` notifies only if asked to, because that serialises the commits of the caller's own transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from tests.engines import make_engine
from tests.functions.driver import until
from tests.limits import BOUND

from treadle import AwaitingApproval, Engine, ExternalProductionHandle, Production
from treadle.integrations.enqueue.asyncpg import enqueue
from treadle.model.approvals import ApprovalRequest

NEVER = 3600.0


@dataclass
class Both:
    """An engine with a worker that does not poll, and another engine, which changes things."""

    works: Engine
    asks: Engine
    tokens: list[str]
    release: asyncio.Event


class Service:
    """A service whose jobs end with a callback only."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def start(self, payload: dict[str, Any], ctx: Any) -> ExternalProductionHandle:
        self.tokens.append(ctx.callback_token)
        return ExternalProductionHandle(f"job {len(self.tokens)}", 80_000)

    def poll(self, external_job_id: str, ctx: Any) -> Any:
        return Production({"polled": True})


def _register(engine: Engine, tokens: list[str], release: asyncio.Event) -> None:
    failed: set[str] = set()

    @engine.handler("work")
    async def work() -> dict[str, Any]:
        return {"done": True}

    @engine.handler("twice", retry=1)
    async def twice(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
        if ctx.task_id not in failed:
            failed.add(ctx.task_id)
            raise RuntimeError("once")
        return {"done": True}

    @engine.handler("ask")
    async def ask(payload: dict[str, Any], ctx: Any) -> Any:
        return AwaitingApproval(ApprovalRequest.of("May I?")) if ctx.approval_decision is None else {"done": True}

    @engine.handler("blocked_by")
    async def blocked_by() -> None:
        await release.wait()

    @engine.function("hear")
    async def hear(payload: dict[str, Any], ctx: Any) -> int:
        return len([await ctx.wait_for("s") for _ in range(payload["count"])])

    @engine.function("parent")
    async def parent(payload: dict[str, Any], ctx: Any) -> Any:
        child = await ctx.start("hear", {"count": 0})
        return [await ctx.call("work"), await child.result()]

    engine.specialist("render", Service(tokens))


@pytest.fixture
async def both(postgres_url: str) -> AsyncIterator[Both]:
    works, asks = make_engine(postgres_url), make_engine(postgres_url)
    tokens: list[str] = []
    release = asyncio.Event()
    _register(works, tokens, release)
    async with works, asks, works.worker(poll_interval=NEVER):
        yield Both(works, asks, tokens, release)


async def _enqueued(both: Both) -> None:
    await both.asks.result(await both.asks.enqueue("work"))


async def _retried(both: Both) -> None:
    await both.asks.result(await both.asks.enqueue("twice"))


async def _requeued(both: Both) -> None:
    task = await both.asks.enqueue("work", delay=NEVER)
    await both.asks.cancel(task)
    await both.asks.retry(task)
    await both.asks.result(task)


async def _resumed(both: Both) -> None:
    await both.asks.kernel.lists.pause("default")
    task = await both.asks.enqueue("work")
    await both.asks.pause(task)
    await both.asks.kernel.lists.resume("default")
    await both.asks.resume(task)
    await both.asks.result(task)


async def _resumed_run(both: Both) -> None:
    run = await both.asks.start_function("hear", {"count": 1}, version=1)
    await both.asks.runs.pause(run)
    await both.asks.signal(run, "s")
    await both.asks.runs.resume(run)
    await both.asks.run_result(run)


async def _signaled(both: Both) -> None:
    run = await both.asks.start_function("hear", {"count": 20}, version=1)

    async def send(engine: Engine) -> None:
        for _ in range(10):
            await engine.signal(run, "s")

    await asyncio.gather(send(both.works), send(both.asks))
    assert await both.asks.run_result(run) == 20


async def _approved(both: Both) -> None:
    task = await both.asks.enqueue("ask")
    found: list[Any] = []

    async def asked() -> bool:
        found[:] = (await both.asks.approvals.list(task_id=task.id)).approvals
        return bool(found)

    await until(asked)
    await both.asks.approvals.decide(found[0], "approve", actor="ada")
    await both.asks.result(task)


async def _of_children(both: Both) -> None:
    await both.asks.run_result(await both.asks.start_function("parent", version=1))


async def _called_back(both: Both) -> None:
    task = await both.asks.enqueue("render")
    await until(lambda: _dispatched(both, task.id))
    await both.asks.kernel.external_jobs.resolve(both.tokens[-1], Production({"done": True}))
    await both.asks.result(task)


async def _polled_now(both: Both) -> None:
    task = await both.asks.enqueue("render")
    await until(lambda: _dispatched(both, task.id))
    await both.asks.kernel.external_jobs.poll_now(task, actor="ada")
    await both.asks.result(task)


async def _dispatched(both: Both, task_id: str) -> bool:
    return bool((await both.asks.kernel.reads.get_task(task_id)).state == "awaiting_external")


async def _limited(both: Both) -> None:
    tasks = [await both.asks.enqueue("work", limit_key="few", limit=1) for _ in range(10)]
    await asyncio.gather(*(both.asks.result(task) for task in tasks))


async def _limit_raised(both: Both) -> None:
    await both.asks.kernel.lists.limit_key("held", 1)
    both.release.clear()
    first = await both.asks.enqueue("blocked_by", limit_key="held")
    await until(lambda: _holds(both, first.id))
    await both.asks.pause(second := await both.asks.enqueue("work", limit_key="held"))
    await both.asks.resume(second)
    await both.asks.kernel.lists.limit_key("held", 2)
    await both.asks.result(second)
    both.release.set()
    await both.asks.result(first)


async def _holds(both: Both, task_id: str) -> bool:
    return (await both.asks.kernel.reads.get_task(task_id)).owner_id is not None


async def _slowed_and_limited(both: Both) -> None:
    await both.asks.kernel.lists.limit_rate("default", "work", 1000.0, 1)
    await _limited(both)
    await both.asks.kernel.lists.limit_rate("default", "work", None)


WAYS: list[Callable[[Both], Awaitable[None]]] = [
    _enqueued,
    _retried,
    _requeued,
    _resumed,
    _resumed_run,
    _signaled,
    _approved,
    _of_children,
    _called_back,
    _polled_now,
    _limited,
    _limit_raised,
    _slowed_and_limited,
]


async def test_no_way_to_make_a_task_ready_depends_on_the_poll(both: Both) -> None:
    for way in WAYS:
        for _ in range(3):
            async with asyncio.timeout(BOUND):
                await way(both)
    assert (await both.asks.kernel.verify()).problems == ()


async def test_a_callers_transaction_wakes_a_worker_on_request(both: Both, postgres_server: str, postgres_schema: str) -> None:
    """The worker does not wait for its next poll."""
    connection = await asyncpg.connect(postgres_server)
    try:
        async with asyncio.timeout(BOUND):
            async with connection.transaction():
                made = await enqueue(connection, "work", schema=postgres_schema, notify=True)
            await both.asks.result(made.id)
    finally:
        await connection.close()
