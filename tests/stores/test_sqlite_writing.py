"""When the SQLite store writes, and when it does not: idle workers, its own checkpoints, other processes, threads."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import apsw
import pytest

from treadle.kernel.store.queries import Renewal
from treadle.kernel.store.units import Redrive, Seen, Unit, Verdict
from treadle.stores.sqlite import SqliteStore
from treadle.stores.sqlite.connection import connect
from treadle.stores.sqlite.connection.connect import read_value
from treadle.testing import ManualClock
from treadle_conformance.task_steps import (
    MINUTE,
    WORK,
    claim,
    claim_one,
    get,
    new_task,
    put,
    put_and_claim,
    put_one,
    requeue,
    settle,
    succeed,
)


def data_version(connection):
    """A number that changes whenever another connection changes the database."""
    return read_value(connection, "pragma data_version")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "treadle.db")


@pytest.fixture(params=[False, True], ids=["threads", "inline"])
async def store(request, path, clock):
    store = SqliteStore(path, clock=clock, inline=request.param)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def other(path, store):
    """Another process, as far as SQLite can tell."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(2000)
    yield connection
    connection.close()


async def test_an_idle_worker_takes_no_lock_and_writes_no_row(store, other, clock):
    await put_one(store, delay=MINUTE)
    before = data_version(other)
    other.execute("begin immediate")
    assert await claim(store) == []
    assert (await store.tasks.wake(10)).next_for == MINUTE
    taken = store.servers.lease_connection()
    assert await asyncio.to_thread(taken.renew, [], 1) == set()
    await store.notify([1])
    other.execute("rollback")
    assert data_version(other) == before


async def test_skipping_expired_leases_writes_no_row(store, other, clock):
    await put_and_claim(store)
    clock.advance(MINUTE)
    other.execute("begin immediate")
    woken = await store.tasks.wake(10, expire_leases=False)
    assert (woken.count, woken.next_for) == (0, None)
    other.execute("rollback")


async def test_the_log_is_written_back_when_it_has_grown(path, store, other, monkeypatch):
    monkeypatch.setattr(connect, "CHECKPOINT_PAGES", 20)
    for _ in range(30):
        await put(store, *[new_task() for _ in range(50)])
    await store.tasks.list_queues()
    pages, _ = other.wal_checkpoint()
    assert pages < 10 * 20


async def test_an_old_reader_only_delays_the_checkpoint(store, other, monkeypatch):
    monkeypatch.setattr(connect, "CHECKPOINT_PAGES", 20)
    other.execute("begin").fetchall()
    other.execute("select count(*) from tasks").fetchall()
    for _ in range(10):
        await put(store, *[new_task() for _ in range(50)])
    assert other.execute("select count(*) from tasks").fetchall() == [(0,)]
    other.execute("commit")
    for _ in range(10):
        await put(store, *[new_task() for _ in range(50)])
    assert (await store.health.describe())["live_tasks"] == 1000


@pytest.mark.parametrize(("free", "small"), [(100, True), (10**9, False)])
async def test_the_log_is_written_back_while_the_disk_has_space_for_it(store, monkeypatch, free, small):
    """A log that fills the disk could never be written back: that takes space in the file."""
    monkeypatch.setattr(connect, "LOOK_EVERY", 20)
    monkeypatch.setattr(connect.os, "statvfs", lambda path: SimpleNamespace(f_bavail=free, f_frsize=4096))
    for _ in range(30):
        await put(store, *[new_task() for _ in range(50)])
    assert ((await store.health.describe())["wal_size"] < 2_000_000) is small


async def test_a_very_long_log_is_cut(path, store, other, monkeypatch):
    monkeypatch.setattr(connect, "CHECKPOINT_PAGES", 50)
    monkeypatch.setattr(connect, "TRUNCATE_PAGES", 50)
    await put(store, *[new_task(payload='"' + "x" * 4000 + '"') for _ in range(400)])
    await put_one(store)
    assert (await store.health.describe())["wal_size"] < 100_000


async def test_a_blocked_event_loop_costs_no_leases(store, clock):
    taken = await put_and_claim(store, lease_for=MINUTE)
    clock.advance(MINUTE / 2000)
    line = store.servers.lease_connection()
    renewed: list[set[str]] = []
    thread = threading.Thread(target=lambda: renewed.append(line.renew([Renewal(taken.claim)], MINUTE)))
    thread.start()
    thread.join()  # nothing runs on this loop meanwhile
    assert renewed == [{taken.id}]
    assert (await get(store, taken.id)).wake_at == clock.now() + MINUTE


