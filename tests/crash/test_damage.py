"""Damage to the files of a SQLite store at rest is reported, or everything that was acknowledged is there and right.

A store with 200 acknowledged tasks stops as if killed; then one of its files is damaged in one way, and the store is examined.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.commands import Treadle
from tests.sizes import examples

from treadle import Engine
from treadle.engine.operations import Operations
from treadle.model.access import OPEN
from treadle.model.errors import StoreDamaged
from treadle.settings import Settings
from treadle.stores.sqlite.connection import commits

pytestmark = pytest.mark.xdist_group("crash damage")

NAME = "treadle.db"
LOCKS = Path("/proc/locks")
PAGE, HEADER, FRAME = 4096, 32, 24 + 4096
"""Bytes of a page, and of the header and the frames of a write-ahead log."""


def engine_of(place: Path) -> Engine:
    return Engine(f"sqlite:///{place / NAME}", settings=Settings())


async def fill(place: Path, numbers: range) -> None:
    """Acknowledge tasks, some with values of several pages, cancel a few, and keep the files as a killed process would."""
    async with engine_of(place) as engine:
        for number in numbers:
            task = await engine.enqueue("note", {"n": number, "text": f"{number} " * (20, 1500, 5000)[number % 11 % 3]})
            if number % 7 == 0:
                await engine.cancel(task.id)
        (place.parent / "killed").mkdir()
        for file in place.iterdir():  # noqa: ASYNC240
            if not file.name.endswith("-shm"):
                shutil.copy(file, place.parent / "killed")


def contents(place: Path) -> list[Any]:
    """All acknowledged tasks and their values."""
    connection = apsw.Connection(str(place / NAME))
    tables = ("id, cast(payload as blob), state from tasks", "id, cast(payload as blob), state from finished", "* from blobs")
    found = [sorted(connection.execute(f"select {table}").fetchall()) for table in tables]
    connection.close()
    return found


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Any]]:
    """The files of a store that was killed after 200 tasks, an older copy of it, and its contents."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "live").mkdir()
    asyncio.run(fill(folder / "live", range(89)))
    shutil.copytree(folder / "live", folder / "older")  # closed: all is in the main file
    shutil.rmtree(folder / "killed")
    asyncio.run(fill(folder / "live", range(89, 200)))
    found = contents(folder / "live")
    assert len(found[0]) + len(found[1]) == 200
    return folder / "killed", folder / "older", found


async def reports(place: Path) -> list[str]:
    """The damage that opening and `verify` report."""
    engine = engine_of(place)
    try:
        await engine.open(migrate=False)
        problems = list((await engine.kernel.verify()).problems)
        if any("lacks its last" in problem for problem in problems):
            status = await Operations(engine, OPEN).system.status()
            assert status.problems[0].code == "store_damaged"
        return problems
    except StoreDamaged as error:
        return [str(error)]
    finally:
        await engine.close()


