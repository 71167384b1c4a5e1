"""The number of tasks in progress of a worker: given, or adapted to its handlers."""

from __future__ import annotations

import asyncio

import pytest
from tests.limits import BOUND

from treadle import Engine, TaskSpec
from treadle.settings import Settings
from treadle.workers.loop import CLAIM_LIMIT, MIN_CONCURRENCY, Slots


def run(slots: Slots, count: int, seconds: float) -> None:
    for _ in range(count):
        slots.begin()
        slots.end(seconds)


def test_an_explicit_concurrency_is_exact() -> None:
    slots = Slots(7)
    run(slots, 1000, 0.0)
    assert slots.limit == 7
    for _ in range(500):
        slots.begin()
    assert slots.claimable


def test_a_new_worker_starts_with_the_smallest_batch() -> None:
    assert Slots(None).limit == MIN_CONCURRENCY


def test_quick_handlers_get_many_slots() -> None:
    slots = Slots(None)
    run(slots, 2 * MIN_CONCURRENCY, 0.0001)
    assert slots.limit == 2000


@pytest.mark.parametrize(("seconds", "limit"), [(0.01, 200), (0.02, 100), (1.0, 100), (3600.0, 100)])
def test_slower_handlers_get_fewer(seconds: float, limit: int) -> None:
    slots = Slots(None)
    run(slots, 1000, seconds)
    assert slots.limit == pytest.approx(limit, abs=1)


def test_a_few_slow_handlers_reset_the_batch_to_its_minimum() -> None:
    slots = Slots(None)
    run(slots, 1000, 0.0)
    run(slots, 2, 10.0)
    assert slots.limit == MIN_CONCURRENCY


def test_no_task_is_claimed_while_many_handlers_execute() -> None:
    slots = Slots(None)
    run(slots, 1000, 0.0)
    for _ in range(MIN_CONCURRENCY):
        slots.begin()
    assert not slots.claimable
    assert slots.end(None)
    assert slots.claimable
    assert not slots.end(None)


@pytest.mark.parametrize("most", [1, 50, 500])
def test_the_limit_stays_below_the_bound(most: int) -> None:
    slots = Slots(None, most)
    assert slots.limit == min(most, MIN_CONCURRENCY)
    run(slots, 1000, 0.0)
    assert slots.limit == most


@pytest.mark.parametrize(("concurrency", "most"), [(3, 3), (None, MIN_CONCURRENCY + 2 * CLAIM_LIMIT)])
async def test_slow_handlers_after_quick_ones_stay_within_the_limit(concurrency: int | None, most: int) -> None:
    """Handlers that wait come after many that do not: the default exceeds 100 by two claims, a given number never."""
    engine = Engine("memory://", settings=Settings(max_concurrency=1000))
    count = 100 if concurrency else 1000
    running = peak = 0
    gate = asyncio.Event()

    @engine.handler("quick")
    async def quick() -> None:
        pass

    @engine.handler("slow")
    async def slow() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        if running == min(most, MIN_CONCURRENCY):
            gate.set()
        await gate.wait()
        running -= 1

    async with engine, asyncio.timeout(BOUND):
        await engine.enqueue_many(TaskSpec(name="quick") for _ in range(count))
        async with engine.worker(concurrency=concurrency) as host:
            await host.worker.drained()
            await engine.enqueue_many(TaskSpec(name="slow") for _ in range(count))
            await host.worker.drained()
            assert host.worker.handled == 2 * count
    assert min(most, MIN_CONCURRENCY) <= peak <= most
