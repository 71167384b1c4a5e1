"""Processes that share a SQLite file use their own clocks: those that are far apart are refused, and only if both are alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treadle.kernel.store.process import SystemClock
from treadle.model.errors import ClocksApart
from treadle.model.tasks import Server
from treadle.stores.sqlite import SqliteStore
from treadle.stores.sqlite.connection import clocks
from treadle.stores.sqlite.connection.clocks import ClockWatch, check_clocks
from treadle.testing import ManualClock

HOUR = 3_600_000


def a_server(name: str, **fields: Any) -> Server:
    return Server(**{"id": name, "name": name, "host": "h", "pid": 7, "version": "1", "state": "running"} | fields)


class SetClock(ManualClock):
    """A clock that somebody sets."""

    off_by = 0

    def now(self) -> int:
        return super().now() + self.off_by


class Watched:
    def __init__(self) -> None:
        self.clock = SetClock()
        self.watch = ClockWatch(self.clock, "treadle.db")

    def look(self, *beats: int, seconds: float = 10, **fields: Any) -> str | None:
        """Look at servers with these heartbeats, relative to the clock, so much later."""
        self.clock.advance(seconds)
        servers = [a_server(f"s-{n}", heartbeat_at=self.clock.now() + beat, **fields) for n, beat in enumerate(beats)]
        found = self.watch.look("own", [*servers, a_server("own", heartbeat_at=0)])
        return None if found is None else found[0]


@pytest.mark.parametrize("off_by", [-10 * HOUR, 10 * HOUR])
def test_clock_skew_of_a_live_server_is_reported(off_by: int) -> None:
    watched = Watched()
    assert watched.look(-1000, off_by) is None  # the first look cannot tell who is alive
    assert watched.look(-2000, off_by) == "s-1"


def test_a_server_registered_since_the_last_scan_is_alive() -> None:
    watched = Watched()
    assert watched.look() is None
    assert watched.look(10 * HOUR) == "s-0"


@pytest.mark.parametrize("off_by", [-10 * HOUR, 10 * HOUR])
def test_unchanged_heartbeats_belong_to_dead_servers(off_by: int) -> None:
    watched = Watched()
    for waited in range(5):
        assert watched.look(off_by - 10_000 * waited) is None


@pytest.mark.parametrize("fields", [{"state": "stopped"}, {"pid": 0}])
def test_servers_that_stopped_or_have_no_process_do_not_count(fields: dict[str, Any]) -> None:
    watched = Watched()
    assert watched.look(0, **fields) is None
    assert watched.look(10 * HOUR, **fields) is None


def test_small_clock_differences_and_long_breaks_are_not_problems() -> None:
    watched = Watched()
    assert watched.look(0) is None
    assert watched.look(-200_000) is None
    assert watched.look(200_000) is None
    assert watched.look(-2 * HOUR / 2, seconds=7200) is None  # type: ignore[arg-type]


def test_a_clock_correction_is_not_clock_skew() -> None:
    watched = Watched()
    assert watched.look(0) is None
    watched.clock.off_by = -10 * HOUR
    assert watched.look(10 * HOUR) is None  # it beat before the clock of the machine was set back
    assert watched.look(-1000) is None


class WrongClock(SystemClock):
    def __init__(self, off_by: int) -> None:
        self._off_by = off_by
        self._last = 0

    def now(self) -> int:
        """A later time at each call, so that two heartbeats of one process are never the same."""
        self._last = max(super().now() + self._off_by, self._last + 1)
        return self._last


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[list[SqliteStore]]:
    """The first has the right time, the second is ten hours ahead."""
    stores = [SqliteStore(str(tmp_path / "treadle.db"), clock=WrongClock(off_by)) for off_by in (0, 10 * HOUR)]
    for store in stores:
        await store.open()
    yield stores
    for store in stores:
        await store.close()


async def test_the_later_process_stops_writing(two: list[SqliteStore]) -> None:
    first, second = two
    lines = [store.servers.lease_connection() for store in two]

    def beat_in_turn() -> list[str]:
        said = []
        for name in ("a", "b", "a", "b"):
            try:
                lines[name == "b"].beat(a_server(name))
            except ClocksApart as error:
                said.append(f"{name}: {error}")
        return said

    said = await asyncio.to_thread(beat_in_turn)
    assert len(said) == 2
    assert said[0].startswith("a: The clock of b (pid 7 on h)")
    assert "36000 s ahead of the clock of this process" in said[0]
    assert said[1].startswith("b: The clock of a")
    await first.servers.save(a_server("a"))
    with pytest.raises(ClocksApart, match="Set the clocks"):
        await second.servers.save(a_server("b"))


@pytest.mark.parametrize("off_by", [-10 * HOUR, 10 * HOUR])
async def test_at_open_a_live_process_with_another_time_is_refused(monkeypatch: pytest.MonkeyPatch, off_by: int) -> None:
    monkeypatch.setattr(clocks, "_LOOK_EVERY", 0.001)
    monkeypatch.setattr(clocks, "_has_open", lambda server, path: True)
    looks = 0

    async def servers() -> list[Server]:
        nonlocal looks
        looks += 1
        return [a_server("other", heartbeat_at=off_by + looks)]

    with pytest.raises(ClocksApart, match="other"):
        await check_clocks("treadle.db", lambda: 0, servers)
    assert looks == (1 if off_by > 0 else 2)


@pytest.mark.parametrize("has_open", [False, True])
async def test_a_dead_or_stuck_process_does_not_prevent_opening(monkeypatch: pytest.MonkeyPatch, has_open: bool) -> None:
    monkeypatch.setattr(clocks, "_LOOK_EVERY", 1.0)
    monkeypatch.setattr(clocks, "_has_open", lambda server, path: has_open)

    async def servers() -> list[Server]:
        return [a_server("other", heartbeat_at=-10 * HOUR, heartbeat_every_for=10)]

    await check_clocks("treadle.db", lambda: 0, servers)
