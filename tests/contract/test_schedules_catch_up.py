"""Catch-up under every overlap policy: the preview, the dry run of a recovery and the actual outcome are the same ticks."""

from __future__ import annotations

import random
import re
from datetime import timedelta
from itertools import product

import pytest
from tests.contract.databases import StoreClock
from tests.contract.timing import MINUTE, SECOND, Timing

from treadle.kernel.store.ports import Store
from treadle.model.clock import as_text

CATCH_UPS = ("skip", "latest", "all", "window")
OVERLAPS = ("allow", "skip", "queue", "cancel")


@pytest.fixture
def timing(store: Store, clock: StoreClock) -> Timing:
    return Timing(store, clock)


async def _downtime(timing: Timing, name: str, *, busy: bool, down_for: int, **options: object) -> tuple[int, list[str]]:
    """Fire one tick, finish its work unless `busy`, let time pass; return the number of started tasks and their ids."""
    made = await timing.schedules.create(name, task=name, **options)  # type: ignore[arg-type]
    await timing.pass_((made.next_at.ms if made.next_at else 0) - timing.clock.now())
    await timing.turn()
    (first,) = await timing.started(name)
    if not busy:
        await timing.finish([first.id])
    await timing.pass_(down_for)
    return 1, [first.id]


async def _run_all(timing: Timing, name: str) -> int:
    """Finish the work of the schedule until nothing waits; return the largest number of tasks that were live together."""
    most = 0
    for _ in range(200):
        await timing.turn()
        live = [task for task in await timing.started(name) if not task.finished]
        most = max(most, len(live))
        if not live and (await timing.schedules.get(name)).waiting is None:
            return most
        await timing.finish([task.id for task in live])
        await timing.turn()
        if not [task for task in await timing.started(name) if not task.finished]:
            await timing.pass_(SECOND)
    raise AssertionError("the schedule never finished catching up")


def _cases(count: int) -> list[dict[str, object]]:
    """Every combination of the policies, each with `count` random amounts; the same in every run."""
    drawn = random.Random(16)
    cases = []
    for catch_up, overlap, busy, _ in product(CATCH_UPS, OVERLAPS, (False, True), range(count)):
        case: dict[str, object] = {"catch_up": catch_up, "overlap": overlap, "busy": busy}
        case |= {"every": drawn.choice((300, 3600)), "grace": drawn.choice((0, 60, 120, 2000, 10_000))}
        case |= {"catch_up_limit": drawn.choice((1, 3, 100))}
        case["down_for"] = drawn.choice((0, 10 * SECOND, 150 * SECOND, 20 * MINUTE, 70 * MINUTE, 200 * MINUTE))
        if catch_up == "window":
            case["catch_up_window"] = drawn.choice((30, 700, 5000))
        cases.append(case)
    return cases


async def test_the_preview_the_dry_run_and_the_outcome_are_the_same_ticks(timing: Timing) -> None:
    each = 1 if timing.store.url.startswith("postgresql") else 2
    for number, case in enumerate(_cases(each)):
        name = f"job{number}"
        before, _ = await _downtime(timing, name, **case)  # type: ignore[arg-type]
        preview = await timing.schedules.preview(name)
        recoveries = {each.name: each for each in await timing.schedules.describe_recovery()}
        promised = [as_text(tick.ms) for tick in preview.due.fire]
        if preview.due.fire or preview.due.skipped:
            found = recoveries[name]
            assert ([*found.fires], found.missed) == (
                [tick.ms for tick in preview.due.fire],
                len(promised) + preview.due.skipped,
            ), case
            told = re.match(r"(\d+) tick\(s\) are due; (\d+|none) will fire: (.*)", found.text)
            assert told is not None
            assert told.groups() == (str(found.missed), str(len(promised) or "none"), preview.policy), case
        else:
            assert name not in recoveries
        skipped = (await timing.schedules.get(name)).skipped
        most = await _run_all(timing, name)
        assert (await timing.ticks(name))[before:] == promised, case
        schedule = await timing.schedules.get(name)
        assert (schedule.skipped - skipped, schedule.fired) == (preview.due.skipped, before + len(promised)), case
        if case["overlap"] != "allow":
            assert most <= 1, case
        assert name not in {each.name for each in await timing.schedules.describe_recovery()}
        await timing.schedules.remove(name)
    await timing.check()


@pytest.mark.parametrize("overlap", ["skip", "queue"])
@pytest.mark.parametrize("busy", [False, True])
async def test_all_missed_ticks_run_one_after_another(timing: Timing, overlap: str, busy: bool) -> None:
    before, _ = await _downtime(timing, "job", busy=busy, down_for=125 * MINUTE, every=600, overlap=overlap, catch_up="all")
    began = timing.clock.now()
    assert len((await timing.schedules.preview("job")).due.fire) == 12
    assert await _run_all(timing, "job") == 1
    ticks = await timing.ticks("job")
    assert len(ticks) == before + 12
    assert ticks == sorted(ticks)
    assert timing.clock.now() - began < 10 * MINUTE


@pytest.mark.parametrize("overlap", OVERLAPS[1:])
async def test_the_defaults_fire_the_newest_of_the_due_ticks(timing: Timing, overlap: str) -> None:
    before, _ = await _downtime(timing, "job", busy=False, down_for=125 * SECOND, every=10, overlap=overlap)
    preview = await timing.schedules.preview("job")
    assert (len(preview.due.fire), preview.due.skipped) == (1, 11)
    assert preview.due.fire[0] == preview.ticks[0] - timedelta(seconds=10)
    await _run_all(timing, "job")
    assert len(await timing.ticks("job")) == before + 1


async def test_a_pause_keeps_the_backlog_and_a_resume_continues_it_immediately(timing: Timing) -> None:
    before, _ = await _downtime(timing, "job", busy=False, down_for=72 * 60 * MINUTE + MINUTE, every=86_400, catch_up="all")
    await timing.turn()
    await timing.schedules.pause("job")
    assert len((await timing.schedules.preview("job")).due.fire) == 2
    await timing.schedules.resume("job")
    assert await _run_all(timing, "job") == 1
    assert len(await timing.ticks("job")) == before + 3


async def test_new_times_drop_the_backlog(timing: Timing) -> None:
    await _downtime(timing, "job", busy=False, down_for=61 * MINUTE, every=600, catch_up="all")
    await timing.turn()
    assert len((await timing.schedules.get("job")).backlog) == 4
    edited = await timing.schedules.edit("job", every=7200)
    assert (edited.waiting, edited.backlog) == (None, [])
