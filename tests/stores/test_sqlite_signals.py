"""Signals between processes that share a SQLite file: the sockets beside it, who may use them, and the fallback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import stat
import threading

import apsw
import pytest
from tests.limits import BOUND

from treadle import Engine
from treadle.kernel.store.ports import CHANGED
from treadle.kernel.store.units import Unit
from treadle.settings import Settings
from treadle.stores.sqlite import SqliteStore
from treadle.stores.sqlite.caller_transaction.store import open_caller_transaction
from treadle.stores.sqlite.connection import sockets
from treadle.testing import ManualClock
from treadle_conformance.signals import Heard
from treadle_conformance.task_steps import WORK, claim_one, new_task, put_one, settle, succeed


@pytest.fixture
def path(tmp_path):
    return tmp_path / "treadle.db"


@pytest.fixture
def place(tmp_path):
    return tmp_path / "treadle.db-signals"


@pytest.fixture
async def open_store(path):
    opened = []

    async def open_one(at=path, *, inline=False):
        store = SqliteStore(str(at), clock=ManualClock(), inline=inline)
        await store.open()
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store):
    return await open_store()


def leave_dead_socket(place):
    """Put the socket of a process that has ended without removing it into the directory."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead, contextlib.chdir(place):  # addresses are short
        dead.bind("0123456789abcdef")
    return place / "0123456789abcdef"


async def test_only_the_owner_of_the_store_may_send(store, place):
    stop = await store.subscribe(Heard())
    (found,) = place.iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_ISSOCK(found.stat().st_mode)
    assert stat.S_IMODE(found.stat().st_mode) == 0o600
    stop()


async def test_permission_to_write_the_database_includes_sending_signals(store, path, place):
    path.chmod(0o660)
    stop = await store.subscribe(Heard())
    (found,) = place.iterdir()
    assert (stat.S_IMODE(place.stat().st_mode), stat.S_IMODE(found.stat().st_mode)) == (0o770, 0o660)
    stop()


async def test_the_last_listener_removes_the_directory(store, open_store, place):
    other = await open_store()
    stop = await store.subscribe(Heard())
    stop_other = await other.subscribe(Heard())
    assert len(list(place.iterdir())) == 2
    stop()
    assert len(list(place.iterdir())) == 1
    stop_other()
    assert not place.exists()


async def test_closing_the_store_ends_its_listening(open_store, place):
    store = await open_store()
    await store.subscribe(Heard())
    await store.close()
    assert not place.exists()


async def test_a_sender_removes_the_socket_of_a_crashed_process(store, open_store, place):
    heard = Heard()
    stop = await store.subscribe(heard)
    dead = leave_dead_socket(place)
    await (await open_store()).notify([7])
    await heard.until(7)
    assert not dead.exists()
    stop()


async def test_a_new_listener_removes_the_socket_of_a_crashed_process(store, place):
    place.mkdir(0o700)
    dead = leave_dead_socket(place)
    stop = await store.subscribe(Heard())
    assert not dead.exists()
    stop()
    assert not place.exists()


async def test_the_socket_of_a_living_process_stays(store, open_store, place):
    stop = await store.subscribe(Heard())
    (mine,) = place.iterdir()
    other = await open_store()
    stop_other = await other.subscribe(Heard())
    await other.notify([1])
    assert mine.exists()
    stop()
    stop_other()


async def test_paths_longer_than_a_socket_address_work(tmp_path, open_store):
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    first, second = await open_store(folder / "treadle.db"), await open_store(folder / "treadle.db")
    heard = Heard()
    stop = await first.subscribe(heard)
    await second.notify([3])
    await heard.until(3)
    stop()


async def test_names_of_one_file_share_the_sockets(tmp_path, path, open_store):
    first = await open_store()
    (tmp_path / "link.db").symlink_to(path)
    second = await open_store(tmp_path / "link.db")
    heard = Heard()
    stop = await first.subscribe(heard)
    await second.notify([3])
    await heard.until(3)
    stop()


