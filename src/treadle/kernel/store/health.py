"""Risks of a store, with advice: pure code over the facts that the store reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from treadle.api.store import StoreFinding as Finding
from treadle.api.store import StoreHealth, StoreTable

LATE_FOR = 5_000
"""Milliseconds after which a due task that no worker has woken is late."""

OLD_SNAPSHOT_FOR = 300_000
BIG_WAL = 256 * 1024**2
MANY_DEAD = 50_000

_RISK_WHEN_OFF = {
    "fsync": "A crash of the machine can damage this database.",
    "full_page_writes": "A crash of the machine can damage this database.",
    "synchronous_commit": "A crash of the server loses the last acknowledged commits.",
}
"""Settings of PostgreSQL, and the risk of turning each off (it may also be set for the database or the user)."""

SAFE_SQLITE = (3, 51, 3)
"""The first version of the library without a bug that can damage a file in WAL mode."""


def findings(health: StoreHealth) -> Iterator[Finding]:
    """Yield all findings, good and bad."""
    yield _overdue(health)
    if "postgresql" in health.versions:
        yield from _postgres(health)
    else:
        yield from _sqlite(health)


def _overdue(health: StoreHealth) -> Finding:
    if health.overdue_for > LATE_FOR:
        problem = f"a task has been due for {health.overdue_for / 1000:.0f} s and no worker has woken it"
        return Finding("wake lag", "warn", problem, "Start a worker: any one of them wakes what is due.")
    return Finding("wake lag", "ok", f"{health.overdue_for} ms")


def _postgres(health: StoreHealth) -> Iterator[Finding]:
    settings = health.settings
    yield Finding("server", "ok", f"PostgreSQL {health.versions['postgresql']}")
    lasting = health.oldest_snapshot_for
    if lasting is not None and lasting > OLD_SNAPSHOT_FOR:
        problem = f"{health.snapshot_by} has held one for {lasting // 60_000} min"
        do = "End it (pg_terminate_backend) or find out why it stays: dead rows cannot be removed meanwhile, and claims get slower."
        yield Finding("oldest snapshot", "warn", problem, do)
    else:
        yield Finding("oldest snapshot", "ok", "none" if lasting is None else f"{lasting / 1000:.1f} s")
    bloated = [table for table in health.tables if _is_bloated(table)]
    if bloated:
        problem = ", ".join(f"{table.name} {table.dead_rows}" for table in bloated)
        yield Finding("dead rows", "warn", problem, "Autovacuum does not keep up: look for old snapshots, or vacuum these tables.")
    else:
        yield Finding("dead rows", "ok", str(sum(table.dead_rows or 0 for table in health.tables)))
    if settings.get("autovacuum") == "off":
        yield Finding("autovacuum", "warn", "off", "Turn it on: without it tables only grow.")
    unsafe = [name for name in _RISK_WHEN_OFF if settings.get(name) == "off"]
    for name in unsafe:
        do = f"Run `alter system set {name} = on` and `select pg_reload_conf()`. {_RISK_WHEN_OFF[name]}"
        yield Finding("durability", "warn", f"{name} is off", do)
    if not unsafe:
        yield Finding("durability", "ok", "commits are flushed")
    yield _replication(settings)
    if settings.get("sessions") == "off":
        problem = "PgBouncer without direct_url: no process has a session with the database"
        do = (
            "Add direct_url=, with the address of the database itself, to the URL of workers: until then, work of a process that "
            "dies on another machine waits for its lease, and workers poll every second."
        )
        yield Finding("takeover", "warn", problem, do)
    else:
        yield Finding("takeover", "ok", "sessions with the database show which processes live")
    if settings.get("data_checksums") == "off":
        do = "Stop the server and run `pg_checksums --enable --pgdata DIRECTORY`. Without them, damaged pages are not detected."
        yield Finding("page checksums", "warn", "data_checksums is off", do)
    else:
        yield Finding("page checksums", "ok", "on")
    used, most = int(settings.get("connections", 0)), int(settings.get("max_connections", 1))
    verdict: Literal["ok", "warn"] = "warn" if used > 0.8 * most else "ok"
    do = "Use a pooler, or raise max_connections." if verdict == "warn" else ""
    yield Finding("connections", verdict, f"{used} of {most}", do)


def _replication(settings: Mapping[str, str]) -> Finding:
    """Whether a failover can lose acknowledged commits, and whether commits wait for a standby that is not there."""
    standbys, names = int(settings.get("standbys", 0)), settings.get("synchronous_standby_names", "")
    waits = bool(names) and settings.get("synchronous_commit") not in ("off", "local")
    if waits and not standbys:
        do = "Start a standby, or empty synchronous_standby_names: until then no commit is acknowledged."
        return Finding("replication", "warn", f"commits wait for {names}, and no standby is connected", do)
    if standbys and not waits:
        do = (
            "A failover loses the last acknowledged commits, and may repeat finished work: set synchronous_standby_names, with "
            "synchronous_commit = on."
        )
        return Finding("replication", "warn", f"{standbys} standbys, none of them synchronous", do)
    return Finding("replication", "ok", f"{standbys} standbys; commits wait for {names}" if waits else "no standby")


def _is_bloated(table: StoreTable) -> bool:
    return (table.dead_rows or 0) > max(MANY_DEAD, table.rows or 0)


def _sqlite(health: StoreHealth) -> Iterator[Finding]:
    version = health.versions["sqlite"]
    if tuple(int(part) for part in version.split(".")) < SAFE_SQLITE:
        do = "Upgrade apsw, which carries the library: pip install --upgrade apsw."
        yield Finding("sqlite library", "warn", f"{version} can damage files in WAL mode under rare circumstances", do)
    else:
        yield Finding("sqlite library", "ok", version)
    if health.wal_bytes is not None and health.wal_bytes > BIG_WAL:
        do = "Some process reads for very long, or no worker runs that writes it back; end that reader, or start a worker."
        yield Finding("write-ahead log", "warn", f"{health.wal_bytes // 1024**2} MiB", do)
    elif health.wal_bytes is not None:
        yield Finding("write-ahead log", "ok", f"{health.wal_bytes // 1024} KiB")
    free = health.free_bytes or 0
    if health.settings.get("auto_vacuum") == "none" and free > health.bytes / 2 and free > 64 * 1024**2:
        do = "`treadle store prune --compact` writes the file anew; from then on it shrinks by itself."
        yield Finding("free space", "warn", f"{free // 1024**2} MiB of the file are empty", do)
    else:
        yield Finding("free space", "ok", f"{free // 1024} KiB of {health.bytes // 1024} KiB")
