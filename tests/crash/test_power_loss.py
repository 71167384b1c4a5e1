"""The machine loses its power: of a SQLite store there is what was synced, and that has all that was answered.

SQLite does its work through a file system of the test's own. It writes to the real files, and remembers each file as it was
when it was last synced; a power cut leaves just that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.limits import BOUND

from treadle import Engine
from treadle.settings import Settings
from treadle.stores.sqlite.connection import connect

NAME = "treadle.db"


class Disk(apsw.VFS):
    """Passes everything on, and knows what of the files in a directory would outlive a power cut."""

    def __init__(self, watched: Path) -> None:
        self.watched = watched
        self.synced: dict[str, bytes] = {}
        super().__init__("power", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> Any:
        return DiskFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        if Path(filename).parent == self.watched:
            self.synced.pop(Path(filename).name, None)

    def lose_power(self, place: Path) -> None:
        """Make of an empty directory what is found after the power has come back."""
        place.mkdir()
        for name, content in dict(self.synced).items():
            (place / name).write_bytes(content)


class DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: Any) -> None:
        self._disk = disk
        self._path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "")
        super().__init__("unix", name, flags)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        if self._path.parent == self._disk.watched:
            self._disk.synced[self._path.name] = self._path.read_bytes()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    (tmp_path / "live").mkdir()
    made = Disk(tmp_path / "live")
    yield made
    made.unregister()


@asynccontextmanager
async def opened(place: Path) -> AsyncIterator[Engine]:
    engine = Engine(f"sqlite:///{place / NAME}", settings=Settings())

    @engine.handler("note")
    async def note(payload: Any) -> dict[str, Any]:
        return {"n": payload["n"]}

    async with engine:
        yield engine


@pytest.mark.parametrize("checkpoints", ["late", "all the time"])
async def test_acknowledged_commits_survive_a_power_loss(
    tmp_path: Path, disk: Disk, checkpoints: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if checkpoints == "all the time":  # the log is written back, and begun anew, between any two commits
        monkeypatch.setattr(connect, "CHECKPOINT_PAGES", 1)
        monkeypatch.setattr(connect, "TRUNCATE_PAGES", 40)
    enqueued: list[str] = []
    completed: list[str] = []
    async with opened(disk.watched) as engine, engine.worker():
        for number in range(24):
            task = await engine.enqueue("note", {"n": number, "more": "x" * 5_000}, delay=3600 if number % 2 else None)
            enqueued.append(task.id)
            if not number % 2:
                async with asyncio.timeout(BOUND):
                    assert await engine.result(task) == {"n": number}
                completed.append(task.id)
            after = tmp_path / f"after-{number}"
            disk.lose_power(after)
            async with opened(after) as found:
                assert (await found.kernel.verify()).problems == ()
                states = {
                    each.id: each.state
                    for each in await found.kernel.reads.list_tasks(kind="handler", limit=100)
                    if each.name == "note"
                }
            assert states == {each: "completed" if each in completed else "pending" for each in enqueued}