@pytest.mark.parametrize("kind", ["link", "open", "file"])
async def test_a_directory_that_others_may_write_is_not_used(kind, store, open_store, tmp_path, place, monkeypatch, caplog):
    monkeypatch.setattr(sockets, "POLL_EVERY", 0.0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "link":
        place.symlink_to(elsewhere)
    elif kind == "open":
        place.mkdir()
        place.chmod(0o777)
    else:
        place.touch()
    heard = Heard()
    with caplog.at_level(logging.WARNING):
        stop = await store.subscribe(heard)
    assert "polling for their work every second" in caplog.text
    await (await open_store()).notify([5])
    await heard.until(5)  # it takes it that anything may have happened
    stop()
    assert not list(elsewhere.iterdir())


async def test_a_lagging_reader_assumes_that_every_queue_changed(store, open_store):
    heard = Heard()
    stop = await store.subscribe(heard)
    other = await open_store()
    for queue_id in range(1, 1000):
        await other.notify([queue_id])  # the loop of the reader does not run meanwhile
    await heard.until(999)
    assert () in heard.queues
    stop()


async def test_a_payload_that_is_not_ours_means_anything(store, place):
    heard = Heard()
    stop = await store.subscribe(heard)
    (mine,) = place.iterdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger, contextlib.chdir(place):
        stranger.sendto(b"\xff\x00rubbish", mine.name)
    await heard.until(1)
    assert heard.queues == [()]
    stop()


async def test_the_end_of_a_task_is_a_change_for_other_processes(store, open_store):
    await put_one(store)
    task = await claim_one(store)
    heard = Heard()
    stop = await (await open_store()).subscribe(heard)
    await settle(store, task.claim, succeed())
    await heard.until(CHANGED)
    stop()


async def test_a_commit_signals_other_processes_before_its_caller_has_the_answer(store, open_store):
    """The event loop of the caller may be busy: here it only runs on when the signal has arrived."""
    heard = Heard()
    stop = await (await open_store()).subscribe(heard)
    queue_id = (await store.tasks.queue_ids([WORK]))[WORK]
    arrived = threading.Event()
    send = store._signals.send
    store._signals.send = lambda queue_ids: (send(queue_ids), arrived.set())
    committing = asyncio.ensure_future(store.commit([Unit(tasks=(new_task(),))]))
    await asyncio.sleep(0)
    assert arrived.wait(BOUND)
    assert not committing.done()
    assert (await committing)[0].is_signaled
    await heard.until(queue_id)
    stop()


async def test_a_caller_transaction_sends_no_signal_before_it_commits(store, open_store):
    heard = Heard()
    stop = await (await open_store()).subscribe(heard)
    async with open_caller_transaction(store, ManualClock()) as transaction:
        (answer,) = await transaction.commit([Unit(tasks=(new_task(),))])
        assert not answer.is_signaled
    assert heard.queues == []
    stop()


async def test_signals_do_not_reach_their_sender_twice(store, open_store):
    mine, other = Heard(), Heard()
    stops = [await store.subscribe(mine), await (await open_store()).subscribe(other)]
    await store.notify([4])
    await other.until(4)
    await store.notify([5])
    await mine.until(5)
    assert mine.queues == [(4,), (5,)]
    for stop in stops:
        stop()


async def test_a_subscription_may_end_in_another_thread(store, place):
    stop = await store.subscribe(Heard())
    thread = threading.Thread(target=stop)
    thread.start()
    await asyncio.to_thread(thread.join, BOUND)
    await asyncio.sleep(0)  # the loop removes the socket
    assert not place.exists()


async def test_signals_recover_from_a_deleted_directory(store, open_store, place):
    stop = await store.subscribe(Heard())
    (mine,) = place.iterdir()
    mine.unlink()
    place.rmdir()
    await (await open_store()).notify([1])
    stop()
    heard = Heard()
    stop = await store.subscribe(heard)
    await (await open_store()).notify([2])
    await heard.until(2)
    stop()


async def test_a_store_without_listeners_has_no_directory(store, place):
    await store.notify([1])
    await put_one(store)
    assert not place.exists()


async def test_memory_has_no_sockets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = SqliteStore(None, clock=ManualClock())
    await store.open()
    heard = Heard()
    stop = await store.subscribe(heard)
    await store.notify([1])
    await heard.until(1)
    stop()
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_listening_costs_no_statement(path, monkeypatch):
    """A listener sends nothing to the database, and a worker that never polls gets its task through the signal alone."""
    statements: list[str] = []

    def trace(cursor, statement, bindings):
        statements.append(statement)
        return True

    started = asyncio.Event()
    worker_engine = Engine(f"sqlite:///{path}", settings=Settings(poll_interval=BOUND))

    @worker_engine.handler("stamp")
    async def stamp():
        started.set()

    caller = Engine(f"sqlite:///{path}", settings=Settings())
    async with caller:
        await caller.kernel.store.tasks.queue_ids([WORK])
        apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", trace))
        try:
            await worker_engine.open()
        finally:
            apsw.connection_hooks.pop()
        try:
            store = worker_engine.kernel.store
            heard = Heard()
            stop = await store.subscribe(heard)
            await store.now()
            statements.clear()
            await caller.kernel.store.notify([1])
            await heard.until(1)
            assert statements == []
            stop()
            async with worker_engine.worker():
                await caller.enqueue("stamp")
                await asyncio.wait_for(started.wait(), BOUND)
        finally:
            await worker_engine.close()
