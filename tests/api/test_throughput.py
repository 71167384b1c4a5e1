"""How fast work gets done, as callers are told."""

from __future__ import annotations

import pytest
from tests.api.conftest import Scene

from treadle.model.errors import TaskFailed


async def test_the_throughput_counts_outcomes_of_tasks_in_each_minute(scene: Scene):
    async with scene.engine.worker():
        assert await scene.engine.result(await scene.engine.enqueue("greet", {"name": "Ada"}))
        with pytest.raises(TaskFailed):
            await scene.engine.result(await scene.engine.enqueue("fail", {}, retry=0))
    pace = await scene.api.system.pace()
    assert len(pace.minutes) == 60
    assert pace.since_at <= pace.minutes[0].at
    counts = [(each.completed, each.failed, each.retried) for each in pace.minutes]
    assert [sum(column) for column in zip(*counts, strict=True)] == [1, 1, 0]
