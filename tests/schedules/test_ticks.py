"""Ticks of cron lines in time zones: changes of the clock, leap days, ends of months; and what is refused, with words."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from treadle.kernel.schedules.ticks import Every, Once, count_ticks, last_ticks, make_calendar, make_cron, ticks_after
from treadle.model.errors import InvalidSchedule
from treadle.model.schedules import When


def at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    """The instant at which the clock of the zone shows that."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp() * 1000)


def shown(ticks: list[int], zone: str = "UTC") -> list[str]:
    """The local times of these ticks in the zone, with their offsets."""
    return [datetime.fromtimestamp(tick / 1000, UTC).astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M%z") for tick in ticks]


def ticks(line: str, zone: str, start: str, end: str) -> list[str]:
    return shown(ticks_after(make_cron(line, zone), at(start, zone), at(end, zone), 1000), zone)


# --- the clock goes forward ---


def test_a_fixed_time_that_is_skipped_fires_once_right_after_the_gap() -> None:
    assert ticks("30 2 * * *", "Europe/Berlin", "2026-03-28 00:00", "2026-03-31 00:00") == [
        "03-28 02:30+0100",
        "03-29 03:00+0200",
        "03-30 02:30+0200",
    ]
    assert ticks("30 2 * * *", "America/New_York", "2026-03-08 00:00", "2026-03-10 00:00") == [
        "03-08 03:00-0400",
        "03-09 02:30-0400",
    ]


def test_several_fixed_times_in_a_gap_fire_once_together() -> None:
    assert ticks("0,15,30 2,3 * * *", "Europe/Berlin", "2026-03-29 00:00", "2026-03-29 12:00") == [
        "03-29 03:00+0200",
        "03-29 03:15+0200",
        "03-29 03:30+0200",
    ]


def test_hourly_ticks_fire_every_elapsed_hour_across_a_gap() -> None:
    found = ticks_after(make_cron("0 * * * *", "Europe/Berlin"), at("2026-03-29 00:30", "Europe/Berlin"), 2**60, 5)
    assert shown(found, "Europe/Berlin")[:3] == ["03-29 01:00+0100", "03-29 03:00+0200", "03-29 04:00+0200"]
    assert {later - earlier for earlier, later in itertools.pairwise(found)} == {3_600_000}


def test_wall_clock_times_of_other_lines_that_are_skipped_do_not_fire() -> None:
    found = ticks("0 */2 * * *", "Europe/Berlin", "2026-03-28 23:30", "2026-03-29 07:00")
    assert found == ["03-29 00:00+0100", "03-29 04:00+0200", "03-29 06:00+0200"]


# --- the clock goes back ---


def test_a_repeated_fixed_time_fires_once_at_its_first_occurrence() -> None:
    assert ticks("30 2 * * *", "Europe/Berlin", "2026-10-25 00:00", "2026-10-27 00:00") == ["10-25 02:30+0200", "10-26 02:30+0100"]
    assert ticks("30 1 * * *", "America/New_York", "2026-11-01 00:00", "2026-11-03 00:00") == [
        "11-01 01:30-0400",
        "11-02 01:30-0500",
    ]


def test_a_fixed_time_does_not_fire_again_between_its_two_occurrences() -> None:
    cron = make_cron("30 2 * * *", "Europe/Berlin")
    between = at("2026-10-25 02:10", "Europe/Berlin", fold=1)
    assert shown([cron.next_after(between) or 0], "Europe/Berlin") == ["10-26 02:30+0100"]


def test_hourly_ticks_fire_every_elapsed_hour_when_the_hour_repeats() -> None:
    found = ticks_after(make_cron("0 * * * *", "Europe/Berlin"), at("2026-10-25 00:30", "Europe/Berlin"), 2**60, 5)
    assert shown(found, "Europe/Berlin") == [
        "10-25 01:00+0200",
        "10-25 02:00+0200",
        "10-25 02:00+0100",
        "10-25 03:00+0100",
        "10-25 04:00+0100",
    ]
    assert {later - earlier for earlier, later in itertools.pairwise(found)} == {3_600_000}


def test_a_rare_line_by_real_time_fires_in_both_of_the_repeated_hours() -> None:
    found = ticks("*/30 2 25 10 *", "Europe/Berlin", "2026-10-25 00:00", "2026-10-26 00:00")
    assert found == ["10-25 02:00+0200", "10-25 02:30+0200", "10-25 02:00+0100", "10-25 02:30+0100"]


# --- a change of half an hour ---


def test_a_gap_of_half_an_hour_is_handled() -> None:
    zone = "Australia/Lord_Howe"  # 02:00 +10:30 is 02:30 +11:00
    assert ticks("15 2 * * *", zone, "2026-10-04 00:00", "2026-10-06 00:00") == ["10-04 02:30+1100", "10-05 02:15+1100"]
    assert ticks("0 3 * * *", zone, "2026-10-04 00:00", "2026-10-05 00:00") == ["10-04 03:00+1100"]
    assert ticks("0 0 3 * * *", zone, "2026-10-04 00:00", "2026-10-05 00:00") == ["10-04 03:00+1100"]
    assert ticks("*/30 * * * *", zone, "2026-10-04 01:00", "2026-10-04 03:30") == [
        "10-04 01:30+1030",
        "10-04 02:30+1100",
        "10-04 03:00+1100",
        "10-04 03:30+1100",
    ]
    assert ticks("*/20 3 * * *", zone, "2026-10-04 00:00", "2026-10-04 12:00") == [
        "10-04 03:00+1100",
        "10-04 03:20+1100",
        "10-04 03:40+1100",
    ]


def test_a_repeated_half_hour_is_handled() -> None:
    zone = "Australia/Lord_Howe"  # 02:00 +11:00 is 01:30 +10:30
    assert ticks("45 1 * * *", zone, "2026-04-05 00:00", "2026-04-06 12:00") == ["04-05 01:45+1100", "04-06 01:45+1030"]
    assert ticks("0 2 * * *", zone, "2026-04-05 00:00", "2026-04-05 12:00") == ["04-05 02:00+1030"]
    assert ticks("*/15 1 * * *", zone, "2026-04-05 00:00", "2026-04-05 12:00") == [
        "04-05 01:00+1100",
        "04-05 01:15+1100",
        "04-05 01:30+1100",
        "04-05 01:45+1100",
        "04-05 01:30+1030",
        "04-05 01:45+1030",
    ]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "Asia/Tokyo"])