def damages(killed: Path) -> Iterator[tuple[str, str, bytes | None]]:
    """A name, the file, and its damaged content (None: deleted)."""
    rng = random.Random(17)
    log, pages = (killed / f"{NAME}-wal").read_bytes(), (killed / NAME).read_bytes()
    frames = (len(log) - HEADER) // FRAME
    assert frames > 300
    assert len(pages) > 30 * PAGE
    yield "log deleted", f"{NAME}-wal", None
    yield "log emptied", f"{NAME}-wal", b""
    for frame in range(0, frames, max(frames // examples(8), 1)):
        yield f"log cut at frame {frame}", f"{NAME}-wal", log[: HEADER + frame * FRAME + rng.choice((0, 10, 2000))]
    for frame in range(3, frames, max(frames // examples(8), 1)):
        at = HEADER + frame * FRAME + rng.randrange(FRAME)
        yield f"log flipped at {at}", f"{NAME}-wal", flip(log, at)
    yield "log header flipped", f"{NAME}-wal", flip(log, 20)
    for page in range(0, len(pages) // PAGE, max(len(pages) // PAGE // examples(8), 1)):
        yield f"page {page + 1} zeroed", NAME, pages[: page * PAGE] + bytes(PAGE) + pages[(page + 1) * PAGE :]
    for page in range(1, len(pages) // PAGE, max(len(pages) // PAGE // examples(8), 1)):
        at = page * PAGE + rng.randrange(PAGE)
        yield f"page {page + 1} flipped at {at}", NAME, flip(pages, at)
    yield "main file cut", NAME, pages[: len(pages) // PAGE // 2 * PAGE]
    yield "main file deleted", NAME, None


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]


def are_intact(found: list[Any], expected: list[Any], *, flipped: bool) -> bool:
    """Whether all is there and right; a flipped bit may have changed one small value (see guarantees.md)."""
    if not flipped:
        return found == expected
    different = [
        (one, other) for table, right in zip(found, expected, strict=True) for one, other in zip(table, right, strict=True)
    ]
    different = [(one, other) for one, other in different if one != other]
    return len(different) <= 1 and all(one[::2] == other[::2] for one, other in different)


async def test_damaged_files_are_reported_or_harmless(killed: tuple[Path, Path, list[Any]], tmp_path: Path) -> None:
    source, _, expected = killed
    unnoticed, reported = [], 0
    for number, (name, file, content) in enumerate([("nothing", NAME, (source / NAME).read_bytes()), *damages(source)]):
        place = tmp_path / str(number)
        shutil.copytree(source, place)
        if content is None:
            (place / file).unlink()
        else:
            (place / file).write_bytes(content)
        if await reports(place):
            reported += 1
            assert name != "nothing"
        elif not are_intact(contents(place), expected, flipped="page" in name and "flipped" in name):
            unnoticed.append(name)
        shutil.rmtree(place)
    assert unnoticed == []
    assert reported > 30, reported


@pytest.fixture
def place(killed: tuple[Path, Path, list[Any]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed[0], tmp_path / "store"))


@pytest.mark.parametrize("loss", ["log deleted", "older copy", "another database", "database deleted", "an empty file"])
async def test_a_store_without_its_last_commits_is_not_written_to_until_that_is_accepted(
    killed: tuple[Path, Path, list[Any]], place: Path, loss: str
) -> None:
    (place / f"{NAME}-wal").unlink()
    match loss:
        case "older copy":
            shutil.copy(killed[1] / NAME, place / NAME)
        case "another database":
            (place / NAME).unlink()
            (place / "other").mkdir()
            async with engine_of(place / "other") as other:
                for _ in range(300):  # it has more commits
                    await other.enqueue("note", {})
            shutil.copy(place / "other" / NAME, place / NAME)
        case "database deleted":
            (place / NAME).unlink()
        case "an empty file":
            (place / NAME).write_bytes(b"")
    before = {each.name: each.read_bytes() for each in place.iterdir() if each.is_file()}  # noqa: ASYNC240
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="treadle store accept --yes"):
            await engine_of(place).open()
    assert {name: (place / name).read_bytes() for name in before} == before
    if loss not in ("database deleted", "an empty file"):
        reader = engine_of(place)
        await reader.open(migrate=False)  # as commands that only read
        assert await reader.kernel.reads.list_tasks(kind="handler", limit=1)
        with pytest.raises(StoreDamaged, match="nothing is written"):
            await reader.enqueue("note", {})
        await reader.close()
    assert await engine_of(place).kernel.store.health.accept_damage()
    async with engine_of(place) as engine:
        await engine.enqueue("note", {})
        assert (await engine.kernel.verify()).problems == ()


KILLED = """
import asyncio, os, signal
from treadle import Engine

async def main():
    engine = Engine("sqlite:///treadle.db")
    await engine.open()
    for number in range(200):
        await engine.enqueue("note", {"n": number})
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_the_commands_report_a_deleted_log_that_had_all_there_was(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    assert ended.returncode == -signal.SIGKILL
    treadle = Treadle(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "whole")
    assert treadle.json("store", "verify", TREADLE_STORE=f"sqlite:///{tmp_path}/whole/treadle.db")["checked"] == 200
    (tmp_path / "treadle.db-wal").unlink()
    for command in (["store", "verify"], ["tasks", "list"], ["up", "--no-http"]):
        refused = treadle(*command)
        assert (refused.code, "lacks its last 201 commits" in refused.err) == (4, True), refused
    doctor = treadle("doctor", "--json")
    failed = [check["found"] for check in doctor.value["checks"] if check["verdict"] == "fail"]
    assert (doctor.code, len(failed), "store_damaged" in failed[0]) == (1, 1, True)


@pytest.mark.parametrize("gone", [f"{NAME}-commits", f"{NAME}-shm"])
async def test_a_copy_without_its_notes_is_complete(killed: tuple[Path, Path, list[Any]], place: Path, gone: str) -> None:
    (place / gone).unlink(missing_ok=True)
    assert await reports(place) == []
    assert contents(place) == killed[2]


async def test_a_file_without_its_first_page_was_a_database(killed: tuple[Path, Path, list[Any]], tmp_path: Path) -> None:
    place = Path(shutil.copytree(killed[1], tmp_path / "store"))
    (place / NAME).write_bytes(bytes(PAGE) + (place / NAME).read_bytes()[PAGE:])
    assert "is damaged" in (await reports(place))[0]


async def test_notes_only_move_forward_and_a_half_written_one_does_not_count(place: Path) -> None:
    engines = [engine_of(place) for _ in range(2)]
    for engine in engines:
        await engine.open()
    for number in range(200):
        await engines[number % 2].enqueue("note", {})
    notes = place / f"{NAME}-commits"
    assert notes.stat().st_mode & 0o777 == 0o600
    assert notes.stat().st_size == 4096
    found = commits._read_note(str(place / NAME))
    late = engines[0].kernel.store._counter  # type: ignore[attr-defined]
    late._note = late._note._replace(number=late._note.number - 3)
    late.note()
    assert commits._read_note(str(place / NAME)) == found
    assert found is not None
    content = bytearray(notes.read_bytes())
    at = (found.number + 1) % 64 * 64
    content[at : at + 30] = b"fffffff 999999999999 000000000"
    notes.write_bytes(content)
    assert commits._read_note(str(place / NAME)) == found
    for engine in engines:
        await engine.close()


async def test_notes_have_the_mode_of_the_database_and_one_place_for_all_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    async with engine_of(tmp_path / "real") as engine:
        await engine.enqueue("note", {})
    notes = tmp_path / "real" / f"{NAME}-commits"
    notes.unlink()
    (tmp_path / "real" / NAME).chmod(0o660)
    (tmp_path / NAME).symlink_to(tmp_path / "real" / NAME)
    monkeypatch.chdir(tmp_path)
    async with Engine(f"sqlite:///{NAME}", settings=Settings()) as engine:
        monkeypatch.chdir("/")
        await engine.enqueue("note", {})
    assert notes.stat().st_mode & 0o777 == 0o660
    assert sorted(each.name for each in tmp_path.iterdir()) == ["real", NAME]  # noqa: ASYNC240


async def test_a_backup_is_not_compared_with_the_notes_of_an_earlier_file(place: Path) -> None:
    async with engine_of(place) as engine:
        shutil.copy(place / f"{NAME}-commits", place / "copy.db-commits")
        await engine.kernel.store.health.backup(str(place / "copy.db"))
        await engine.enqueue("note", {})
    async with Engine(f"sqlite:///{place}/copy.db", settings=Settings()) as copy:
        assert (await copy.kernel.verify()).problems == ()


@pytest.mark.skipif(not LOCKS.exists(), reason="needs Linux's list of locks")
async def test_a_second_store_in_a_process_does_not_drop_the_locks_of_the_first(tmp_path: Path) -> None:
    """Without them, another process that closes the file may delete the log into which this one commits."""
    async with engine_of(tmp_path) as engine:
        await engine.enqueue("note", {})
        mark = f":{(tmp_path / NAME).stat().st_ino} "
        held = LOCKS.read_text().count(mark)  # noqa: ASYNC240
        second = engine_of(tmp_path)
        await second.open()
        await second.close()
        assert LOCKS.read_text().count(mark) == held > 0  # noqa: ASYNC240
