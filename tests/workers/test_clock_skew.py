"""Machines whose clocks are hours apart share a PostgreSQL: the database's clock counts, and nobody else's."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.limits import BOUND

from treadle import Engine
from treadle.kernel.store.process import SystemClock
from treadle.settings import Settings

HOUR = 3_600_000


class WrongClock(SystemClock):
    """As far off as it says."""

    def __init__(self, off_by: int) -> None:
        self._off_by = off_by

    def now(self) -> int:
        return super().now() + self._off_by


async def test_a_clock_hours_ahead_steals_no_lease_and_starts_no_task_early(postgres_url: str) -> None:
    behind = Engine(postgres_url, settings=Settings(), clock=WrongClock(-10 * HOUR))
    ahead = Engine(postgres_url, settings=Settings(), clock=WrongClock(10 * HOUR))
    begun, go = asyncio.Event(), asyncio.Event()

    @behind.handler("long")
    async def long(payload: Any, ctx: Any) -> dict[str, Any]:
        begun.set()
        await go.wait()
        return {"token": ctx.fencing_token}

    @ahead.handler("long")
    async def stolen(payload: Any) -> dict[str, Any]:
        raise AssertionError("nobody gave it away")

    @ahead.handler("late")
    async def late(payload: Any) -> dict[str, Any]:
        return {}

    async with behind, ahead:
        async with behind.worker():
            held = await behind.enqueue("long", deadline=600)
            await asyncio.wait_for(begun.wait(), BOUND)
            later = await behind.enqueue("late", delay=3600)
            async with ahead.worker():
                woken = await ahead.kernel.store.tasks.wake(100)
                assert (woken.count, woken.expired) == (0, 0)
                assert await ahead.result(await ahead.enqueue("late"), timeout=BOUND) == {}  # it does work, and looks for it
                assert (await ahead.kernel.reads.get_task(later)).state == "pending"
                assert (await ahead.kernel.reads.get_task(held)).takeovers == 0
                go.set()
                assert await behind.result(held, timeout=BOUND) == {"token": 1}
        times = await behind.kernel.reads.get_task(held)
        assert times.claimed_at is not None
        assert 0 <= times.claimed_at - times.created_at < HOUR  # both by the database's clock