async def test_work_of_canceled_callers_is_skipped(path, clock):
    store = SqliteStore(path, clock=clock)
    await store.open()
    await put_one(store)
    queue_ids = list((await store.tasks.queue_ids([WORK])).values())
    gate = threading.Event()
    blocked = asyncio.create_task(store._database.writer.call(lambda connection: gate.wait()))
    await asyncio.sleep(0)
    claiming = asyncio.create_task(store.tasks.claim(queue_ids, "owner-1", MINUTE, 1))
    await asyncio.sleep(0)
    claiming.cancel()
    await asyncio.sleep(0)
    gate.set()
    await blocked
    assert (await claim_one(store)).claim_version == 1
    await store.close()


async def test_a_requested_commit_is_completed_before_closing(path, clock):
    store = SqliteStore(path, clock=clock)
    await store.open()
    committing = asyncio.create_task(put_one(store))
    await asyncio.sleep(0)
    await store.close()
    task = await committing
    await store.open()
    assert (await get(store, task.id)).id == task.id
    await store.close()


async def test_redriven_tasks_do_not_share_a_unique_key(store):
    ended = []
    for _ in range(2):
        taken = await put_and_claim(store, unique_key="k")
        await settle(store, taken.claim, succeed())
        ended.append(await get(store, taken.id))
    units = [Unit(Seen(task.id, task.version, task.claim_version), Redrive("requeue", "ann")) for task in ended]
    assert [answer.verdict for answer in await store.commit(units)] == [Verdict.DONE, Verdict.DONE]
    assert [(await get(store, task.id)).unique_key for task in ended] == ["k", None]


async def test_a_lost_unit_does_not_affect_other_units(store):
    await put(store, *[new_task() for _ in range(6)])
    tasks = await claim(store)
    await settle(store, tasks[1].claim, succeed())
    await settle(store, tasks[4].claim, requeue(tasks[4]))
    units = [Unit(task.claim, succeed('{"n":1}')) for task in tasks[:3]]
    units += [Unit(task.claim, requeue(task, "retry")) for task in tasks[3:]]
    answers = await store.commit(units)
    # the second had ended with that very transition; the fifth had waited, not been retried
    assert [answer.verdict for answer in answers] == ["done", "done", "done", "done", "claim_lost", "done"]
    assert [(await get(store, task.id)).state for task in tasks] == ["completed"] * 3 + ["pending"] * 3
    assert (await get(store, tasks[1].id)).result == "{}"


async def test_a_large_task_is_claimed_alone(store):
    await put(store, *[new_task(payload='"' + "x" * 100_000 + '"') for _ in range(8)])
    await store._database.writer.call(lambda connection: connection.limit(apsw.SQLITE_LIMIT_LENGTH, 250_000))
    taken = []
    while batch := await claim(store, limit=8):
        taken += batch
    assert len({task.id for task in taken}) == 8
    assert all(task.claim_version == 1 for task in taken)


async def test_one_enqueue_is_one_transaction_with_one_commit(path, clock):
    store = SqliteStore(path, clock=clock)
    await store.open()
    await put_one(store)  # the queue exists
    statements: list[str] = []

    def trace(cursor, statement, bindings):
        statements.append(statement.splitlines()[-1].split()[0])
        return True

    await store._database.writer.call(lambda connection: setattr(connection, "exec_trace", trace))
    await put_one(store)
    await store._database.writer.call(lambda connection: setattr(connection, "exec_trace", None))
    assert (statements.count("begin"), statements.count("commit")) == (1, 1)
    assert len(statements) <= 5
    await store.close()


async def test_hot_statements_are_prepared_once(path, clock):
    """SQLite asks the authorizer for each statement that it prepares."""
    store = SqliteStore(path, clock=clock)
    await store.open()
    prepared: list[str] = []

    def authorize(action, first, second, schema, source):
        prepared.append(f"{apsw.mapping_authorizer_function[action]} {first} {second}")
        return apsw.SQLITE_OK

    await store._database.writer.call(lambda connection: setattr(connection, "authorizer", authorize))
    for _ in range(3):
        prepared.clear()
        await put(store, new_task(), new_task(delay=1000))
        clock.advance(1)
        assert (await store.tasks.wake(10)).count == 1
        for task in await claim(store):
            await settle(store, task.claim, succeed())
    assert prepared == []
    await store.close()
