"""The last hour by minute, and rates by handler, as `/pace` and `/handler-rates` report them from metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contract.databases import DATABASES
from tests.metrics.test_roll_ups import QUEUES, Scene

from treadle.kernel.metrics import service
from treadle.kernel.metrics.throughput import ThroughputReads
from treadle.kernel.store.metrics import HOUR, MINUTE
from treadle.model.names import QueueKey
from treadle_conformance.task_steps import claim_one, put_one, settle, succeed


@pytest.fixture(params=["memory", "postgres"])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = Scene(DATABASES[request.param](request, tmp_path))
    await made.open()
    yield made
    await made.close()


def reads_of(scene: Scene) -> ThroughputReads:
    """New reads, whose first answer is not a cached one."""
    return ThroughputReads(scene.metrics._core, scene.metrics)


async def test_the_last_hour_is_counted_by_minute_whether_rolled_up_or_not(scene: Scene) -> None:
    clock = scene.database.clock
    await scene.work(QUEUES[0], "ann", "succeed", 0, 0)
    await clock.advance(HOUR)
    for _ in range(10):
        await scene.work(QUEUES[0], "ann", "succeed", 700, 0)
        await clock.advance(MINUTE - 700)
        await scene.roll_up()
    await scene.work(QUEUES[1], "bob", "fail", 0, 0)
    await scene.work(QUEUES[1], "bob", "retry", 0, 0)
    hour = await reads_of(scene).last_hour()
    assert len(hour.minutes) == 60
    assert [minute.completed for minute in hour.minutes[-11:]] == [1] * 10 + [0]
    assert sum(minute.completed for minute in hour.minutes) == 10, "not the one before"
    assert (hour.minutes[-1].failed, hour.minutes[-1].retried, hour.minutes[-2].waited_for) == (1, 1, 700)
    assert (hour.since_at.ms, hour.counted_at.ms) == (scene.now // MINUTE * MINUTE - 59 * MINUTE, scene.now)


async def test_concurrent_callers_share_a_read_for_two_seconds(scene: Scene) -> None:
    reads = reads_of(scene)
    first = await reads.last_hour()
    await scene.work(QUEUES[0], "ann", "succeed", 0, 0)
    assert await reads.last_hour() is first


async def test_rates_are_counted_by_handler_with_median_and_95th_percentile(scene: Scene) -> None:
    for run in [*range(1, 20), 5000]:
        await scene.work(QUEUES[0], "ann", "succeed", 0, run)
    await scene.work(QUEUES[0], "ann", "fail", 0, 10)
    other = QueueKey("other", "handler", "default", "a")
    await put_one(scene.store, other)
    await settle(scene.store, (await claim_one(scene.store, other)).claim, succeed())
    await put_one(scene.store, QUEUES[0])
    await claim_one(scene.store, QUEUES[0])
    await put_one(scene.store, QUEUES[1])
    await claim_one(scene.store, QUEUES[1])
    a, b = (await reads_of(scene).rates()).rates
    assert (a.name, a.kind, a.started, a.finished, a.failed, a.running) == ("a", "handler", 22, 21, 1, 1)
    assert a.median_for in range(10, 12)
    assert a.p95_for in range(18, 20)
    assert (b.name, b.started, b.finished, b.running, b.median_for) == ("b", 1, 0, 1, None)


async def test_a_busy_store_states_the_time_up_to_which_it_is_counted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TAIL_ROWS", 5)
    for _ in range(9):
        await scene.work(QUEUES[0], "ann", "succeed", 0, 1000)
    hour = await reads_of(scene).last_hour()
    assert sum(minute.completed for minute in hour.minutes) == 5
    assert hour.counted_at.ms == scene.now - 4000
