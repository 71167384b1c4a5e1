"""Which ticks fire: each catch-up and overlap policy, clocks that jump, and ends."""

from __future__ import annotations

import pytest

from treadle.kernel.schedules.decide import BATCH, COUNTED, Admission, FiringPlan, admit, jitter_of, plan
from treadle.kernel.schedules.ticks import Every, Once, make_cron
from treadle.model.schedules import ALL, ALLOW, CANCEL, LATEST, QUEUE, SKIP, WINDOW, CatchUp

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
HOURLY = Every(HOUR, 0)


def hours(planned: FiringPlan) -> list[float]:
    return [tick / HOUR for tick in planned.fire]


def test_no_tick_is_due_before_the_next_one() -> None:
    assert plan(HOURLY, CatchUp(), 5 * HOUR, 6 * HOUR - 1) == FiringPlan((), 0, 5 * HOUR, 6 * HOUR)


@pytest.mark.parametrize("policy", [SKIP, LATEST, ALL, WINDOW])
def test_a_tick_that_is_on_time_fires_under_every_policy(policy: str) -> None:
    catch_up = CatchUp(policy=policy, window_for=0, grace_for=MINUTE)
    for late in (0, 1, MINUTE):
        assert plan(HOURLY, catch_up, 5 * HOUR, 6 * HOUR + late) == FiringPlan((6 * HOUR,), 0, 6 * HOUR, 7 * HOUR)


def test_catch_up_policies_after_a_day_of_downtime() -> None:
    now = 29 * HOUR + 30 * MINUTE  # the last tick that was considered was at 5
    assert plan(HOURLY, CatchUp(policy=SKIP), 5 * HOUR, now) == FiringPlan((), 24, 29 * HOUR, 30 * HOUR)
    assert plan(HOURLY, CatchUp(policy=LATEST), 5 * HOUR, now) == FiringPlan((29 * HOUR,), 23, 29 * HOUR, 30 * HOUR)
    everything = plan(HOURLY, CatchUp(policy=ALL), 5 * HOUR, now)
    assert (hours(everything), everything.skipped, everything.cursor) == (list(range(6, 30)), 0, 29 * HOUR)
    some = plan(HOURLY, CatchUp(policy=ALL, limit=3), 5 * HOUR, now)
    assert (hours(some), some.skipped, some.cursor) == ([27, 28, 29], 21, 29 * HOUR)
    window = plan(HOURLY, CatchUp(policy=WINDOW, window_for=2 * HOUR + 30 * MINUTE), 5 * HOUR, now)
    assert (hours(window), window.skipped) == ([27, 28, 29], 21)
    bounded = plan(HOURLY, CatchUp(policy=WINDOW, window_for=10 * HOUR, limit=2), 5 * HOUR, now)
    assert hours(bounded) == [28, 29]


def test_the_latest_is_the_one_that_is_on_time_if_there_is_one() -> None:
    planned = plan(HOURLY, CatchUp(policy=LATEST), 5 * HOUR, 29 * HOUR + 5)
    assert (hours(planned), planned.skipped) == ([29], 23)


def test_ticks_beyond_a_batch_start_in_several_attempts() -> None:
    everything = CatchUp(policy=ALL, limit=1000)
    turn = admit(plan(HOURLY, everything, 0, 130 * HOUR).fire, ALLOW, everything, 130 * HOUR, busy=False)
    started = [*turn.start]
    while turn.waiting:
        assert len(turn.start) == BATCH
        turn = admit((), ALLOW, everything, 130 * HOUR, busy=True, waiting=turn.waiting)
        started += turn.start
    assert started == [hour * HOUR for hour in range(1, 131)]


def test_skipped_ticks_are_counted_up_to_a_bound() -> None:
    every_second = make_cron("* * * * * *")
    planned = plan(every_second, CatchUp(policy=LATEST, grace_for=0), 1_700_000_000_000, 1_700_000_000_000 + 365 * DAY)
    assert planned.skipped == COUNTED
    assert planned.cursor == 1_700_000_000_000 + 365 * DAY


def test_a_clock_that_goes_back_fires_no_tick_before_the_cursor() -> None:
    assert plan(HOURLY, CatchUp(policy=ALL), 29 * HOUR, 3 * HOUR) == FiringPlan((), 0, 29 * HOUR, 30 * HOUR)
    assert hours(plan(HOURLY, CatchUp(policy=ALL), 29 * HOUR, 30 * HOUR)) == [30]


def test_a_clock_jump_counts_as_missed_time() -> None:
    assert hours(plan(HOURLY, CatchUp(policy=LATEST), 5 * HOUR, 1000 * HOUR + 30 * MINUTE)) == [1000]


