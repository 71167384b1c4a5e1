"""Schedules on every store: each tick fires once, edits take effect at once, and policies do what the preview said."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.contract.databases import Database, StoreClock
from tests.contract.timing import DAY, HOUR, MINUTE, SECOND, Timing
from tests.errors import raises_code

from treadle.api.wire import Instant, to_builtins
from treadle.kernel.schedules.ticks import make_cron
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.triggers import Prepared
from treadle.model.clock import as_text
from treadle.model.errors import IllegalTransition, InvalidInput, InvalidName, InvalidPolicy, InvalidSchedule
from treadle.model.names import SCHEDULE
from treadle.model.schedules import Started
from treadle.model.values import decode


@pytest.fixture
def timing(store: Store, clock: StoreClock) -> Timing:
    return Timing(store, clock)


# --- firing ---


async def test_each_tick_starts_a_task_with_its_tick_in_the_payload(timing: Timing) -> None:
    made = await timing.schedules.create("tidy", every=60, task="job", inputs={"n": 1}, priority=3, overlap="allow")
    assert (made.state, made.next_at) == ("active", Instant.of(timing.clock.now() + MINUTE))
    began = timing.clock.now()
    await timing.turns(5 * MINUTE, MINUTE)
    tasks = await timing.started()
    assert [decode(task.payload) for task in tasks] == [{"n": 1, "tick": as_text(began + n * MINUTE)} for n in range(1, 6)]
    assert {task.priority for task in tasks} == {3}
    assert {task.created_by for task in tasks} == {"schedule:tidy"}
    assert [task.trace_id for task in tasks] == [f"schedule:tidy:{as_text(began + n * MINUTE)}" for n in range(1, 6)]
    schedule = await timing.schedules.get("tidy")
    assert (schedule.fired, schedule.skipped, schedule.next_at) == (5, 0, Instant.of(began + 6 * MINUTE))
    assert [(firing.tick.ms, firing.id) for firing in schedule.recent] == [
        (began + n * MINUTE, task.id) for n, task in enumerate(tasks, start=1)
    ]
    await timing.check()


async def test_no_tick_fires_early(timing: Timing) -> None:
    await timing.schedules.create("tidy", every=60, task="job")
    await timing.pass_(MINUTE - 1)
    assert await timing.turn() == []
    await timing.pass_(1)
    assert len(await timing.turn()) == 1


async def test_two_schedulers_and_a_dead_one_fire_each_tick_once(timing: Timing, clock: StoreClock) -> None:
    await timing.schedules.create("tidy", every=60, task="job", overlap="allow", catch_up="all")
    other = Timing(timing.store, clock)
    began = clock.now()
    await timing.pass_(MINUTE)
    (late,) = await timing.claim(SCHEDULE, lease_for=10 * SECOND)  # it dies now, or so it seems
    await timing.pass_(11 * SECOND)
    assert len(await other.turn()) == 1
    answer = await timing.firer.run(late)
    assert answer.verdict == "claim_lost"
    for _ in range(5):
        await timing.pass_(MINUTE)
        await asyncio.gather(timing.turn(), other.turn())
    assert await timing.ticks() == [as_text(began + n * MINUTE) for n in range(1, 7)]
    await timing.check()


async def test_a_schedule_that_ticks_for_long_leaves_one_live_task_and_a_small_record(timing: Timing) -> None:
    await timing.schedules.create("tidy", every=60, task="job", overlap="allow")
    await timing.turns(40 * MINUTE, MINUTE)
    live = await timing.store.tasks.list_matching(TaskFilter(kind=SCHEDULE, states=("pending",)), 100)
    assert len(live) == 1
    schedule = await timing.schedules.get("tidy")
    assert schedule.task_id == live[0].id
    assert len(schedule.recent) == 20
    assert [each.transition for each in await timing.store.log.list_transitions(schedule.id)] == ["create"]


async def test_a_one_time_schedule_ends_after_its_tick(timing: Timing) -> None:
    at = timing.in_(HOUR)
    await timing.schedules.create("launch", at=at, task="job")
    await timing.turns(2 * HOUR, 20 * MINUTE)
    assert await timing.ticks() == [as_text(round(at.timestamp() * 1000))]
    with raises_code("schedule_not_found"):
        await timing.schedules.get("launch")
    (ended,) = (await timing.schedules.list(every=True)).schedules
    assert (ended.state, ended.next_at) == ("finished", None)
    assert (await timing.schedules.list()).schedules == []
    await timing.schedules.create("launch", at=timing.in_(HOUR), task="job")  # its name is free
    await timing.check()


async def test_a_past_time_is_due_immediately(timing: Timing) -> None:
    await timing.schedules.create("launch", at=timing.in_(-HOUR), task="job")
    await timing.turn()
    assert len(await timing.started()) == 1


async def test_start_and_end_bound_the_ticks(timing: Timing) -> None:
    began = timing.clock.now()
    await timing.schedules.create(
        "week", every=3600, start=timing.in_(5 * HOUR), end=timing.in_(7 * HOUR), task="job", overlap="allow"
    )
    await timing.turns(10 * HOUR, HOUR)
    assert await timing.ticks() == [as_text(began + n * HOUR) for n in (5, 6, 7)]
    assert ((await timing.schedules.list(every=True)).schedules)[0].state == "finished"


async def test_a_cron_line_fires_by_the_clock_of_its_zone_across_a_change(timing: Timing) -> None:
    # The tests' time begins on 15 January 2027; the clocks of New York go forward on 14 March.
    await timing.schedules.create("report", cron="30 2 * * *", zone="America/New_York", task="job", overlap="allow")
    await timing.turns(62 * DAY, 6 * HOUR)
    ticks = await timing.ticks()
    assert len(ticks) == len(set(ticks)) == 62
    assert {"2027-03-13T07:30:00.000Z", "2027-03-14T07:00:00.000Z", "2027-03-15T06:30:00.000Z"} <= set(ticks)


async def test_jitter_delays_by_the_same_each_time_and_keeps_the_tick(timing: Timing) -> None:
    began = timing.clock.now()
    made = await timing.schedules.create("tidy", every=3600, task="job", jitter=1800, overlap="allow")
    task = await timing.store.tasks.find(made.task_id or "")
    assert task is not None
    assert task.wake_at is not None
    late = task.wake_at - (began + HOUR)
    assert 0 < late <= 30 * MINUTE
    await timing.pass_(HOUR + late - 1)
    assert await timing.turn() == []
    await timing.pass_(1)
    await timing.turn()
    await timing.pass_(HOUR)
    await timing.turn()
    assert await timing.ticks() == [as_text(began + HOUR), as_text(began + 2 * HOUR)]


# --- a clock that jumps ---


async def test_a_clock_that_goes_back_repeats_no_tick(timing: Timing) -> None:
    began = timing.clock.now()
    await timing.schedules.create("tidy", every=60, task="job", overlap="allow")
    await timing.turns(5 * MINUTE, MINUTE)
    await timing.pass_(-4 * MINUTE)
    await timing.turns(3 * MINUTE, MINUTE)
    assert len(await timing.started()) == 5
    await timing.turns(2 * MINUTE, MINUTE)
    assert await timing.ticks() == [as_text(began + n * MINUTE) for n in range(1, 7)]


async def test_catch_up_after_a_clock_jump_follows_the_policy(timing: Timing) -> None:
    began = timing.clock.now()
    await timing.schedules.create("tidy", every=60, task="job", overlap="allow")
    await timing.pass_(10 * DAY + 30 * SECOND)
    await timing.settle_turns()
    assert await timing.ticks() == [as_text(began + 10 * DAY - MINUTE), as_text(began + 10 * DAY)]  # those that are on time
    assert (await timing.schedules.get("tidy")).skipped == 1000  # or more


# --- down for a day ---


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"catch_up": "skip"}, []),
        ({"catch_up": "latest"}, [29]),
        ({"catch_up": "all"}, list(range(6, 30))),
        ({"catch_up": "all", "catch_up_limit": 3}, [27, 28, 29]),
        ({"catch_up": "window", "catch_up_window": 4.5 * 3600}, [25, 26, 27, 28, 29]),
    ],
    ids=["skip", "latest", "all", "all-3", "window"],
)
async def test_each_catch_up_policy_fires_as_previewed_after_a_day_of_downtime(
    timing: Timing, policy: dict[str, object], expected: list[int]
) -> None:
    began = timing.clock.now()
    await timing.schedules.create("report", every=3600, task="job", overlap="allow", **policy)  # type: ignore[arg-type]
    await timing.turns(5 * HOUR, HOUR)
    before = len(await timing.started())
    assert before == 5
    await timing.pass_(DAY + 30 * MINUTE)
    wanted = [as_text(began + hour * HOUR) for hour in expected]
    preview = await timing.schedules.preview("report", 3)
    assert [as_text(tick.ms) for tick in preview.due.fire] == wanted
    assert preview.ticks == [Instant.of(began + hour * HOUR) for hour in (30, 31, 32)]
    (recovery,) = await timing.schedules.describe_recovery()
    assert (recovery.name, recovery.missed, recovery.fires) == ("report", 24, tuple(tick.ms for tick in preview.due.fire))
    assert recovery.text.startswith("24 tick(s) are due; ")
    await timing.settle_turns()
    assert (await timing.ticks())[before:] == wanted
    assert (await timing.schedules.get("report")).skipped == 24 - len(expected)
    assert await timing.schedules.describe_recovery() == []
    await timing.turns(HOUR, 30 * MINUTE)
    assert (await timing.ticks())[before + len(expected) :] == [as_text(began + 30 * HOUR)]


# --- overlap ---


async def test_a_tick_is_skipped_while_the_previous_one_runs(timing: Timing) -> None:
    await timing.schedules.create("report", every=60, task="job", overlap="skip")
    await timing.turns(3 * MINUTE, MINUTE)
    (only,) = await timing.started()
    schedule = await timing.schedules.get("report")
    assert schedule.skipped == 2
    assert schedule.recent[-1].note == "skipped: earlier work is still live"
    await timing.finish([only.id])
    await timing.turns(MINUTE, MINUTE)
    assert len(await timing.started()) == 2


async def test_a_tick_waits_for_the_previous_one(timing: Timing) -> None:
    began = timing.clock.now()
    await timing.schedules.create("report", every=60, task="job", overlap="queue")
    await timing.turns(4 * MINUTE, 5 * SECOND)
    (only,) = await timing.started()
    schedule = await timing.schedules.get("report")
    assert (schedule.waiting, schedule.skipped) == (Instant.of(began + 2 * MINUTE), 2)
    await timing.finish([only.id])
    await timing.turns(20 * SECOND, 5 * SECOND)  # long before the next tick
    assert await timing.ticks() == [as_text(began + MINUTE), as_text(began + 2 * MINUTE)]
    assert (await timing.schedules.get("report")).waiting is None
    ended = await timing.store.tasks.list_matching(TaskFilter(kind=SCHEDULE, states=("completed",)), 100)
    assert len(ended) == 4  # those that started or skipped something; turns that only waited leave nothing
    await timing.check()


async def test_a_tick_cancels_the_previous_one(timing: Timing) -> None:
    await timing.schedules.create("report", every=60, task="job", overlap="cancel")
    await timing.turns(3 * MINUTE, MINUTE)
    tasks = await timing.started()
    assert [task.state for task in tasks] == ["canceled", "canceled", "pending"]
    assert "next tick" in decode(tasks[0].error)["message"]
    await timing.check()


async def test_the_final_tick_of_a_schedule_can_be_queued(timing: Timing) -> None:
    await timing.schedules.create("report", every=60, end=timing.in_(2 * MINUTE), task="job", overlap="queue")
    await timing.turns(5 * MINUTE, 30 * SECOND)
    assert (await timing.schedules.get("report")).waiting is not None
    await timing.finish([(await timing.started())[0].id])
    await timing.turns(MINUTE, 15 * SECOND)
    assert len(await timing.started()) == 2
    assert ((await timing.schedules.list(every=True)).schedules)[0].state == "finished"


# --- workflows ---

FLOW = """
namespace time {
    event facet job(day: String) => (n: Long)

