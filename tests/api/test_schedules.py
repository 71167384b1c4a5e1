"""Calls about schedules, on an engine and over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.api.conftest import Scene
from tests.errors import raises_code

from treadle.model.errors import InvalidInput, InvalidPolicy, InvalidSchedule

DAY = timedelta(days=1)


async def test_a_schedule_is_created_shown_paused_resumed_and_removed(scene: Scene):
    api = scene.api.schedules
    made = await api.create("nightly", cron="30 2 * * *", zone="Europe/Berlin", task="greet", inputs={"n": 1}, retry=2)
    assert (made.state, made.when.cron, made.when.zone, made.when.at) == ("active", "30 2 * * *", "Europe/Berlin", None)
    assert (made.target.kind, made.target.name, made.target.inputs, made.target.given_as) == ("task", "greet", {"n": 1}, "tick")
    assert made.next_at is not None
    assert await api.get("nightly") == made == await api.get(made.id)
    assert (await api.list()).schedules == [made]
    assert (await api.pause("nightly")).state == "paused"
    assert (await api.resume("nightly")).state == "active"
    assert [(transition.transition, transition.actor) for transition in (await api.transitions("nightly")).transitions] == [
        ("create", "local"),
        ("pause", "local"),
        ("resume", "local"),
    ]
    assert (await api.remove("nightly")).state == "removed"
    assert (await api.list()).schedules == []
    assert [each.id for each in (await api.list(every=True)).schedules] == [made.id]
    with raises_code("schedule_not_found"):
        await api.get("nightly")


async def test_an_edit_changes_given_fields_and_clears_named_ones(scene: Scene):
    api = scene.api.schedules
    made = await api.create("often", every=60, task="greet", end=datetime(2099, 1, 1, tzinfo=UTC), grace=5, paused=True)
    assert (made.state, made.when.every_for, made.catch_up.grace_for) == ("paused", 60_000, 5000)
    assert made.end_at == datetime(2099, 1, 1, tzinfo=UTC)
    edited = await api.edit("often", overlap="queue", jitter=0.5)
    assert (edited.overlap, edited.jitter_for, edited.end_at, edited.when) == ("queue", 500, made.end_at, made.when)
    assert (await api.edit("often", clear=["end"])).end_at is None
    with pytest.raises(InvalidInput):
        await api.edit("often")


async def test_invalid_schedules_are_rejected(scene: Scene):
    api = scene.api.schedules
    with pytest.raises(InvalidSchedule):
        await api.create("x", cron="61 * * * *", task="greet")
    with pytest.raises(InvalidInput):
        await api.create("x", every=60)
    with pytest.raises(InvalidPolicy):
        await api.create("x", every=-1, task="greet")
    for options in (
        {"at": datetime(1, 1, 1, tzinfo=UTC), "task": "greet"},
        {"every": 60, "workflow": "w", "flow": "f", "priority": 10**30},
        {"every": 60, "function": "f", "version": 0},
        {"every": 60, "task": "greet", "zone": "../../etc/passwd"},
    ):
        with pytest.raises(InvalidInput):
            await api.create("x", **options)
    await api.create("nightly", cron="@daily", task="greet")
    with pytest.raises(InvalidInput):
        await api.get("\0")
    with raises_code("schedule_exists"):
        await api.create("nightly", cron="@daily", task="greet")
    with pytest.raises(InvalidInput, match="limit"):
        await api.list(limit=1001)


async def test_pages_follow_one_another(scene: Scene):
    api = scene.api.schedules
    made = [(await api.create(f"s{n}", every=60, task="greet")).id for n in range(3)]
    first = await api.list(limit=2)
    rest = await api.list(limit=2, before=first.next_before)
    assert [each.id for each in (*first.schedules, *rest.schedules)] == made[::-1]
    assert rest.next_before is None


async def test_a_preview_lists_ticks_of_stored_and_unsaved_schedules(scene: Scene):
    api = scene.api.schedules
    found = await api.preview_new(cron="0 12 29 2 *", zone="Asia/Tokyo", count=2)
    assert [(tick.month, tick.day, tick.hour) for tick in found.ticks] == [(2, 29, 3)] * 2
    assert (found.zone, found.due.fire, found.due.skipped) == ("Asia/Tokyo", [], 0)
    assert (await api.list()).schedules == []
    await api.create("past", at=datetime(2026, 1, 1, tzinfo=UTC), task="greet", paused=True)
    stored = await api.preview("past")
    assert (stored.due.fire, stored.ticks) == ([datetime(2026, 1, 1, tzinfo=UTC)], [])
    with pytest.raises(InvalidInput):
        await api.preview("past", count=1001)


async def test_run_now_and_backfill_start_work_once(scene: Scene):
    api = scene.api.schedules
    await api.create("nightly", cron="0 3 * * *", task="greet", paused=True)
    started = await api.run_now("nightly")
    assert (await scene.api.tasks.get(started.id)).name == "greet"
    since = datetime(2026, 1, 1, tzinfo=UTC)
    would = await api.backfill("nightly", since, since + 3 * DAY, dry_run=True)
    assert (would.dry_run, len(would.started), would.ticks[0]) == (True, 3, since + timedelta(hours=3))
    assert len((await scene.api.tasks.list()).tasks) == 1
    done = await api.backfill("nightly", since, since + 3 * DAY)
    assert done.started == would.started
    again = await api.backfill("nightly", since, since + 3 * DAY)
    assert (again.started, again.already) == ([], would.ticks)
    assert len((await scene.api.tasks.list()).tasks) == 4
