"""Promises of the PostgreSQL store beyond the contract."""

from __future__ import annotations

import pytest
from tests.crash.scene import until

from treadle.stores.postgres.servers import SETTLED_AFTER
from treadle_conformance.limits import admitted, put_limited
from treadle_conformance.servers import a_server
from treadle_conformance.signals import Heard
from treadle_conformance.task_steps import WORK, in_order

pytestmark = pytest.mark.parametrize("database", ["postgres"], indirect=True)


async def test_a_wake_uses_free_slots(database, store):
    tasks = await put_limited(store, 4, limit=2)
    database.execute("update tasks set blocked_by = 1")
    woken = await store.tasks.wake(10)
    assert len(woken.queue_ids) == 1
    assert sorted(await admitted(store)) == sorted(in_order(tasks[:2]))


async def test_a_subscriber_in_another_process_is_notified(database, store):
    second = await database.open_store()
    queue_id = (await store.tasks.queue_ids([WORK]))[WORK]
    heard = Heard()
    stop = await second.subscribe(heard)
    await store.notify([queue_id])
    await heard.until(queue_id)
    stop()


async def test_a_session_shows_whether_its_process_lives(database, store):
    """The second process judges once its own session is some seconds old."""
    other = await database.open_store()
    for server_id, of in (("s-1", store), ("s-2", other)):
        await of.servers.save(a_server(id=server_id))
        await of.servers.acquire_liveness_lock(server_id)

    async def seen_by(watcher):
        return {each.server_id: each.has_session for each in await watcher.servers.list_sightings()}

    assert await seen_by(other) == {"s-1": None, "s-2": None}
    for each in (store, other):
        each._database.clock.advance(SETTLED_AFTER)
    assert await seen_by(other) == {"s-1": True, "s-2": True}
    await other.servers.save(a_server(id="s-3"))
    assert (await seen_by(other))["s-3"] is None  # it has never had one
    database.execute("update registered_servers set session = '1' where id = 's-1'")
    assert (await seen_by(other))["s-1"] is None  # that was before the database restarted
    await store.servers.acquire_liveness_lock("s-1")
    assert (await seen_by(other))["s-1"] is True
    await store.servers.release_liveness_lock("s-1")
    assert (await seen_by(other))["s-1"] is False
    await store.servers.acquire_liveness_lock("s-1")
    assert (await seen_by(other))["s-1"] is True
    await store.close()
    assert await seen_by(other) == {"s-1": False, "s-2": True, "s-3": None}


async def test_a_reopened_session_declares_no_server_dead_at_first(database, store):
    await store.servers.save(a_server(id="s-1"))
    await store.servers.acquire_liveness_lock("s-1")
    store._database.clock.advance(SETTLED_AFTER)
    assert [each.has_session for each in await store.servers.list_sightings()] == [True]
    heard = Heard()
    stop = await store.subscribe(heard)
    database.execute("update registered_servers set session = null")
    own = f"application_name = '{database.name}'"  # other tests have sessions, too
    locks = "pg_locks join pg_stat_activity using (pid)"
    database.execute(f"select pg_terminate_backend(pid) from {locks} where locktype = 'advisory' and objsubid = 1 and {own}")
    await until(lambda: store._listener._connection.is_closed())
    store._database.clock.advance(1)

    async def is_back():
        if store._listener._connection.is_closed():  # it waits before it connects again; later, time would settle the new session
            store._database.clock.advance(0.1)
        return (await store.servers.list_all())[0].session is not None

    await until(is_back)
    assert [each.has_session for each in await store.servers.list_sightings()] == [None]
    store._database.clock.advance(SETTLED_AFTER + 1)  # not less, by the sum of fractions
    assert [each.has_session for each in await store.servers.list_sightings()] == [True]
    stop()
