"""However time is cut into plans, and however the clock jumps: no tick is lost, none fires twice, and they fire in order."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sizes import examples

from treadle.kernel.schedules.decide import admit, plan
from treadle.kernel.schedules.ticks import Calendar, Every, last_ticks, make_cron, ticks_after
from treadle.model.schedules import ALL, ALLOW, LATEST, SKIP, WINDOW, CatchUp

DAY = 86_400_000
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Casablanca")
LINES = (
    "*/30 * * * *",
    "30 2 * * *",
    "0 */2 * * *",
    "15,45 1-3 * * *",
    "0 0 * * MON",
    "*/7 1 * * *",
    "0 0 1 * *",
    "0 */20 2 * * *",
)


def _at(year: int, month: int, day: int) -> int:
    return round(datetime(year, month, day, tzinfo=UTC).timestamp() * 1000)


STARTS = (
    _at(2026, 3, 6),
    _at(2026, 3, 27),
    _at(2026, 4, 3),
    _at(2026, 10, 2),
    _at(2026, 10, 23),
    _at(2026, 10, 30),
    _at(2028, 2, 27),
)

calendars: st.SearchStrategy[Calendar] = st.one_of(
    st.builds(make_cron, st.sampled_from(LINES), st.sampled_from(ZONES)),
    st.builds(Every, st.integers(60_000, DAY), st.sampled_from(STARTS)),
)
jumps = st.lists(st.integers(-DAY, 2 * DAY), max_size=12)


@settings(max_examples=examples(24), deadline=None)
@given(calendars, st.sampled_from(STARTS), jumps, st.integers(1, 20))
def test_under_catch_up_all_each_tick_fires_once_and_in_order(
    calendar: Calendar, start: int, transitions: list[int], batch: int
) -> None:
    catch_up = CatchUp(policy=ALL, limit=1_000_000)
    fired: list[int] = []
    waiting: tuple[int, ...] = ()
    cursor = now = latest = start
    for transition in [*transitions, 0]:
        now += transition
        latest = max(latest, now)
        for _ in range(2):  # asked again, as after a crash that lost nothing
            planned = plan(calendar, catch_up, cursor, now)
            assert planned == plan(calendar, catch_up, cursor, now)
            admitted = admit(planned.fire, ALLOW, catch_up, now, busy=True, waiting=waiting, batch=batch)
            assert len(admitted.start) <= batch
            fired += admitted.start
            waiting = admitted.waiting
            cursor = planned.cursor
            assert cursor <= max(latest, start)
    planned = plan(calendar, catch_up, cursor, latest)
    fired += [*waiting, *planned.fire]
    assert fired == ticks_after(calendar, start, latest, 1_000_000)
    assert planned.next_at == calendar.next_after(max(planned.cursor, start))


@settings(max_examples=examples(32), deadline=None)
@given(
    calendars,
    st.sampled_from(STARTS),
    jumps,
    st.sampled_from([SKIP, LATEST, WINDOW, ALL]),
    st.integers(1, 5),
    st.integers(0, DAY),
)
def test_under_every_policy_ticks_fire_at_most_once_in_order_and_never_early(
    calendar: Calendar, start: int, transitions: list[int], policy: str, limit: int, window_for: int
) -> None:
    catch_up = CatchUp(policy=policy, limit=limit, window_for=window_for)
    fired: list[int] = []
    cursor = now = start
    for transition in transitions:
        now += transition
        planned = plan(calendar, catch_up, cursor, now)
        assert all(cursor < tick <= now for tick in planned.fire)
        assert planned.next_at is None or planned.next_at > planned.cursor
        if planned.fire or planned.skipped:
            assert planned.cursor == last_ticks(calendar, cursor, now, 1)[0]
        fired += planned.fire
        cursor = planned.cursor
    assert fired == sorted(set(fired))


@settings(max_examples=examples(12), deadline=None)
@given(calendars, st.sampled_from(STARTS), st.integers(0, 20 * DAY), st.integers(1, 30))
def test_the_last_ticks_are_the_last_of_all(calendar: Calendar, start: int, span: int, limit: int) -> None:
    assert last_ticks(calendar, start, start + span, limit) == ticks_after(calendar, start, start + span, 1_000_000)[-limit:]
