"""Numbers of finished tasks: counted, or estimated without statistics, and never in another state than their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from treadle.kernel.store.queries import FinishedCounts
from treadle.kernel.store.units import Finish, Unit
from treadle.stores.postgres import PostgresStore, tasks
from treadle.testing import ManualClock
from treadle_conformance.task_steps import claim, new_task

ENDS = {
    "failed": (Finish("fail", "failed", error='{"code": "spoiled"}', error_code="spoiled", fingerprint="spoiled"), 900),
    "canceled": (Finish("cancel", "canceled"), 60),
    "completed": (Finish("succeed", "completed", result="{}"), 40),
}
"""A storm of failures: the last tasks of a partition that nobody has analyzed."""

NUMBERS = {state: number for state, (_, number) in ENDS.items()}


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, clock=ManualClock())
    await store.open()
    for settlement, number in ENDS.values():
        await store.commit([Unit(tasks=tuple(new_task() for _ in range(number)))])
        held = await claim(store, limit=number)
        await store.commit([Unit(task.claim, settlement) for task in held])
    yield store
    await store.close()


async def test_a_storm_of_failures_is_counted(store: PostgresStore) -> None:
    assert await store.tasks.count_finished() == FinishedCounts(NUMBERS)


async def test_an_estimate_without_statistics_has_each_state(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "COUNT_LIMIT", -1)
    assert await store.tasks.count_finished() == FinishedCounts(NUMBERS, exact=False)


async def test_an_estimate_from_a_sample_moves_no_task_to_another_state(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "COUNT_LIMIT", -1)
    monkeypatch.setattr(tasks, "SAMPLE", 400)
    async with store._database.borrow(None) as connection:
        await connection.execute("analyze finished")
    most: Counter[str] = Counter()
    for _ in range(20):
        counts, exact = await store.tasks.count_finished()
        assert not exact
        assert counts.keys() <= NUMBERS.keys()
        assert counts["failed"] >= NUMBERS["failed"]
        most |= Counter(counts)
    assert most.keys() == NUMBERS.keys()
    assert all(most[state] <= 6 * number for state, number in NUMBERS.items())