def test_zones_without_changes_tick_evenly(zone: str) -> None:
    found = ticks_after(make_cron("30 2 * * *", zone), at("2026-01-01 00:00", zone), at("2027-01-01 00:00", zone), 1000)
    assert len(found) == 365
    assert {later - earlier for earlier, later in itertools.pairwise(found)} == {86_400_000}


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"])
def test_a_fixed_time_fires_once_on_every_existing_day(zone: str) -> None:
    for line in ("30 2 * * *", "45 1 * * *", "0 0 * * *"):
        found = ticks_after(make_cron(line, zone), at("2011-01-01 00:00", zone) - 1, at("2013-01-01 00:00", zone) - 1, 10_000)
        days = [datetime.fromtimestamp(tick / 1000, UTC).astimezone(ZoneInfo(zone)).date() for tick in found]
        assert len(days) == len(set(days)) == 731, line


def test_a_whole_day_that_was_skipped_fires_right_after_it() -> None:
    found = ticks("30 2 * * *", "Pacific/Apia", "2011-12-29 00:00", "2012-01-01 00:00")
    assert found == ["12-29 02:30-1000", "12-31 00:00+1400", "12-31 02:30+1400"]


# --- days ---


def test_leap_days_and_ends_of_months() -> None:
    leap = ticks_after(make_cron("0 12 29 2 *", "Europe/Berlin"), at("2026-01-01 00:00"), 2**60, 3)
    assert [datetime.fromtimestamp(tick / 1000, UTC).strftime("%Y-%m-%d") for tick in leap] == [
        "2028-02-29",
        "2032-02-29",
        "2036-02-29",
    ]
    assert ticks("0 0 31 * *", "UTC", "2026-01-01 00:00", "2026-06-01 00:00") == [
        "01-31 00:00+0000",
        "03-31 00:00+0000",
        "05-31 00:00+0000",
    ]
    assert ticks("0 0 L * *", "UTC", "2028-01-15 00:00", "2028-04-15 00:00") == [
        "01-31 00:00+0000",
        "02-29 00:00+0000",
        "03-31 00:00+0000",
    ]
    assert ticks("0 9 * * MON#1", "UTC", "2026-11-01 00:00", "2026-12-31 00:00") == ["11-02 09:00+0000", "12-07 09:00+0000"]