    workflow Daily(day: String) => (n: Long) andThen {
        one = job(day = $.day)
        yield Daily(n = one.n)
    }
}
"""


async def test_a_tick_starts_a_run_of_a_published_flow_once(timing: Timing) -> None:
    await timing.flows.publish("daily", [("daily.afl", FLOW)])
    began = timing.clock.now()
    await timing.schedules.create("daily", every=60, workflow="time.Daily", flow="daily", tick_as="day", overlap="allow")
    await timing.turns(2 * MINUTE, MINUTE)
    schedule = await timing.schedules.get("daily")
    runs = [await timing.runs.get_run(firing.id or "") for firing in schedule.recent]
    assert [await timing.runs.inputs(run) for run in runs] == [{"day": as_text(began + n * MINUTE)} for n in (1, 2)]
    assert {run.state for run in runs} == {"running"}
    assert len(await timing.started("time.job")) == 2
    await timing.check()


async def test_the_overlap_policy_counts_running_runs(timing: Timing) -> None:
    await timing.flows.publish("daily", [("daily.afl", FLOW)])
    await timing.schedules.create("daily", every=60, workflow="time.Daily", flow="daily", tick_as="day", overlap="cancel")
    await timing.turns(2 * MINUTE, MINUTE)
    first, second = [await timing.runs.get_run(firing.id or "") for firing in (await timing.schedules.get("daily")).recent]
    assert (first.state, second.state) == ("canceled", "running")


async def test_a_failed_start_is_reported_retried_and_not_lost(timing: Timing) -> None:
    began = timing.clock.now()
    await timing.schedules.create("daily", every=600, workflow="time.Daily", flow="daily", tick_as="day")
    await timing.turns(10 * MINUTE, MINUTE)
    schedule = await timing.schedules.get("daily")
    assert schedule.error is not None
    assert schedule.error["code"] == "flow_not_found"
    task = await timing.store.tasks.find(schedule.task_id or "")
    assert task is not None
    assert (task.failures, schedule.cursor) == (1, Instant.of(began))
    await timing.flows.publish("daily", [("daily.afl", FLOW)])
    await timing.turns(2 * SECOND, SECOND)
    schedule = await timing.schedules.get("daily")
    assert (schedule.error, schedule.fired) == (None, 1)
    await timing.check()


# --- what people do ---


async def test_an_edit_takes_effect_immediately_and_drops_the_old_ticks(timing: Timing) -> None:
    began = timing.clock.now()
    await timing.schedules.create("report", cron="0 0 * * *", task="job")
    made = await timing.schedules.edit("report", every=60, actor="ada")
    assert made.next_at == Instant.of(began + MINUTE)
    await timing.turns(MINUTE, MINUTE)
    assert await timing.ticks() == [as_text(began + MINUTE)]
    made = await timing.schedules.edit("report", inputs={"n": 2}, overlap="allow", catch_up="all")
    assert (made.when.every_for, made.target.inputs, made.catch_up.policy) == (MINUTE, {"n": 2}, "all")
    await timing.turns(MINUTE, MINUTE)
    assert decode((await timing.started())[-1].payload)["n"] == 2
    made = await timing.schedules.edit("report", cron="@hourly", zone="Asia/Kolkata")
    assert made.when.every_for is None
    transitions = await timing.store.log.list_transitions(made.id)
    assert [(transition.transition, transition.actor) for transition in transitions] == [
        ("create", "python"),
        ("edit", "ada"),
        ("edit", "python"),
        ("edit", "python"),
    ]
    await timing.check()


async def test_an_edit_fences_off_a_concurrent_firing(timing: Timing) -> None:
    await timing.schedules.create("report", every=60, task="job")
    await timing.pass_(MINUTE)
    (task,) = await timing.claim(SCHEDULE)
    await timing.schedules.edit("report", every=3600)
    assert (await timing.firer.run(task)).verdict == "claim_lost"
    assert await timing.started() == []
    await timing.check()


async def test_a_paused_schedule_does_not_fire_and_catches_up_on_resume(timing: Timing) -> None:
    began = timing.clock.now()
    await timing.schedules.create("report", every=3600, task="job", overlap="allow", catch_up="all")
    paused = await timing.schedules.pause("report", actor="ada")
    assert (paused.state, paused.next_at) == ("paused", None)
    assert (await timing.schedules.pause("report")).version == paused.version
    await timing.turns(5 * HOUR, HOUR)
    assert await timing.started() == []
    assert (await timing.schedules.preview("report")).due.fire == [Instant.of(began + n * HOUR) for n in range(1, 6)]
    assert await timing.schedules.describe_recovery() == []  # by itself nothing will happen
    await timing.schedules.resume("report", actor="ada")
    await timing.settle_turns()
    assert await timing.ticks() == [as_text(began + n * HOUR) for n in range(1, 6)]
    await timing.schedules.resume("report")  # no-op
    await timing.check()


async def test_a_schedule_may_begin_paused(timing: Timing) -> None:
    made = await timing.schedules.create("report", every=60, task="job", paused=True)
    assert made.state == "paused"
    await timing.turns(2 * MINUTE, MINUTE)
    assert await timing.started() == []
    await timing.check()


async def test_a_removed_schedule_does_not_fire_and_frees_its_name(timing: Timing) -> None:
    await timing.schedules.create("report", every=60, task="job")
    removed = await timing.schedules.remove("report")
    assert removed.state == "removed"
    await timing.turns(2 * MINUTE, MINUTE)
    assert await timing.started() == []
    with pytest.raises(IllegalTransition):
        await timing.schedules.pause(removed.id)
    await timing.schedules.create("report", every=60, task="job")
    await timing.check()


async def test_run_now_starts_additional_work_and_keeps_the_ticks(timing: Timing) -> None:
    began = timing.clock.now()
    made = await timing.schedules.create("report", every=60, task="job", paused=True)
    started = await timing.schedules.run_now("report", actor="ada")
    assert (await timing.started())[0].id == started.id
    again = await timing.schedules.get("report")
    assert (again.cursor, again.fired) == (made.cursor, 1)
    *_, fire = await timing.store.log.list_transitions(made.id)
    assert (fire.transition, fire.actor, decode(fire.data)["started"]) == ("fire", "ada", [started.id])
    await timing.schedules.resume("report")
    await timing.turns(MINUTE, MINUTE)
    assert (await timing.schedules.get("report")).skipped == 1  # what was run by hand goes on
    assert Instant.of(began + MINUTE) == (await timing.schedules.get("report")).cursor
    await timing.check()


async def test_a_backfill_starts_missed_ticks_and_none_twice(timing: Timing) -> None:
    began = timing.clock.now()
    await timing.schedules.create("report", every=3600, anchor=timing.in_(0), task="job", overlap="allow", catch_up="skip")
    await timing.turns(2 * HOUR, HOUR)
    await timing.pass_(3 * HOUR + 30 * MINUTE)
    await timing.settle_turns()
    assert len(await timing.started()) == 2
    start, end = timing.in_(-6 * HOUR), timing.in_(0)
    would = await timing.schedules.backfill("report", start, end, dry_run=True)
    assert [each.tick.ms for each in would.started] == [began, *(began + n * HOUR for n in (3, 4, 5))]
    assert would.already == [Instant.of(began + HOUR), Instant.of(began + 2 * HOUR)]
    assert len(await timing.started()) == 2
    did = await timing.schedules.backfill("report", start, end)
    assert did.started == would.started
    assert len(await timing.started()) == 6
    again = await timing.schedules.backfill("report", start, end)
    assert (again.started, len(again.already)) == ([], 6)
    assert len(await timing.started()) == 6
    await timing.check()


async def test_concurrent_backfills_start_and_count_each_tick_once(timing: Timing) -> None:
    await timing.schedules.create("report", every=3600, anchor=timing.in_(0), task="job", paused=True)
    await timing.pass_(3 * HOUR + 30 * MINUTE)
    start, end = timing.in_(-4 * HOUR), timing.in_(0)
    done = await asyncio.gather(*(timing.schedules.backfill("report", start, end) for _ in range(3)))
    ticks = sorted(each.tick for did in done for each in did.started)
    assert ticks == sorted(done[0].ticks)
    assert all(len(did.started) + len(did.already) == len(did.ticks) for did in done)
    assert (await timing.schedules.get("report")).fired == len(ticks) == len(await timing.started())


async def test_catch_up_does_not_repeat_ticks_backfilled_while_paused(timing: Timing) -> None:
    await timing.flows.publish("daily", [("daily.afl", FLOW)])
    for kind in ({"task": "job"}, {"workflow": "time.Daily", "flow": "daily", "tick_as": "day"}):
        await timing.schedules.create("report", every=3600, overlap="allow", catch_up="all", paused=True, **kind)  # type: ignore[arg-type]
        await timing.pass_(3 * HOUR)
        await timing.schedules.backfill("report", timing.in_(-2 * HOUR), timing.in_(0))
        await timing.schedules.resume("report")
        await timing.settle_turns()
        await timing.schedules.remove("report")
    assert len(await timing.started()) == 3
    assert len(await timing.started("time.job")) == 3
    await timing.check()


async def test_repair_recreates_the_lost_task_of_a_schedule(timing: Timing) -> None:
    made = await timing.schedules.create("report", every=60, task="job")
    await timing.lose_task(made.task_id)
    await timing.turns(MINUTE, MINUTE)
    assert await timing.started() == []
    assert await timing.schedules.repair() == ["report"]
    assert await timing.schedules.repair() == []
    await timing.turn()
    assert len(await timing.started()) == 1


async def test_a_start_up_recomputes_ticks_after_a_change_of_time_zone_rules(
    timing: Timing, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await timing.schedules.create("report", cron="0 12 * * *", zone="Europe/Berlin", task="job")
    assert await timing.schedules.repair() == []
    monkeypatch.setattr("treadle.kernel.schedules.service.make_calendar", lambda _: make_cron("0 11 * * *", "Europe/Berlin"))
    assert await timing.schedules.repair() == ["report"]
    assert await timing.schedules.repair() == []
    schedule = await timing.schedules.get("report")
    task = await timing.store.tasks.find(schedule.task_id or "")
    assert task is not None
    assert made.next_at is not None
    assert task.wake_at == made.next_at.ms - HOUR
    await timing.check()


async def test_a_tick_fires_immediately_despite_a_concurrent_run_now(timing: Timing, monkeypatch: pytest.MonkeyPatch) -> None:
    began = timing.clock.now()
    await timing.schedules.create("report", every=60, task="job", overlap="allow")
    other = Timing(timing.store, timing.clock)
    prepare, ran = timing.starters.prepare, False

    async def slow(*arguments: Any, **options: Any) -> tuple[Started, Prepared]:
        nonlocal ran
        if not ran:
            ran = True
            await other.schedules.run_now("report")
        return await prepare(*arguments, **options)

    monkeypatch.setattr(timing.starters, "prepare", slow)
    await timing.pass_(MINUTE)
    (answer,) = await timing.turn()
    assert answer.verdict == "done"
    assert await timing.ticks() == [as_text(began + MINUTE)] * 2  # by hand and by itself
    schedule = await timing.schedules.get("report")
    assert (schedule.fired, schedule.cursor) == (2, Instant.of(began + MINUTE))
    await timing.check()


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"cron": "61 * * * *", "task": "job"}, InvalidSchedule, "minute"),
        ({"cron": "0 0 * * *", "zone": "Mars/Base", "task": "job"}, InvalidSchedule, "time zone"),
        ({"cron": "0 0 * * *", "every": 60, "task": "job"}, InvalidSchedule, "together"),
        ({"task": "job"}, InvalidSchedule, "needs one of them"),
        ({"every": 0.5, "task": "job"}, InvalidSchedule, "one second"),
        ({"every": -1, "task": "job"}, InvalidPolicy, "more than zero"),
        ({"at": datetime(2027, 1, 1), "task": "job"}, InvalidPolicy, "time zone"),
        ({"every": 60}, InvalidInput, "Name one target to start"),
        ({"every": 60, "task": "job", "workflow": "x"}, InvalidInput, "not task and workflow together"),
        ({"every": 60, "workflow": "x"}, InvalidInput, "published flow"),
        ({"every": 60, "task": "no good"}, InvalidName, "task name"),
        ({"every": 60, "task": "job", "catch_up": "some"}, InvalidSchedule, "skip, latest, all, window"),
        ({"every": 60, "task": "job", "catch_up": "window"}, InvalidSchedule, "catch_up_window"),
        ({"every": 60, "task": "job", "overlap": "maybe"}, InvalidSchedule, "allow, skip, queue, cancel"),
        ({"every": 60, "task": "job", "inputs": {"x": float("nan")}}, InvalidInput, "JSON"),
        ({"every": 60, "task": "job", "nonsense": 1}, InvalidInput, "has no option 'nonsense'"),
        ({"cron": "0 0 1 1 *", "end": datetime(2027, 2, 1, tzinfo=UTC), "task": "job"}, InvalidSchedule, "never fire"),
    ],
)
async def test_invalid_input_is_refused_without_effect(
    timing: Timing, options: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await timing.schedules.create("bad", **options)  # type: ignore[arg-type]
    assert (await timing.schedules.list(every=True)).schedules == []


async def test_names_are_unique_and_edits_are_checked(timing: Timing) -> None:
    made = await timing.schedules.create("report", every=60, task="job")
    with raises_code("schedule_exists", match="report"):
        await timing.schedules.create("report", every=60, task="job")
    with pytest.raises(InvalidSchedule):
        await timing.schedules.edit("report", cron="nonsense")
    with pytest.raises(InvalidInput, match="at least one option"):
        await timing.schedules.edit("report")
    assert (await timing.schedules.get("report")).version == made.version
    for act in (timing.schedules.pause, timing.schedules.remove, timing.schedules.run_now, timing.schedules.preview):
        with raises_code("schedule_not_found", match="nobody"):
            await act("nobody")
    with pytest.raises(InvalidInput, match="still to come"):
        await timing.schedules.backfill("report", timing.in_(0), timing.in_(HOUR))
    await timing.schedules.edit("report", cron="* * * * *")
    with pytest.raises(InvalidInput, match="split it"):
        await timing.schedules.backfill("report", timing.in_(-30 * DAY), timing.in_(0))


async def test_concurrent_edits_are_both_applied(timing: Timing, database: Database) -> None:
    await timing.schedules.create("report", every=60, task="job")
    await asyncio.gather(timing.schedules.edit("report", inputs={"n": 2}), timing.schedules.edit("report", overlap="allow"))
    schedule = await timing.schedules.get("report")
    assert (schedule.target.inputs, schedule.overlap) == ({"n": 2}, "allow")
    assert to_builtins(schedule)["overlap"] == "allow"
