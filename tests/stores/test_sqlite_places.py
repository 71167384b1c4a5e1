"""Bad places for a SQLite file: each is refused with an error that says what to do, and nothing is changed there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from treadle.model.errors import (
    InvalidInput,
    InvalidStoreUrl,
    NotOpen,
    SchemaBehind,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnsafe,
)
from treadle.stores.sqlite import SqliteStore
from treadle.stores.sqlite.connection import connect
from treadle.testing import ManualClock
from treadle_conformance.task_steps import everything, new_task, put, put_and_claim, put_one, settle, succeed


def make(path: Path | str | None, *, inline: bool = False) -> SqliteStore:
    return SqliteStore(None if path is None else str(path), clock=ManualClock(), inline=inline)


@pytest.fixture(params=[False, True], ids=["threads", "inline"])
async def store(request, tmp_path):
    store = make(tmp_path / "treadle.db", inline=request.param)
    await store.open()
    yield store
    await store.close()


async def refused(path: Path, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        await make(path).open()


async def test_a_missing_directory_is_reported(tmp_path):
    await refused(tmp_path / "none" / "treadle.db", InvalidStoreUrl, "mkdir -p")
    assert list(tmp_path.iterdir()) == []


async def test_an_in_memory_store_of_another_process_is_refused():
    with pytest.raises(SchemaBehind, match="lives and ends with one process"):
        await make(None).open(migrate=False)


async def test_a_directory_as_the_path_is_refused(tmp_path):
    await refused(tmp_path, InvalidStoreUrl, "is a directory")


async def test_a_file_that_is_not_a_database_is_refused_and_unchanged(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n" * 100)
    await refused(path, InvalidStoreUrl, "not an SQLite database")
    assert path.read_text() == "remember the milk\n" * 100


async def test_a_damaged_file_is_reported(tmp_path):
    path = tmp_path / "treadle.db"
    store = make(path)
    await store.open()
    await put(store, *[new_task() for _ in range(200)])
    await store.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        await make(path).open()


async def test_an_unwritable_file_or_directory_is_reported(tmp_path, monkeypatch):
    path = tmp_path / "treadle.db"
    path.touch()
    monkeypatch.setattr(connect.os, "access", lambda what, mode: Path(what) != path)
    await refused(path, StoreReadOnly, "cannot be written")
    monkeypatch.setattr(connect.os, "access", lambda what, mode: Path(what) != tmp_path)
    await refused(path, StoreReadOnly, "directory")
    assert path.read_bytes() == b""


async def test_a_read_only_database_is_reported(store):
    await put_one(store)
    before = await everything(store)
    await store._database.writer.call(connect.refuse_writes)
    with pytest.raises(StoreReadOnly, match="write access"):
        await put_one(store)
    assert await everything(store) == before


async def test_a_file_locked_by_another_process_is_reported(store, tmp_path, monkeypatch):
    await put_one(store)
    before = await everything(store)
    monkeypatch.setattr(connect, "BUSY_FOR", 20)
    other = apsw.Connection(str(tmp_path / "treadle.db"))
    other.execute("begin immediate")
    with pytest.raises(StoreBusy, match="locked"):
        await put_one(store)
    assert await everything(store) == before
    other.execute("rollback")
    await put_one(store)
    other.close()


async def test_a_file_locked_at_opening_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(connect, "BUSY_FOR", 20)
    other = apsw.Connection(str(tmp_path / "treadle.db"))
    other.execute("begin exclusive; create table other (id)")
    await refused(tmp_path / "treadle.db", StoreBusy, "locked")
    other.close()


async def test_a_full_disk_is_reported(store):
    taken = await put_and_claim(store)
    before = await everything(store)
    await store._database.writer.call(lambda connection: connection.pragma("max_page_count", connection.pragma("page_count")))
    with pytest.raises(StoreFull, match="free some space"):
        await put(store, *[new_task(payload='"' + "x" * 10_000 + '"') for _ in range(20)])
    assert await everything(store) == before
    await store._database.writer.call(lambda connection: connection.pragma("max_page_count", 1_000_000))
    assert await settle(store, taken.claim, succeed()) == "done"


async def test_rows_that_violate_a_constraint_are_reported(store):
    taken = await put_and_claim(store)
    before = await everything(store)
    with pytest.raises(InvalidInput, match="nothing was written"):
        await settle(store, taken.claim, succeed().__class__("succeed", "no such state"))
    assert await everything(store) == before


async def test_calls_on_a_closed_store_raise(tmp_path):
    store = make(tmp_path / "treadle.db")
    with pytest.raises(NotOpen, match="open"):
        await put_one(store)
    await store.close()
    await store.open()
    await put_one(store)
    line = store.servers.lease_connection()
    await store.close()
    for use in (lambda: line.held([]), lambda: line.renew([], 1) or line.held([])):
        with pytest.raises(NotOpen, match="open"):
            use()
    with pytest.raises(NotOpen, match="open"):
        await put_one(store)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused(tmp_path, kind):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {str(tmp_path).replace(' ', chr(92) + '040')} {kind} rw 0 0\n")
    with pytest.raises(StoreUnsafe, match=f"network file system.*{kind}"):
        connect.check_place(tmp_path / "treadle.db", mounts=mounts)


def test_the_file_system_of_a_directory_is_that_of_the_mount_nearest_to_it(tmp_path):
    (tmp_path / "a b").mkdir()
    mounts = tmp_path / "mounts"
    root = tmp_path.resolve()
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nx {root}/a\\040b xfs rw 0 0\ny {root}/a nfs rw 0 0\n")
    assert connect.file_system(tmp_path / "a b", mounts) == "xfs"
    assert connect.file_system(tmp_path, mounts) == "ext4"
    assert connect.file_system(tmp_path, tmp_path / "none") is None


OPEN_AND_PUT = """
import asyncio, sys
from treadle_conformance.task_steps import WORK
from treadle.kernel.store.units import Unit
from treadle.model.tasks import NewTask
from treadle.stores.sqlite import SqliteStore
from treadle.testing import ManualClock

async def main():
    store = SqliteStore(sys.argv[1], clock=ManualClock())
    await store.open()
    for number in range(20):
        await store.commit([Unit(tasks=(NewTask(id=f"{sys.argv[2]}-{number}", queue=WORK),))])
    await store.close()

asyncio.run(main())
"""


async def test_many_processes_may_create_and_use_one_file_concurrently(tmp_path):
    path = tmp_path / "treadle.db"
    command = [sys.executable, "-c", OPEN_AND_PUT, str(path)]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(5)]  # noqa: ASYNC220
    assert [process.wait() for process in processes] == [0] * 5
    store = make(path)
    await store.open(migrate=False)
    assert (await store.health.describe())["live_tasks"] == 100
    await store.close()