def test_names_ranges_steps_seconds_and_aliases() -> None:
    assert ticks("30 8 * jan mon-wed", "UTC", "2026-01-01 00:00", "2026-01-08 00:00") == [
        "01-05 08:30+0000",
        "01-06 08:30+0000",
        "01-07 08:30+0000",
    ]
    six = ticks_after(make_cron("*/20 0 12 * * *"), at("2026-01-01 00:00"), 2**60, 3)
    assert [tick - at("2026-01-01 12:00") for tick in six] == [0, 20_000, 40_000]
    for alias, line in (("@daily", "0 0 * * *"), ("@Hourly", "0 * * * *"), ("@weekly", "0 0 * * SUN"), ("@yearly", "0 0 1 1 *")):
        start = at("2026-05-05 05:05")
        assert make_cron(alias).next_after(start) == make_cron(line).next_after(start)


def test_a_tick_is_never_its_own_next() -> None:
    cron = make_cron("* * * * * *", "Europe/Berlin")
    start = at("2026-10-25 00:59:59")
    assert [tick - start for tick in ticks_after(cron, start, 2**60, 3)] == [1000, 2000, 3000]
    assert cron.next_after(start + 1) == start + 1000
    assert cron.next_after(start + 999) == start + 1000


# --- what is refused ---


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "not a cron line"),
        ("* * * *", "4 field(s)"),
        ("61 * * * *", "minute, '61',"),
        ("0 25 * * *", "hour, '25',"),
        ("0 0 32 * *", "day of the month, '32',"),
        ("0 0 * 13 *", "month, '13',"),
        ("0 0 * * FRY", "day of the week, 'FRY',"),
        ("99 0 0 * * *", "second, '99',"),
        ("*/0 * * * *", "minute, '*/0',"),
        ("0 0 30 2 *", "day of the month, '30',"),
        ("@reboot", "There is no @reboot; use @yearly"),
        ("every day", "2 field(s)"),
        ("5-1 * * * *", "minute, '5-1',"),
    ],
)
def test_the_error_for_a_bad_line_names_the_problem_and_an_example(line: str, words: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        make_cron(line)
    assert words in str(refused.value)
    assert "e.g." in str(refused.value) or "'30 2 * * *'" in str(refused.value)
    assert refused.value.code == "invalid_schedule"


@pytest.mark.parametrize(
    ("zone", "words"),
    [
        ("Europe/Berlyn", "Europe/Berlin"),
        ("Nowhere", "IANA"),
        ("../etc/passwd", "no time zone"),
        ("", "IANA"),
        ("Europe", "no time zone"),
    ],
)
def test_the_error_for_a_bad_zone_suggests_a_valid_one(zone: str, words: str) -> None:
    with pytest.raises(InvalidSchedule, match="There is no time zone") as refused:
        make_cron("0 0 * * *", zone)
    assert words in str(refused.value)


def test_exactly_one_time_option_is_required() -> None:
    for when in (When(), When(cron="0 0 * * *", every_for=1000), When(at=1, every_for=1000)):
        with pytest.raises(InvalidSchedule, match="cron, every or at"):
            make_calendar(when)
    with pytest.raises(InvalidSchedule, match="one second"):
        make_calendar(When(every_for=999))


# --- intervals and many ticks ---


def test_intervals_count_from_their_anchor() -> None:
    every = Every(60_000, 1_000)
    assert every.next_after(-5) == 1_000
    assert every.next_after(1_000) == 61_000
    assert every.next_after(60_999) == 61_000
    assert Once(50).next_after(49) == 50
    assert Once(50).next_after(50) is None


def test_the_last_ticks_of_a_long_time_are_found_without_walking_through_it() -> None:
    second = make_cron("* * * * * *")
    now = at("2026-06-01 00:00")
    assert last_ticks(second, at("2016-06-01 00:00"), now, 3) == [now - 2000, now - 1000, now]
    yearly = make_cron("0 0 29 2 *", "Europe/Berlin")
    assert shown(last_ticks(yearly, 0, now, 2), "Europe/Berlin") == ["02-29 00:00+0100", "02-29 00:00+0100"]
    assert last_ticks(Every(1000, 0), 0, 10_500, 4) == [7000, 8000, 9000, 10_000]
    assert last_ticks(Once(5), 0, 10, 4) == [5]
    assert last_ticks(Once(5), 5, 10, 4) == []
    assert count_ticks(Every(1000, 0), 0, 5000, 100) == 4
    assert count_ticks(second, now, now + 10_000, 5) == 5
