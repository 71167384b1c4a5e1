"""Claims while somebody holds an old snapshot open: cheap, nothing missed, order kept within a second."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.limits import BOUND

from treadle.kernel.store.units import Unit
from treadle.model.names import QueueKey
from treadle.model.tasks import NewTask, Task
from treadle.stores.postgres import PostgresStore
from treadle.stores.postgres.tasks import CHECK_EVERY, FRONT_EVERY
from treadle.stores.statements import load_statements
from treadle.testing import ManualClock, SeededIds

QUEUE = QueueKey("default", "handler", "default", "work")
ids = SeededIds()


class HeldOpen:
    """Answers that there is, or is no, old snapshot; everything else goes to the real connection."""

    def __init__(self, old: bool) -> None:
        self.old = old
        self.asked = 0

    async def fetchval(self, _: str) -> bool:
        self.asked += 1
        return self.old


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(postgres_url: str, clock: ManualClock) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, clock=clock)
    await store.open()
    yield store
    await store.close()


async def put(store: PostgresStore, count: int, priority: int = 0) -> list[str]:
    tasks = tuple(NewTask(id=ids.new_id(), queue=QUEUE, priority=priority) for _ in range(count))
    await store.commit([Unit(tasks=tasks)])
    return [task.id for task in tasks]


async def take(store: PostgresStore, limit: int = 2) -> list[Task]:
    queue_ids = list((await store.tasks.queue_ids([QUEUE])).values())
    return await store.tasks.claim(queue_ids, "owner", 60_000, limit)


async def test_positions_are_used_only_while_a_snapshot_is_old(store: PostgresStore, clock: ManualClock) -> None:
    places, connection = store.tasks._positions, HeldOpen(old=False)
    assert await places.after(connection, [1]) is None  # type: ignore[arg-type]
    assert connection.asked == 0
    took = [Task(id="x", queue_id=1, priority=3, due_at=70)]
    places.took(took)
    assert await places.after(connection, [1]) is None  # type: ignore[arg-type]
    clock.advance(CHECK_EVERY)
    connection.old = True
    places.took(took)
    assert await places.after(connection, [1]) is None  # type: ignore[arg-type]  # the look from the front is due
    assert await places.after(connection, [1]) == [(3, 70)]  # type: ignore[arg-type]
    assert await places.after(connection, [2, 1]) == [(-(2**31), 0), (3, 70)]  # type: ignore[arg-type]
    clock.advance(FRONT_EVERY)
    assert await places.after(connection, [1]) is None  # type: ignore[arg-type]
    assert await places.after(connection, [1]) == [(3, 70)]  # type: ignore[arg-type]
    assert connection.asked == 2
    clock.advance(CHECK_EVERY)
    await places.after(connection, [1])  # type: ignore[arg-type]
    assert connection.asked == 2, "nothing was taken since, so there is nothing to walk over"


async def test_tasks_before_the_claim_position_are_claimed_within_a_second_and_none_is_missed(
    store: PostgresStore, clock: ManualClock
) -> None:
    first = await put(store, 4)
    assert [task.id for task in await take(store)] == first[:2]
    store.tasks._positions._held_open, store.tasks._positions._checked_at = True, clock.monotonic()
    store.tasks._positions._front_at = clock.monotonic()
    urgent = await put(store, 1, priority=-5)
    assert [task.id for task in await take(store)] == first[2:]  # from the place on
    assert [task.id for task in await take(store)] == urgent  # nothing after it: from the front
    await put(store, 3)
    late = await put(store, 1, priority=-5)
    clock.advance(FRONT_EVERY)
    assert [task.id for task in await take(store)] == late


async def test_the_database_reports_whether_a_snapshot_is_old(store: PostgresStore) -> None:
    """Another test on the same server may hold a snapshot for long, so the statement is also asked before and after."""
    await put(store, 3)
    await take(store)
    statement = load_statements("treadle.stores.postgres", "tasks.sql")["is_snapshot_old"]
    connection = await store._database.connector.connect({}, timeout=BOUND)
    before = await connection.fetchval(statement)
    await take(store)
    told = store.tasks._positions._held_open
    assert told in {before, await connection.fetchval(statement)}
    await connection.close()
