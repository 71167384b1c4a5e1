"""Roll-ups have exactly what random histories did, whenever they are made, and whatever crashes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.databases import Database, Postgres, SqliteMemory

from treadle.api.metrics import MetricSeries
from treadle.kernel.core import Core
from treadle.kernel.metrics import service
from treadle.kernel.metrics.decide import bucket_of, quantile
from treadle.kernel.metrics.service import Metrics
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.metrics import DAY, HOUR, MINUTE, MetricFilter
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import SystemClock, arm
from treadle.kernel.store.units import Redrive
from treadle.model.names import ENGINE_LIST, METRICS, QueueKey
from treadle.model.tasks import Server
from treadle_conformance.task_steps import cancel, claim_one, fail, get, new_task, put, put_one, requeue, seen, settle, succeed

QUEUES = [
    QueueKey("default", "handler", task_list, name) for task_list, name in (("default", "a"), ("default", "b"), ("mail", "a"))
]
RELEASES = {"ann": "r1", "bob": "r2", "cyd": ""}
EVER = 10**15


class Crash(Exception):
    """Ends a roll-up at a failpoint."""


@dataclass
class Expected:
    """The outcomes of a series, attempt by attempt."""

    outcomes: list[str] = field(default_factory=list)
    took: list[int] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)


@dataclass
class Scene:
    """A store, its metrics in tiny pages, and what they have to show by property and minute."""

    database: Database
    store: Store = field(init=False)
    committer: Committer = field(init=False)
    metrics: Metrics = field(init=False)
    expected: dict[tuple[str, str, int], Expected] = field(default_factory=dict)

    async def open(self) -> None:
        self.store = await self.database.open_store()
        unused = cast(Any, None)
        self.committer = Committer(self.store, SystemClock())
        self.metrics = Metrics(Core(self.store, self.committer, unused, unused, SystemClock()))
        for owner, release in RELEASES.items():
            server = Server(id=owner, name=owner, host="h", pid=1, version="1", state="running", release=release)
            await self.store.servers.save(server)

    async def close(self) -> None:
        await self.committer.close()
        await self.database.close()

    @property
    def now(self) -> int:
        return self.database.clock.now()

    def expect(
        self, queue: QueueKey, release: str, at: int, outcome: str, took: int | None = None, waited: int | None = None
    ) -> None:
        for by, label in (("handler", queue.name), ("queue", queue.task_list), ("release", release), ("all", "")):
            series = self.expected.setdefault((by, label, at // MINUTE * MINUTE), Expected())
            series.outcomes.append(outcome)
            series.took += [took] * (took is not None)
            series.waited += [waited] * (waited is not None)

    async def work(self, queue: QueueKey, owner: str, how: str, wait: int, run: int) -> None:
        release = RELEASES[owner]
        await put_one(self.store, queue)
        await self.database.clock.advance(wait)
        task, began = await claim_one(self.store, queue, owner=owner), self.now
        await self.database.clock.advance(run)
        if how == "retry":
            await settle(self.store, task.claim, requeue(task, "retry", attempt=2))
            self.expect(queue, release, self.now, "started")
            self.expect(queue, release, self.now, "retried")
            await settle(self.store, seen(await get(self.store, task.id)), cancel())
            self.expect(queue, "", self.now, "canceled")
            return
        self.expect(queue, release, began, "started")
        await settle(self.store, task.claim, succeed() if how == "succeed" else fail())
        self.expect(queue, release, self.now, "completed" if how == "succeed" else "failed", run, wait)
        if how == "redrive":
            await self.database.clock.advance(service.SETTLE_FOR)
            await self.roll_up()  # an end that is retried before counts without its attempt
            await settle(self.store, seen(await get(self.store, task.id)), Redrive("requeue", "ann"))
            task = await claim_one(self.store, queue, owner=owner)
            self.expect(queue, release, self.now, "started")
            await settle(self.store, task.claim, succeed())
            self.expect(queue, release, self.now, "completed", 0)

    async def roll_up(self, crash: str = "") -> None:
        def passed(point: str) -> None:
            if point == crash:
                raise Crash

        queue = QueueKey("default", METRICS, ENGINE_LIST, METRICS)
        await put(self.store, new_task(queue))
        task = await claim_one(self.store, queue)
        arm(passed)
        try:
            await self.metrics.roll_up(task)
        except Crash:
            await settle(self.store, task.claim, cancel())
        finally:
            arm(None)

    async def check(self) -> None:
        for by in ("handler", "queue", "release", "all"):
            expected = {(label, at): counts for (this, label, at), counts in self.expected.items() if this == by}
            since = min((at for _, at in expected), default=0)
            points, counted_at = await self.metrics.read(MetricFilter("default", since, EVER, MINUTE, MINUTE, by))
            assert counted_at == self.now
            shown = {key: counts for key, counts in points.items() if counts.started + counts.finished + counts.retried}
            assert shown.keys() == {(at, label) for label, at in expected}
            for (label, at), what in expected.items():
                counts = shown[at, label]
                for outcome in ("started", "completed", "failed", "canceled", "retried"):
                    assert getattr(counts, outcome) == what.outcomes.count(outcome), (by, label, at, outcome)
                for histogram, durations in ((counts.durations, what.took), (counts.waits, what.waited)):
                    assert sum(histogram.values()) == len(durations)
                    for part in (0.5, 0.95, 0.99) if durations else ():
                        exact = sorted(durations)[ceil(part * len(durations)) - 1]
                        assert bucket_of(quantile(histogram, part) or 0) == bucket_of(exact)
                assert counts.waited_for == max(what.waited, default=0)


durations = st.integers(0, 50) | st.integers(0, 200_000)
steps = st.lists(
    st.tuples(
        st.just("work"),
        st.sampled_from(QUEUES),
        st.sampled_from(list(RELEASES)),
        st.sampled_from(["succeed", "fail", "retry", "redrive"]),
        durations,
        durations,
    )
    | st.tuples(st.just("advance"), st.integers(1, 120_000))
    | st.tuples(st.just("roll_up"), st.sampled_from(["", "", "metrics.before_commit", "metrics.after_commit"])),
    max_size=15,
)


async def play(database: Database, history: list[Any]) -> None:
    scene = Scene(database)
    await scene.open()
    try:
        await replay(scene, history)
    finally:
        await scene.close()


async def replay(scene: Scene, history: list[Any]) -> None:
    database = scene.database
    for what, *arguments in history:
        await (database.clock.advance if what == "advance" else getattr(scene, what))(*arguments)
    await scene.check()
    await database.clock.advance(service.SETTLE_FOR)
    await scene.roll_up()
    assert (await scene.store.metrics.find_page(await scene.store.metrics.find_cursor(), 10, 0)).size == 0
    await scene.check()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


LIMITS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(autouse=True)
def tiny_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PAGE_ROWS", 3)


@pytest.mark.parametrize("examples", [25, pytest.param(1000, marks=pytest.mark.soak)])
def test_random_histories_are_rolled_up_exactly(request: pytest.FixtureRequest, tmp_path: Path, examples: int) -> None:
    """No history, and no crash of a roll-up, loses or repeats a transition."""

    @settings(max_examples=examples, **LIMITS)  # type: ignore[arg-type]
    @given(steps)
    def check(history: list[Any]) -> None:
        run(play(SqliteMemory(request, tmp_path), history))

    check()


@pytest.mark.parametrize("examples", [5, pytest.param(200, marks=pytest.mark.soak)])
def test_random_histories_are_rolled_up_exactly_on_postgresql(
    request: pytest.FixtureRequest, tmp_path: Path, examples: int
) -> None:
    """No history, and no crash of a roll-up, loses or repeats a transition."""
    schemas = request.getfixturevalue("schemas")

    @settings(max_examples=examples, **LIMITS)  # type: ignore[arg-type]
    @given(steps)
    def check(history: list[Any]) -> None:
        database = Postgres(request, tmp_path, schema=schemas.take())
        try:
            run(play(database, history))
        finally:
            schemas.give_back(database.name)

    check()


@given(st.integers(0, 10**10), st.lists(st.integers(0, 10**7), min_size=1), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_bucket_is_at_most_a_quarter_wider_than_its_least_duration(duration: int, values: list[int], part: float) -> None:
    least = bucket_of(duration)
    assert bucket_of(least) == least <= duration
    assert duration < max(least * 1.25, least + 1)
    histogram: dict[int, int] = {}
    for value in values:
        histogram[bucket_of(value)] = histogram.get(bucket_of(value), 0) + 1
    exact = sorted(values)[ceil(part * len(values)) - 1]
    assert abs((quantile(histogram, part) or 0) - exact) <= 0.25 * exact


@pytest.fixture(params=["sqlite", "postgres"])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    database = (SqliteMemory if request.param == "sqlite" else Postgres)(request, tmp_path)
    made = Scene(database)
    await made.open()
    yield made
    await made.close()


async def test_each_step_is_kept_for_its_time(scene: Scene) -> None:
    clock = scene.database.clock
    first = scene.now
    for _ in range(2):
        await scene.work(QUEUES[0], "ann", "succeed", 0, 0)
        await clock.advance(service.SETTLE_FOR)
        await scene.roll_up()
        await clock.advance(3 * DAY)

    async def count(step_for: int) -> int:
        rows = await scene.store.metrics.list_matching(MetricFilter("default", 0, EVER, step_for, DAY, "all"))
        return sum(row[3] for row in rows)

    await scene.roll_up()
    assert [await count(step) for step in (MINUTE, HOUR, DAY)] == [0, 2, 2]
    await clock.advance(40 * DAY)
    await scene.roll_up()
    assert [await count(step) for step in (MINUTE, HOUR, DAY)] == [0, 0, 2]
    report = await scene.metrics.series(since=None)
    assert report.series == []
    report = await scene.metrics.series(since=datetime.fromtimestamp((first - DAY) / 1000, UTC))
    (series,) = report.series
    assert (report.step_for, series.name, series.total.completed) == (DAY, "a", 2), "the only step that is kept that long"


async def test_an_outage_is_caught_up_in_bounded_pages(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PAGES", 2)
    for _ in range(10):
        await scene.work(QUEUES[0], "ann", "succeed", 0, 0)
    await scene.database.clock.advance(service.SETTLE_FOR)
    last, cursors = await scene.store.log.find_last_seq(), []
    for _ in range(3):
        await scene.roll_up()
        cursors.append(await scene.store.metrics.find_cursor())
        await scene.check()
    assert [last - cursor for cursor in cursors] == [4, 0, 0], "six transitions at a time"


async def test_an_idle_store_is_left_alone_for_longer(scene: Scene) -> None:
    async def delay() -> int:
        queue = QueueKey("default", METRICS, ENGINE_LIST, METRICS)
        await put(scene.store, new_task(queue))
        task = await claim_one(scene.store, queue)
        await scene.metrics.roll_up(task)
        return ((await get(scene.store, task.id)).wake_at or 0) - scene.now

    assert await delay() == service.IDLE_EVERY_FOR
    await scene.work(QUEUES[0], "ann", "succeed", 0, 0)
    await scene.database.clock.advance(service.SETTLE_FOR)
    assert await delay() == service.EVERY_FOR
    assert await delay() == service.IDLE_EVERY_FOR
    await put_one(scene.store, QUEUES[0])
    assert await delay() == service.EVERY_FOR, "depths are sampled while there is work"


async def test_depths_and_ages_are_those_of_each_minute(scene: Scene) -> None:
    await put_one(scene.store, QUEUES[0])
    await put_one(scene.store, QUEUES[2])
    await scene.database.clock.advance(90_000)
    await scene.roll_up()
    (series,) = (await scene.metrics.series(by="all")).series
    assert (series.total.depth, series.total.oldest_for) == (2, 90_000)
    by_list = {series.name: series.total.depth for series in (await scene.metrics.series(by="queue")).series}
    assert by_list == {"default": 1, "mail": 1}


async def test_a_report_names_the_releases_and_filters_by_them(scene: Scene) -> None:
    for owner in ("ann", "ann", "bob"):
        await scene.work(QUEUES[0], owner, "succeed", 10, 1000)
    await scene.work(QUEUES[1], "bob", "fail", 10, 1000)
    await scene.database.clock.advance(service.SETTLE_FOR)
    await scene.roll_up()
    report = await scene.metrics.series(by="release")
    names = [(series.name, series.total.completed, series.total.failed) for series in report.series]
    assert names == [("r1", 2, 0), ("r2", 1, 1)]
    assert [each.release for each in report.releases] == ["r1", "r2"]
    (series,) = (await scene.metrics.series(release="r2", name="b")).series
    assert (series.name, series.total.failed, series.total.median_for) == ("b", 1, 1099)
    limited: list[MetricSeries] = (await scene.metrics.series(limit=1)).series
    assert [series.name for series in limited] == ["a"]
