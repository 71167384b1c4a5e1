"""A disk that fails to sync: the process ends, the outcome of its last commit is unknown, and the next process finds a good store.

Real processes sync through a preloaded library, or through a file system of SQLite, that fails while a file exists.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.commands import HANDLERS, Treadle
from tests.limits import BOUND
from tests.sizes import left_out

from treadle.kernel.store import process
from treadle.model.errors import StoreFailed, StoreFull
from treadle.stores.sqlite import SqliteStore
from treadle.stores.sqlite.connection import connect
from treadle.testing import ManualClock
from treadle_conformance.task_steps import everything, put_one

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int fails(void) { const char *when = getenv("FAIL_SYNC_WHILE"); return when && access(when, F_OK) == 0; }
int fsync(int fd) { if (fails()) { errno = EIO; return -1; } return ((int (*)(int)) dlsym(RTLD_NEXT, "fsync"))(fd); }
int fdatasync(int fd) { if (fails()) { errno = EIO; return -1; } return ((int (*)(int)) dlsym(RTLD_NEXT, "fdatasync"))(fd); }
"""

VFS = """
import os, sys
import apsw
from treadle.interfaces.cli import main

class Disk(apsw.VFS):
    def __init__(self):
        super().__init__("failing", "unix", makedefault=True)

    def xOpen(self, name, flags):
        return File("unix", name, flags)

class File(apsw.VFSFile):
    def xSync(self, flags):
        if os.path.exists(os.environ["FAIL_SYNC_WHILE"]):
            error = apsw.IOError("the disk is on fire")
            error.extendedresult = apsw.SQLITE_IOERR_FSYNC
            raise error
        super().xSync(flags)

disk = Disk()
sys.argv[0] = "treadle"
sys.exit(main())
"""


@pytest.fixture(params=["preloaded library", left_out("file system of SQLite")])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """The `treadle` command and its environment, with syncs that fail while the file `failing` exists."""
    environment = {"FAIL_SYNC_WHILE": str(tmp_path / "failing")}
    if request.param == "file system of SQLite":
        script = tmp_path / "on_failing_disk.py"
        script.write_text(VFS)
        return [sys.executable, str(script)], environment
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("there is no C compiler")
    source, library = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return [sys.executable, "-m", "treadle"], environment | {"LD_PRELOAD": str(library)}


def test_a_failed_sync_ends_the_process_and_leaves_a_consistent_store(
    command: tuple[list[str], dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(HANDLERS)
    treadle = Treadle(tmp_path)
    words, more = command
    environment = treadle._environment(more)
    before = [treadle.json("enqueue", "greet")["id"] for _ in range(3)]
    worker = subprocess.Popen(
        [*words, "worker", "--handlers", "jobs"],
        cwd=treadle.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        assert "Store" in worker.stdout.readline()
        Path(more["FAIL_SYNC_WHILE"]).touch()
        acknowledged = [treadle.json("enqueue", "greet")["id"] for _ in range(3)]
        _, errors = worker.communicate(timeout=BOUND)
    finally:
        worker.kill()
    assert worker.returncode == 4, errors
    assert "store_failed: The disk could not make" in errors
    assert "unknown whether the last commit survives" in errors
    command_of = [*words, "enqueue", "greet", "--json"]
    enqueued = subprocess.run(command_of, cwd=treadle.folder, env=environment, capture_output=True, text=True, check=False)
    assert (enqueued.returncode, "store_failed" in enqueued.stderr) == (4, True), enqueued
    Path(more["FAIL_SYNC_WHILE"]).unlink()
    assert treadle.json("store", "verify")["holds"]
    acknowledged.append(treadle.json("enqueue", "greet")["id"])
    assert {task["id"] for task in treadle.json("tasks", "list")["tasks"]} >= {*before, *acknowledged}


class Disk(apsw.VFS):
    """A file system in this process; `fails` makes syncs or writes of one file fail."""

    def __init__(self) -> None:
        self.fails: tuple[str, str] | None = None
        super().__init__("failing", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> Any:
        return File(self, name, flags)


class File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: Any) -> None:
        self._disk = disk
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        super().__init__("unix", name, flags)

    def _check(self, act: str, error: apsw.Error, code: int) -> None:
        if self._disk.fails is not None and self._disk.fails[0] == act and self._path.endswith(self._disk.fails[1]):
            error.extendedresult = code  # type: ignore[attr-defined]
            raise error

    def xSync(self, flags: int) -> None:
        self._check("sync", apsw.IOError("sync"), apsw.SQLITE_IOERR_FSYNC)
        super().xSync(flags)

    def xWrite(self, data: Any, offset: int) -> None:
        self._check("write", apsw.FullError("write"), apsw.SQLITE_FULL)
        super().xWrite(data, offset)


@pytest.fixture
def disk() -> Iterator[Disk]:
    process.end_with(None)  # this process runs other tests
    made = Disk()
    yield made
    made.unregister()


@pytest.mark.parametrize("inline", [False, True], ids=["threads", "inline"])
@pytest.mark.parametrize("file", [".db-wal", ".db"], ids=["commit", "checkpoint"])
async def test_a_store_writes_no_more_after_a_failed_sync(
    disk: Disk, tmp_path: Path, inline: bool, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if file == ".db":  # syncs of the main file are those of checkpoints
        monkeypatch.setattr(connect, "CHECKPOINT_PAGES", 1)
    path = tmp_path / "treadle.db"
    store = SqliteStore(str(path), clock=ManualClock(), inline=inline)
    await store.open()
    kept = await put_one(store)
    await store._database.writer.call(lambda connection: None)  # its checkpoint is done
    disk.fails = ("sync", file)
    if file == ".db-wal" or inline:
        with pytest.raises(StoreFailed, match="unknown whether the last commit survives"):
            await put_one(store)
    else:
        await put_one(store)  # the checkpoint follows after the answer
        with pytest.raises(StoreFailed):
            await put_one(store)
    disk.fails = None
    log = Path(f"{path}-wal").read_bytes()  # noqa: ASYNC240
    for _ in range(2):
        with pytest.raises(StoreFailed, match="start the process again"):
            await put_one(store)
    assert Path(f"{path}-wal").read_bytes() == log  # noqa: ASYNC240
    await store.close()
    store = SqliteStore(str(path), clock=ManualClock())
    await store.open()
    assert await store.health.list_damage() == []
    assert await store.tasks.find(kept.id) is not None
    await put_one(store)
    await store.close()


@pytest.mark.parametrize("file", [".db-wal", ".db"], ids=["commit", "checkpoint"])
async def test_a_full_disk_refuses_a_write_and_the_next_one_succeeds(
    disk: Disk, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "CHECKPOINT_PAGES", 1)
    store = SqliteStore(str(tmp_path / "treadle.db"), clock=ManualClock())
    await store.open()
    await put_one(store)
    before = await everything(store)
    disk.fails = ("write", file)
    if file == ".db-wal":
        with pytest.raises(StoreFull, match="Nothing was written"):
            await put_one(store)
        assert await everything(store) == before
    else:
        await put_one(store)  # it is safe in the log
        await store._database.writer.call(lambda connection: None)
    disk.fails = None
    await put_one(store)
    assert await store.health.list_damage() == []
    await store.close()
