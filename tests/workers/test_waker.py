"""Waking what is due, and not trusting a clock that jumps."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from tests.workers.harness import Events, until

from treadle.kernel.queue.waker import WAKE_LIMIT, JumpGuard, Waker
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import Woken
from treadle.kernel.telemetry.events import ClockJumped, LeasesExpired, LoopError, StoreBack, StoreTrouble
from treadle.model.errors import StoreUnavailable
from treadle.testing import ManualClock

LEASE_FOR = 60_000


def test_clocks_that_advance_equally_show_no_jump() -> None:
    guard = JumpGuard(LEASE_FOR)
    for second in range(0, 10_000, 100):
        assert guard.observe(1_000_000 + second * 1000, float(second)) is None
    assert guard.may_expire(10_000)


@pytest.mark.parametrize("jump", [30_001, -30_001, 86_400_000])
def test_after_a_jump_of_more_than_half_a_lease_no_task_expires_for_one_lease(jump: int) -> None:
    guard = JumpGuard(LEASE_FOR)
    guard.observe(1_000_000, 0.0)
    assert guard.observe(1_001_000 + jump, 1.0) == jump
    assert not guard.may_expire(1.0)
    assert not guard.may_expire(60.9)
    assert guard.may_expire(61.0)
    assert guard.observe(1_061_000 + jump, 61.0) is None


@pytest.mark.parametrize("jump", [30_000, -30_000, 500])
def test_a_smaller_clock_jump_is_ignored(jump: int) -> None:
    guard = JumpGuard(LEASE_FOR)
    guard.observe(1_000_000, 0.0)
    assert guard.observe(1_001_000 + jump, 1.0) is None
    assert guard.may_expire(1.0)


class Sleeper:
    """A store of which only the clock and `wake` are there, with answers prepared."""

    def __init__(self, clock: ManualClock, *answers: Woken | Exception) -> None:
        self.clock, self.answers = clock, list(answers)
        self.ahead = 0
        self.tasks = self
        self.overdue = False
        self.asked: list[bool] = []
        self.polled_at: list[float] = []
        """When `wake` was asked for ready tasks."""

    async def now(self) -> int:
        return self.clock.now() + self.ahead

    async def wake(self, limit: int, *, expire_leases: bool = True, find_ready: bool = False) -> Woken:
        self.asked.append(expire_leases)
        if find_ready:
            self.polled_at.append(self.clock.monotonic())
        answer = self.answers.pop(0) if self.answers else Woken(0, 0, (), None)
        if isinstance(answer, Exception):
            raise answer
        return replace(answer, now=await self.now(), overdue=self.overdue and not expire_leases)


def make_waker(store: Sleeper, clock: ManualClock, events: Events) -> tuple[Waker, list[tuple[int, ...]]]:
    told: list[tuple[int, ...]] = []
    return Waker(store, clock, LEASE_FOR, told.append, events), told  # type: ignore[arg-type]


@pytest.mark.parametrize(("next_for", "pause"), [(250, 0.25), (60_000, 1.0), (0, 0.005), (1, 0.005), (None, 3.0), (60_001, 3.0)])
async def test_the_waker_polls_when_work_is_due_and_every_second_unless_idle(next_for: int | None, pause: float) -> None:
    clock, events = ManualClock(), Events()
    waker, _ = make_waker(Sleeper(clock, Woken(0, 0, (), next_for)), clock, events)
    assert await waker.tick() == pause


async def test_it_continues_immediately_while_there_is_more_and_reports_each_batch() -> None:
    clock, events = ManualClock(), Events()
    store = Sleeper(clock, Woken(WAKE_LIMIT, 0, (1, 2), 0), Woken(7, 0, (3,), None))
    waker, told = make_waker(store, clock, events)
    assert await waker.tick() == 1.0
    assert told == [(1, 2), (3,)]
    assert store.asked == [False, False]


async def test_leases_are_expired_only_when_some_have_run_out() -> None:
    clock, events = ManualClock(), Events()
    store = Sleeper(clock, Woken(0, 0, (), None), Woken(2, 2, (4,), None))
    store.overdue = True
    waker, told = make_waker(store, clock, events)
    await waker.tick()
    assert store.asked == [False, True]
    assert told == [(4,)]
    assert events == [LeasesExpired(2)]


async def test_a_clock_that_jumped_expires_no_lease_for_a_while() -> None:
    clock, events = ManualClock(), Events()
    store = Sleeper(clock)
    store.overdue = True
    waker, _ = make_waker(store, clock, events)
    await waker.tick()
    store.ahead = 3_600_000
    await waker.tick()
    clock.advance(60)
    await waker.tick()
    assert store.asked == [False, True, False, False, True]
    assert events == [ClockJumped(3_600_000, LEASE_FOR)]


async def test_it_survives_store_trouble_and_errors_and_reports_them() -> None:
    clock, events = ManualClock(), Events()
    store = Sleeper(clock, StoreUnavailable("away"), StoreUnavailable("away"), Woken(0, 0, (), None), ValueError("odd"))
    waker, _ = make_waker(store, clock, events)
    running = asyncio.ensure_future(waker.run())
    for count, pause in enumerate((1.0, 1.0, 3.0, 10.0), start=1):
        await until(lambda count=count: len(store.asked) >= count and clock.sleeping > 0)
        clock.advance(pause)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [type(event) for event in events] == [StoreTrouble, StoreBack, LoopError]


async def test_an_idle_waker_polls_a_second_after_its_last_poll_when_notified() -> None:
    clock, events = ManualClock(), Events()
    store = Sleeper(clock)
    waker, _ = make_waker(store, clock, events)
    running = asyncio.ensure_future(waker.run())
    await until(lambda: len(store.asked) == 1 and clock.sleeping > 0)
    clock.advance(0.5)
    waker.notify()
    await until(lambda: clock.sleeping > 0)
    assert len(store.asked) == 1
    clock.advance(0.5)
    await until(lambda: len(store.asked) == 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_delayed_task_is_ready_at_its_due_time(store: Store, clock: ManualClock) -> None:
    from treadle_conformance.task_steps import claim, put_one

    await put_one(store, delay=5000)
    events, told = Events(), list[tuple[int, ...]]()
    waker = Waker(store, clock, LEASE_FOR, told.append, events)
    assert await waker.tick() == 1.0
    assert await claim(store) == []
    clock.advance(4.9)
    assert await waker.tick() == pytest.approx(0.1)
    clock.advance(0.1)
    await waker.tick()
    assert len(told) == 1
    assert len(await claim(store)) == 1


async def test_the_waker_polls_earlier_for_earlier_work() -> None:
    clock, events = ManualClock(), Events()
    store = Sleeper(clock)
    waker, _ = make_waker(store, clock, events)
    running = asyncio.ensure_future(waker.run())
    await until(lambda: len(store.asked) == 1 and clock.sleeping > 0)
    waker.expect(200)
    await until(lambda: clock.sleeping > 0)
    clock.advance(0.2)
    await until(lambda: len(store.asked) == 2)
    waker.expect(5000)
    await until(lambda: clock.sleeping > 0)
    clock.advance(0.5)
    assert len(store.asked) == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("poll_every", "polled_at"), [(5.0, [3.0, 6.0, 9.0]), (0.5, [0.5 * n for n in range(20)]), (3600.0, []), (math.inf, [])]
)
async def test_the_waker_polls_at_the_interval_of_an_idle_worker(poll_every: float, polled_at: list[float]) -> None:
    clock = ManualClock()
    store = Sleeper(clock)
    waker = Waker(store, clock, LEASE_FOR, lambda queue_ids: None, Events(), poll_every)  # type: ignore[arg-type]
    while clock.monotonic() < 10:
        clock.advance(await waker.tick())
    assert store.polled_at == polled_at


async def test_it_reports_ready_tasks_after_lost_signals() -> None:
    clock, reports = ManualClock(), list[bool]()
    store = Sleeper(clock, Woken(0, 0, (), None), Woken(0, 0, (), None, ready=True))
    waker = Waker(store, clock, LEASE_FOR, lambda queue_ids: None, Events(), 5.0, lambda: reports.append(True))  # type: ignore[arg-type]
    for found in (0, 1, 1):
        await waker.tick()
        assert len(reports) == found
