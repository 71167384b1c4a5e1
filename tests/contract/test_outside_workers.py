"""Outside workers: what they claim is theirs alone, for as long as they show that they live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.contract.databases import Database, StoreTime
from tests.contract.protocol import Bench, open_bench


@pytest.fixture
async def bench(database: Database, clock: StoreTime, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with open_bench(database, clock, monkeypatch) as made:
        yield made


async def test_a_claimed_task_is_completed_with_its_result(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    task_id = await bench.put("job", {"n": 1}, trace_id="t-1")
    claimed = await bench.one(worker_id)
    assert (claimed.task.id, claimed.payload, claimed.claim_version, claimed.attempt) == (task_id, {"n": 1}, 1, 1)
    assert (claimed.lease_expires_at, claimed.lease_for, claimed.trace_id) == (bench.now() + 60_000, 60_000, "t-1")
    await bench.workers.complete(worker_id, task_id, 1, {"n": 2})
    assert await bench.engine.result(task_id) == {"n": 2}


async def test_a_waiting_claim_gets_what_is_enqueued(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    waiting = bench.waiting_claim(worker_id)
    await bench.waits()
    task_id = await bench.put("job")
    (claimed,) = await asyncio.wait_for(waiting, 20)
    assert claimed.task.id == task_id


async def test_a_waiting_claim_gets_nothing_when_its_time_is_over(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    waiting = bench.waiting_claim(worker_id, 30)
    await bench.waits()
    for _ in range(30):
        await bench.pass_(1)
    assert await asyncio.wait_for(waiting, 20) == []
