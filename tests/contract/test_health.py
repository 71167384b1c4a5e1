"""Health: what a store tells of itself, and what is made of that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace
from tests.contract.databases import Database

from treadle.api.store import StoreHealth, StoreTable
from treadle.api.wire import Instant
from treadle.kernel.store.health import findings
from treadle.kernel.store.verify import verify
from treadle.model.errors import Refused, Unsupported
from treadle.testing import ManualClock
from treadle_conformance.task_steps import OTHER, new_task, put_and_claim, put_one, settle, succeed

GOOD = StoreHealth(
    tables=[StoreTable("tasks", 8192, 10, 10, Instant.of(1))],
    overdue_for=0,
    versions={"postgresql": "16.1"},
    settings={"fsync": "on", "autovacuum": "on", "synchronous_commit": "on", "connections": "5", "max_connections": "100"},
    bytes=10**6,
    free_bytes=None,
    wal_bytes=None,
    oldest_snapshot_for=None,
    snapshot_by=None,
    findings=[],
)


def verdicts(health: StoreHealth) -> dict[str, str]:
    found = list(findings(health))
    assert all(finding.do for finding in found if finding.verdict != "ok")
    return {finding.name: finding.verdict for finding in found}


async def test_a_store_reports_its_sizes_and_versions(store):
    await put_one(store)
    health = await store.health.check()
    assert health.bytes > 0
    assert {"tasks", "finished", "log", "runs"} <= {table.name for table in health.tables}
    assert all(health.versions.values())
    assert set(verdicts(health).values()) <= {"ok", "warn"}


async def test_overdue_time_is_measured(store, clock):
    await put_one(store, delay=1000)
    assert (await store.health.check()).overdue_for == await store.health.overdue_for() == 0
    await clock.advance(31_000)
    health = await store.health.check()
    assert health.overdue_for == 30_000
    assert await store.health.overdue_for() == 30_000
    assert verdicts(health)["wake lag"] == "warn"


async def test_a_new_store_has_no_damage(store):
    await put_one(store)
    assert await store.health.list_damage() == await store.health.list_damage(pages=False) == []
    assert {"durability", "page checksums"} <= verdicts(await store.health.check()).keys() or "sqlite" in (
        await store.health.check()
    ).versions


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_damaged_pages_that_the_server_has_read_are_reported(store, monkeypatch):
    from treadle.stores.postgres import health

    monkeypatch.setitem(health._SQL, "count_checksum_failures", "select 3, '2026-07-01'")
    (line,) = await store.health.list_damage()
    assert "3 damaged pages" in line


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_an_open_snapshot_is_found(store, postgres_server):
    with psycopg.connect(postgres_server, application_name="slow report") as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select 1")
        health = await store.health.check()
    assert health.oldest_snapshot_for is not None
    assert health.snapshot_by is not None


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"oldest_snapshot_for": 3_600_000, "snapshot_by": "psql"}, "oldest snapshot"),
        ({"tables": [StoreTable("tasks", 1, 10, 100_000, None)]}, "dead rows"),
        ({"settings": GOOD.settings | {"autovacuum": "off"}}, "autovacuum"),
        ({"settings": GOOD.settings | {"fsync": "off"}}, "durability"),
        ({"settings": GOOD.settings | {"full_page_writes": "off"}}, "durability"),
        ({"settings": GOOD.settings | {"synchronous_commit": "off"}}, "durability"),
        ({"settings": GOOD.settings | {"standbys": "2", "synchronous_standby_names": ""}}, "replication"),
        (
            {"settings": GOOD.settings | {"standbys": "2", "synchronous_standby_names": "s", "synchronous_commit": "local"}},
            "replication",
        ),
        ({"settings": GOOD.settings | {"standbys": "0", "synchronous_standby_names": "s"}}, "replication"),
        ({"settings": GOOD.settings | {"sessions": "off"}}, "takeover"),
        ({"settings": GOOD.settings | {"data_checksums": "off"}}, "page checksums"),
        ({"settings": GOOD.settings | {"connections": "95"}}, "connections"),
    ],
)
def test_each_risk_of_postgresql_is_reported(changed, name):
    assert set(verdicts(GOOD).values()) == {"ok"}
    assert verdicts(replace(GOOD, **changed))[name] == "warn"


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"versions": {"sqlite": "3.40.1"}}, "sqlite library"),
        ({"wal_bytes": 10**9}, "write-ahead log"),
        ({"free_bytes": 9 * 10**8, "bytes": 10**9, "settings": {"auto_vacuum": "none"}}, "free space"),
    ],
)
def test_each_risk_of_sqlite_is_reported(changed, name):
    good = StoreHealth([], 0, {"sqlite": "3.54.1"}, {"auto_vacuum": "incremental"}, 10**6, 0, 0, None, None, [])
    assert set(verdicts(good).values()) == {"ok"}
    assert verdicts(replace(good, **changed))[name] == "warn"


# --- backups ---


@pytest.mark.parametrize("database", ["sqlite", "memory"], indirect=True)
async def test_a_backup_is_complete_and_never_overwritten(store, tmp_path: Path):
    from treadle.stores.sqlite import SqliteStore

    task = await put_one(store)
    path = tmp_path / "copy.db"
    assert await store.health.backup(str(path)) == path.stat().st_size
    copy = SqliteStore(str(path), clock=ManualClock())
    await copy.open(migrate=False)
    found = await copy.tasks.find(task.id)
    await copy.close()
    assert found is not None
    before = path.read_bytes()
    with pytest.raises(Refused):
        await store.health.backup(str(path))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir() if "partial" in each.name] == []  # noqa: ASYNC240


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_backup_of_a_store_that_is_written_to_is_of_one_moment(database: Database, store, tmp_path: Path):
    """A backup contains everything acknowledged before it began, it is consistent, and its log explains its rows."""
    from treadle.stores.sqlite import SqliteStore

    other = await database.open_store()
    before = [(await put_and_claim(store)).claim for _ in range(20)]
    for claim in before:
        assert await settle(store, claim, succeed(), new_task(OTHER)) == "done"
    over = asyncio.Event()

    async def write() -> None:
        while not over.is_set():
            taken = await put_and_claim(other)
            await settle(other, taken.claim, succeed(), new_task(OTHER))

    writing = asyncio.ensure_future(write())
    path = tmp_path / "copy.db"
    await store.health.backup(str(path))
    over.set()
    await writing
    copy = SqliteStore(str(path), clock=ManualClock())
    await copy.open(migrate=False)
    assert len(await copy.tasks.find_many([claim.task_id for claim in before], ended=True)) == 20
    finished = (await copy.tasks.count_finished()).by_state["completed"]
    (depth,) = [each for each in await copy.tasks.list_depths() if each.queue == OTHER]
    assert depth.ready == finished  # each end is there with what follows from it
    assert (await verify(copy)).problems == ()
    await copy.close()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_postgresql_names_its_own_tools(store, tmp_path):
    with pytest.raises(Unsupported, match="pg_dump"):
        await store.health.backup(str(tmp_path / "copy"))
    with pytest.raises(Unsupported):
        await store.retention.compact(whole=True)
