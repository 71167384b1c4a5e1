"""Events for readers: every transition once and at once, in a resumable order, also when commits overtake one another (D9)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from tests.engines import ALL, SHARED, make_engine, url_of
from tests.limits import BOUND

from treadle import Engine
from treadle.kernel.reads.events import GIVE_UP_FOR, LOOK_BACK, Events
from treadle.model.errors import InvalidInput
from treadle.settings import Settings
from treadle.testing import ManualClock


@pytest.fixture(params=ALL)
async def engine(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Engine]:
    async with make_engine(url_of(request.param, request, tmp_path)) as made:
        yield made


async def take(events: Events, count: int) -> list[Any]:
    async with asyncio.timeout(BOUND):
        return [await anext(events) for _ in range(count)]


async def cancel_one(engine: Engine) -> str:
    task = await engine.enqueue("work")
    await engine.cancel(task)
    return task.id


@pytest.mark.postgres
async def test_events_after_a_seq_are_delivered_in_order(engine):
    ids = [await cancel_one(engine) for _ in range(5)]
    events = engine.events(after=0)
    transitions = await take(events, 5)
    assert [transition.entity_id for transition in transitions] == ids
    assert events.last_gap_free == transitions[-1].seq
    again = engine.events(after=transitions[2].seq)
    assert [transition.entity_id for transition in await take(again, 2)] == ids[3:]


async def test_a_reader_without_a_position_gets_only_new_events(engine):
    await cancel_one(engine)
    async with engine.events() as events:
        new = await cancel_one(engine)
        assert [transition.entity_id for transition in await take(events, 1)] == [new]


async def test_a_waiting_reader_is_notified_immediately(engine):
    async with engine.events() as events:
        waiting = asyncio.create_task(take(events, 1))
        await asyncio.sleep(0)
        task_id = await cancel_one(engine)
        (transition,) = await waiting
    assert (transition.entity_id, transition.transition, transition.to_state) == (task_id, "cancel", "canceled")


@pytest.mark.parametrize("kind", SHARED)
async def test_events_of_another_process_are_delivered(request, tmp_path, kind):
    url = url_of(kind, request, tmp_path)
    async with make_engine(url) as reader, make_engine(url) as writer, reader.events() as events:
        task_id = await cancel_one(writer)
        assert [transition.entity_id for transition in await take(events, 1)] == [task_id]


async def test_events_are_filtered_by_entity_id_root_and_entity(engine):
    first, second = await cancel_one(engine), await cancel_one(engine)
    assert [transition.entity_id for transition in await take(engine.events(after=0, entity_id=second), 1)] == [second]
    assert [transition.entity_id for transition in await take(engine.events(after=0, root_id=first), 1)] == [first]
    assert [transition.entity for transition in await take(engine.events(after=0, entity="task"), 2)] == ["task", "task"]
    other = engine.events(after=0, entity="run")
    waiting = asyncio.create_task(anext(other))
    await asyncio.sleep(0.05)  # the absence of an event takes time
    assert not waiting.done()
    other.close()
    with pytest.raises(StopAsyncIteration):
        await waiting


@pytest.mark.parametrize("kind", SHARED)
async def test_events_of_other_namespaces_are_not_delivered(request, tmp_path, kind):
    url = url_of(kind, request, tmp_path)
    async with make_engine(url) as ours, make_engine(url, namespace="theirs") as theirs:
        await cancel_one(theirs)
        own = await cancel_one(ours)
        assert [transition.entity_id for transition in await take(ours.events(after=0), 1)] == [own]


async def test_the_resume_seq_never_passes_an_undelivered_event(engine):
    for _ in range(3):
        await cancel_one(engine)
    events = engine.events(after=0)
    for _ in range(3):
        (transition,) = await take(events, 1)
        assert events.last_gap_free <= transition.seq or not events._ready
        resumed = await take(engine.events(after=events.last_gap_free), 1) if events._ready else []
        assert all(later.seq > transition.seq for later in resumed)
    assert events.last_gap_free == transition.seq


async def test_many_pages_are_delivered_completely(engine, monkeypatch):
    monkeypatch.setattr("treadle.kernel.reads.events.PAGE", 7)
    ids = [await cancel_one(engine) for _ in range(30)]
    assert [transition.entity_id for transition in await take(engine.events(after=0), 30)] == ids


async def test_an_invalid_seq_is_refused(engine):
    with pytest.raises(InvalidInput):
        engine.events(after=-1)


async def test_a_dropped_reader_leaves_no_subscription(engine):
    await cancel_one(engine)
    events = engine.events(after=0)
    async for _ in events:
        break
    hooks = len(engine.kernel.committer.on_ready)
    del events
    gc.collect()
    assert len(engine.kernel.committer.on_ready) == hooks - 1


# --- commits out of order, on PostgreSQL ---


class Late:
    """A transaction that has its number but is not committed."""

    def __init__(self, server: str, schema: str, task_id: str, version: int = 1) -> None:
        self._connection = psycopg.connect(server)
        self._connection.execute(f"set search_path to {schema}")
        row = self._connection.execute(
            "insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state) "
            "values (nextval('treadle_seq'), treadle_now(), 'task', %s, %s, 'wait', 'pending', 'pending') returning seq",
            (task_id, version),
        ).fetchone()
        assert row is not None
        self.seq = row[0]

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.rollback()
        self._connection.close()


@pytest.fixture
async def pg(postgres_url: str) -> AsyncIterator[tuple[Engine, ManualClock]]:
    clock = ManualClock()
    async with Engine(postgres_url, settings=Settings(), clock=clock) as made:
        yield made, clock


async def until_sleeping(clock: ManualClock) -> None:
    async with asyncio.timeout(BOUND):
        while not clock.sleeping:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_transition_committed_late_is_delivered_exactly_once(pg, postgres_server, postgres_schema):
    engine, clock = pg
    live = await engine.enqueue("work")
    before = await cancel_one(engine)
    late = Late(postgres_server, postgres_schema, live.id)
    after = await cancel_one(engine)
    events = engine.events(after=0)
    transitions = await take(events, 2)
    assert [transition.entity_id for transition in transitions] == [before, after]
    assert events.last_gap_free == transitions[0].seq < late.seq < transitions[1].seq
    waiting = asyncio.create_task(take(events, 1))
    await until_sleeping(clock)
    late.commit()
    clock.advance(1)
    (transition,) = await waiting
    assert (transition.seq, transition.entity_id) == (late.seq, live.id)
    assert events.last_gap_free == transitions[1].seq
    resumed = await take(engine.events(after=transitions[0].seq), 2)
    assert [each.seq for each in resumed] == [late.seq, transitions[1].seq]


async def test_a_gap_is_abandoned_after_15_seconds(pg, postgres_server, postgres_schema):
    engine, clock = pg
    live = await engine.enqueue("work")
    late = Late(postgres_server, postgres_schema, live.id)
    await cancel_one(engine)
    events = engine.events(after=0)
    (transition,) = await take(events, 1)
    assert events.last_gap_free == late.seq - 1
    late.rollback()
    waiting = asyncio.create_task(take(events, 1))
    await until_sleeping(clock)
    clock.advance(GIVE_UP_FOR / 1000)
    second = await cancel_one(engine)
    (last,) = await waiting
    assert last.entity_id == second
    assert events.last_gap_free == last.seq > transition.seq


async def test_a_new_reader_gets_uncommitted_transitions_with_a_smaller_seq(pg, postgres_server, postgres_schema):
    engine, _ = pg
    live = await engine.enqueue("work")
    late = Late(postgres_server, postgres_schema, live.id)
    await cancel_one(engine)
    assert late.seq < LOOK_BACK
    async with engine.events() as events:
        late.commit()
        assert [transition.seq for transition in await take(events, 1)] == [late.seq]


async def test_overtaking_commits_of_many_writers_are_all_seen_once(pg, postgres_server, postgres_schema):
    engine, clock = pg
    tasks = [await engine.enqueue("work") for _ in range(12)]
    late = [Late(postgres_server, postgres_schema, task.id) for task in tasks]
    ended = [await cancel_one(engine) for _ in range(3)]
    events = engine.events(after=0)
    seen = await take(events, 3)
    order = [7, 2, 11, 0, 5, 4, 10, 1, 9, 3, 8, 6]
    for number in order:
        late[number].commit()
        waiting = asyncio.create_task(take(events, 1))
        while not waiting.done():
            clock.advance(0.5 if clock.sleeping else 0)
            await asyncio.sleep(0.005)
        seen += await waiting
    assert [transition.seq for transition in seen[3:]] == [late[number].seq for number in order]
    assert {transition.entity_id for transition in seen[:3]} == set(ended)
    assert events.last_gap_free == max(transition.seq for transition in seen)
