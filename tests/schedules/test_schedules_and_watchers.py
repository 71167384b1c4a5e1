"""Schedules and watchers with real workers, on every store: tasks, workflows and functions are started, and done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.limits import BOUND

from treadle import Engine
from treadle.api.schedules import Schedule
from treadle.engine.codecs import Zlib
from treadle.kernel.store.process import SystemClock
from treadle.settings import Settings

T = TypeVar("T")


@pytest.fixture(params=ALL)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with make_engine(url_of(request.param, request, tmp_path)) as opened:
        yield opened


def past(seconds: float = 3600) -> datetime:
    return datetime.fromtimestamp(SystemClock().now() // 1000, UTC) - timedelta(seconds=seconds)


async def until(look: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """The items, once the condition holds."""
    async with asyncio.timeout(BOUND):
        while True:
            found = await look()
            if holds(found):
                return found
            await asyncio.sleep(0.02)


async def ended(engine: Engine, name: str) -> Schedule:
    """A schedule that fires once, once it has."""
    page = await until(
        lambda: engine.schedules.list(every=True),
        lambda page: any((each.name, each.state) == (name, "finished") for each in page.schedules),
    )
    return next(each for each in page.schedules if each.name == name)


@pytest.mark.postgres
async def test_a_schedule_starts_a_task_a_function_and_a_workflow(engine: Engine):
    @engine.handler("report")
    async def report(payload: Any) -> dict[str, Any]:
        return {"for": payload["tick"]}

    @engine.function("nightly")
    async def nightly(payload: Any, ctx: Any) -> dict[str, Any]:
        return {"for": payload["day"], "n": payload["n"]}

    await engine.kernel.flows.publish("daily", [("daily.afl", FLOW)])
    at = past()
    text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    async with engine.worker():
        await engine.schedules.create("one", at=at, task="report")
        await engine.schedules.create("two", at=at, function="nightly", inputs={"n": 2}, tick_as="day")
        await engine.schedules.create("three", at=at, workflow="daily.Daily", flow="daily", tick_as="tick")
        (task,) = (await ended(engine, "one")).recent
        assert await engine.result(task.id or "", timeout=BOUND) == {"for": text}
        (run,) = (await ended(engine, "two")).recent
        assert await engine.run_result(run.id or "", timeout=BOUND) == {"for": text, "n": 2}
        (run,) = (await ended(engine, "three")).recent
        assert await engine.run_result(run.id or "", timeout=BOUND) == {"for": text}
    assert (await engine.kernel.verify()).problems == ()


FLOW = """
namespace daily {
    event facet report(tick: String) => (for: String)

    workflow Daily(tick: String) => (for: String) andThen {
        one = report(tick = $.tick)
        yield Daily(for = one.for)
    }
}
"""


async def test_a_function_that_sleeps_is_canceled_by_the_next_tick(engine: Engine):
    @engine.function("slow")
    async def slow(payload: Any, ctx: Any) -> None:
        await ctx.sleep(3600)

    async with engine.worker():
        await engine.schedules.create("often", every=1, function="slow", overlap="cancel")
        await until(lambda: engine.schedules.get("often"), lambda found: found.fired >= 2)
        await engine.schedules.pause("often")
        recent = (await engine.schedules.get("often")).recent
        first, second = [each for each in recent if each.id][:2]  # a tick that came late is listed without a run
        assert (await engine.kernel.runs.get_run(first.id or "")).state == "canceled"
        await engine.runs.cancel(second.id or "")
    assert (await engine.kernel.verify()).problems == ()


async def test_a_continued_function_still_counts_as_running_for_overlap(engine: Engine):
    @engine.function("loop")
    async def loop(payload: Any, ctx: Any) -> None:
        if payload.get("round", 0) < 2:
            await ctx.continue_as_new({"round": payload.get("round", 0) + 1})
        await ctx.sleep(3600)

    async def sleeping() -> list[Any]:
        runs = await engine.kernel.run_reads.list_runs(workflow="loop")
        return [run for run in runs if run.state == "running" and '"round":2' in run.inputs]

    async with engine.worker():
        await engine.schedules.create("often", every=1, function="loop", overlap="skip")
        await until(lambda: engine.schedules.get("often"), lambda found: found.skipped >= 1)
        assert (await engine.schedules.get("often")).fired == 1
        (first,) = await until(sleeping, lambda found: len(found) == 1)
        await engine.schedules.edit("often", overlap="cancel")
        await until(lambda: engine.schedules.get("often"), lambda found: found.fired >= 2)
        await engine.schedules.pause("often")
        assert (await engine.kernel.runs.get_run(first.id)).state == "canceled"
    assert (await engine.kernel.verify()).problems == ()


async def test_a_watcher_starts_a_function_for_a_file(engine: Engine, tmp_path: Path):
    @engine.function("import")
    async def import_file(payload: Any, ctx: Any) -> dict[str, Any]:
        return {"name": payload["change"]["name"], "size": payload["change"]["size"]}

    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "a.csv").write_text("1;2")
    async with engine.worker():
        await engine.watchers.create("inbox", directory=str(inbox), existing="new", every=1, settle=0.5, function="import")
        watcher = await until(lambda: engine.watchers.get("inbox"), lambda found: found.fired == 1)
        run_id = watcher.recent[0].id
        assert await engine.run_result(run_id or "", timeout=BOUND) == {"name": "a.csv", "size": 3}
    assert (await engine.kernel.verify()).problems == ()


async def test_a_recovery_dry_run_describes_missed_ticks(engine: Engine):
    await engine.schedules.create("report", at=past(), task="report")
    found = await engine.kernel.recovery.recover(dry_run=True)
    (missed,) = found.others["schedules"]
    assert (missed.name, missed.text.split(";")[0]) == ("report", "1 tick(s) are due")
    assert "1 will fire" in missed.text
    assert found.others["watchers"] == []
    assert await engine.kernel.reads.list_tasks(kind="handler") == []


async def test_encoded_triggers_are_unreadable_but_harmless_without_the_codec(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'treadle.db'}"
    async with Engine(url, settings=Settings(), codec=Zlib()) as encoded:
        await encoded.schedules.create("report", at=past(), task="report", inputs={"secret": "x" * 100})
        await encoded.watchers.create("inbox", directory=str(tmp_path), task="report")
        assert (await encoded.schedules.get("report")).target.inputs == {"secret": "x" * 100}
    async with make_engine(url) as plain:
        for service in (plain.schedules, plain.watchers):
            assert await service.repair() == await service.describe_recovery() == []
        (watcher,) = (await plain.watchers.list()).watchers
        for shown in (await plain.schedules.get("report"), watcher):
            assert shown.state == "unreadable"
            assert "codec" in str(shown.error)
            assert "x" * 100 not in str(shown)
