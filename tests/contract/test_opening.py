"""Opening: the schema is brought up to date, refused, or left alone; closing loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from treadle.model.errors import SchemaBehind, SchemaTooNew, StoreUnavailable
from treadle.model.states import TaskState
from treadle.testing import ManualClock
from treadle_conformance.task_steps import claim_one, everything, get, put_and_claim, put_one, requeue, settle, succeed

pytestmark = pytest.mark.new_schema

reachable = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
"""For tests that need a second way to the database: one in memory has none."""


async def test_opening_makes_the_schema(store):
    await put_one(store)
    assert (await claim_one(store)).claim_version == 1


@reachable
async def test_reopening_a_store_keeps_its_tasks(database, store):
    task = await put_one(store)
    await store.close()
    again = await database.open_store()
    assert (await get(again, task.id)).id == task.id


@reachable
async def test_opening_without_migrating_raises_when_the_schema_is_behind(database):
    with pytest.raises(SchemaBehind):
        await database.open_store(migrate=False)
    assert database.schema() == []


@reachable
async def test_opening_without_migrating_takes_a_schema_that_is_up_to_date(database, store):
    """The store is not refused, and takes a task."""
    await store.close()
    again = await database.open_store(migrate=False)
    await put_one(again)


@reachable
@pytest.mark.parametrize("migrate", [True, False])
async def test_a_schema_that_is_too_new_is_refused_and_not_changed(database, store, migrate):
    await put_one(store)
    await store.close()
    database.execute("update treadle_schema set version = 99")
    before = [database.schema(), *[database.rows(table) for table in ("treadle_schema", "tasks", "queues")]]
    with pytest.raises(SchemaTooNew):
        await database.make_store().open(migrate=migrate)
    assert [database.schema(), *[database.rows(table) for table in ("treadle_schema", "tasks", "queues")]] == before


@reachable
async def test_migrations_go_up_down_and_up_again(database, store):
    (version,) = [row["version"] for row in database.rows("treadle_schema")]
    made = database.schema()
    await store.migrate_to(0)
    left = [entry for entry in database.schema() if "treadle_schema" not in entry[1]]
    assert left == []
    await store.migrate_to(version)
    assert database.schema() == made
    await store.close()
    again = await database.open_store(migrate=False)
    await put_one(again)
    assert (await claim_one(again)).claim_version == 1


@reachable
async def test_the_view_and_the_state_of_external_jobs_go_down_and_up_again(database, store):
    made = database.schema()
    task = await put_and_claim(store)
    await settle(store, task.claim, requeue(task, state=TaskState.AWAITING_EXTERNAL))
    await store.migrate_to(2)
    assert database.rows("external_production_records_view") == []
    assert [row["state"] for row in database.rows("tasks")] == ["pending"]
    with pytest.raises(Exception, match=r"(?i)check"):
        database.execute("update tasks set state = 'awaiting_external'")
    await store.migrate_to(1)
    assert not any("external" in str(name) for _, name, *_ in database.schema())
    await store.migrate_to(3)
    assert database.schema() == made
    database.execute("update tasks set state = 'awaiting_external'")


@reachable
async def test_migrating_to_an_unknown_version_is_refused(database, store):
    with pytest.raises(SchemaTooNew):
        await store.migrate_to(99)


@reachable
async def test_two_stores_can_open_a_new_database_concurrently(database):
    first, second = await asyncio.gather(database.open_store(), database.open_store())
    task = await put_one(first)
    assert (await get(second, task.id)).id == task.id


async def test_a_store_can_be_closed_twice(store):
    """The second close raises nothing."""
    await store.close()
    await store.close()


@reachable
async def test_an_unclosed_store_loses_no_commit(database, store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, succeed('{"a":1}'))
    await put_one(store)
    other = await database.open_store()
    assert await everything(other) == await everything(store)


async def test_a_store_describes_itself(store):
    described = await store.health.describe()
    assert described["kind"] in ("sqlite", "postgresql")
    assert described["schema_version"] >= 1
    assert store.url
    assert store.parallel_commits >= 1


async def test_the_store_reports_its_clock_in_milliseconds(store, clock):
    assert await store.now() == clock.now()
    await clock.advance(1)
    assert await store.now() == clock.now()


async def test_a_postgresql_that_cannot_be_reached_is_unavailable(tmp_path):
    from treadle.stores.postgres import PostgresStore

    store = PostgresStore(f"postgresql://postgres@/postgres?host={tmp_path}", clock=ManualClock())
    with pytest.raises(StoreUnavailable):
        await store.open()
    await store.close()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_the_clock_of_postgresql_can_be_offset(database):
    store = database.make_store()
    await store.open()
    real = await store.now()
    await store.set_clock_offset(3_600_000)
    assert 3_600_000 <= await store.now() - real < 3_660_000
    await store.set_clock_offset(0)
    assert 0 <= await store.now() - real < 60_000
    await store.close()