def test_an_ended_schedule_has_no_next_tick() -> None:
    assert plan(Once(50), CatchUp(), 0, 10) == FiringPlan((), 0, 0, 50)
    assert plan(Once(50), CatchUp(), 0, 60) == FiringPlan((50,), 0, 50, None)
    assert plan(Once(50), CatchUp(policy=SKIP, grace_for=5), 0, 60) == FiringPlan((), 1, 50, None)
    assert plan(Once(50), CatchUp(), 50, 60) == FiringPlan((), 0, 50, None)
    assert plan(HOURLY, CatchUp(policy=ALL), 5 * HOUR, 100 * HOUR, end_at=7 * HOUR) == FiringPlan(
        (6 * HOUR, 7 * HOUR), 0, 7 * HOUR, None
    )
    assert plan(HOURLY, CatchUp(), 7 * HOUR, 100 * HOUR, end_at=7 * HOUR) == FiringPlan((), 0, 7 * HOUR, None)


def test_jitter_is_fixed_for_a_schedule_and_spreads_them() -> None:
    found = [jitter_of(f"schedule-{number}", 10 * MINUTE) for number in range(200)]
    assert found == [jitter_of(f"schedule-{number}", 10 * MINUTE) for number in range(200)]
    assert all(0 <= each <= 10 * MINUTE for each in found)
    assert len(set(found)) > 190
    assert jitter_of("schedule-1", 0) == 0


def _admit(
    ticks: list[int], overlap: str, policy: str = LATEST, *, busy: bool, waiting: tuple[int, ...] = (), late: bool = False
) -> Admission:
    return admit(ticks, overlap, CatchUp(policy=policy, grace_for=10), 100 if late else 10, busy=busy, waiting=waiting)


@pytest.mark.parametrize("late", [False, True])
def test_allow_starts_every_tick_and_cancel_the_newest(late: bool) -> None:
    assert _admit([1, 2], ALLOW, busy=True, late=late) == Admission((1, 2))
    assert _admit([1, 2], CANCEL, ALL, busy=True, late=late) == Admission((2,), (1,), cancel=True)
    assert _admit([1, 2], CANCEL, ALL, busy=False, waiting=(0,), late=late) == Admission((2,), (0, 1))


@pytest.mark.parametrize("overlap", [SKIP, QUEUE])
@pytest.mark.parametrize("late", [False, True])
def test_several_ticks_fire_the_newest_or_all_in_sequence(overlap: str, late: bool) -> None:
    for policy in (LATEST, SKIP):
        assert _admit([1, 2, 3], overlap, policy, busy=False, late=late) == Admission((3,), (1, 2))
    for policy in (ALL, WINDOW):
        assert _admit([1, 2, 3], overlap, policy, busy=False, late=late) == Admission((1,), (), (2, 3))
        assert _admit([], overlap, policy, busy=True, waiting=(2, 3)) == Admission((), (), (2, 3))
        assert _admit([], overlap, policy, busy=False, waiting=(2, 3)) == Admission((2,), (), (3,))


@pytest.mark.parametrize("overlap", [SKIP, QUEUE])
def test_missed_ticks_wait_for_live_work(overlap: str) -> None:
    assert _admit([1, 2, 3], overlap, ALL, busy=True, late=True) == Admission((), (), (1, 2, 3))
    assert _admit([1, 2, 3], overlap, LATEST, busy=True, late=True) == Admission((), (1, 2), (3,))


@pytest.mark.parametrize("policy", [SKIP, LATEST, ALL, WINDOW])
def test_a_tick_on_time_while_earlier_work_is_live_is_skipped_or_queued_once(policy: str) -> None:
    assert _admit([1, 2], SKIP, policy, busy=True) == Admission((), (1, 2))
    assert _admit([1, 2], QUEUE, policy, busy=True) == Admission((), (1,), (2,))
    assert _admit([3], QUEUE, policy, busy=True, waiting=(1,)) == Admission((), (3,), (1,))
    assert _admit([3], QUEUE, policy, busy=False, waiting=(1,)) == Admission((1,), (), (3,))
    assert _admit([3], SKIP, policy, busy=False, waiting=(1,)) == Admission((1,), (3,))
    assert _admit([], SKIP, policy, busy=True).start == ()


def test_no_more_ticks_wait_than_the_limit() -> None:
    some = CatchUp(policy=ALL, limit=2, grace_for=0)
    assert admit([5, 6], SKIP, some, 100, busy=True, waiting=(3, 4)) == Admission((), (3, 4), (5, 6))
