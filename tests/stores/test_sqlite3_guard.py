"""Python's `sqlite3` is kept away from a file that a store of the same process has open."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

from treadle.model.errors import StoreFileInUse
from treadle.stores.sqlite import SqliteStore, connect_for_reading
from treadle.stores.sqlite.connection.connect import connect
from treadle.testing import ManualClock
from treadle_conformance.task_steps import new_task, put

WAYS: dict[str, Callable[[Path], sqlite3.Connection]] = {
    "text": lambda path: sqlite3.connect(str(path)),
    "bytes": lambda path: sqlite3.connect(os.fsencode(path)),
    "a path": sqlite3.connect,
    "a URI": lambda path: sqlite3.connect(f"file:{path}?mode=ro", uri=True),
    "a URI with an authority": lambda path: sqlite3.connect(path.as_uri(), uri=True),
    "a relative path": lambda path: sqlite3.connect(os.path.relpath(path)),
    "a link": lambda path: sqlite3.connect(_linked(path)),
    "the class": lambda path: sqlite3.Connection(str(path)),
}


def _linked(path: Path) -> Path:
    link = path.with_name("link.db")
    link.symlink_to(path)
    return link


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_second_sqlite_library_is_refused_while_a_store_is_open(way: Callable[[Path], sqlite3.Connection], tmp_path: Path):
    path = tmp_path / "a store.db"
    store = SqliteStore(str(path), clock=ManualClock())
    await store.open()
    await put(store, new_task())
    with pytest.raises(StoreFileInUse, match="connect_for_reading"):
        way(path)
    await store.close()
    with closing(sqlite3.connect(path)) as allowed:
        assert allowed.execute("select count(*) from tasks").fetchone() == (1,)


def counted_elsewhere(path: Path) -> str:
    script = f"import sqlite3; print(sqlite3.connect({str(path)!r}).execute('select count(*) from tasks').fetchone()[0])"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


async def test_other_files_memory_and_other_processes_are_unaffected(tmp_path: Path):
    path = tmp_path / "treadle.db"
    store = SqliteStore(str(path), clock=ManualClock())
    await store.open()
    await put(store, new_task())
    for database in (":memory:", "", tmp_path / "other.db", "file::memory:?cache=shared"):
        sqlite3.connect(database, uri=True).close()
    assert await asyncio.to_thread(counted_elsewhere, path) == "1\n"
    await store.close()


async def test_a_connection_for_reading_sees_commits_and_cannot_write(tmp_path: Path):
    path = tmp_path / "treadle.db"
    store = SqliteStore(str(path), clock=ManualClock())
    await store.open()
    with closing(connect_for_reading(path)) as reading:
        for expected in (1, 2):
            await put(store, new_task())
            assert reading.execute("select count(*) from tasks").fetchall() == [(expected,)]
        with pytest.raises(Exception, match="readonly"):
            reading.execute("delete from tasks")
    await put(store, new_task())
    await store.close()


def test_other_databases_can_be_opened_while_a_thread_uses_the_store(tmp_path: Path):
    """apsw refuses to say the file of a connection that is busy in another thread."""
    connection = connect(str(tmp_path / "treadle.db"))
    busy, done = Event(), Event()

    def wait() -> None:
        busy.set()
        done.wait()

    connection.create_scalar_function("wait", wait, 0)
    thread = Thread(target=lambda: list(connection.execute("select wait()")))
    thread.start()
    busy.wait()
    try:
        (tmp_path / "shop.db").touch()
        sqlite3.connect(tmp_path / "shop.db").close()
        with pytest.raises(StoreFileInUse):
            sqlite3.connect(tmp_path / "treadle.db")
    finally:
        done.set()
        thread.join()
        connection.close()
