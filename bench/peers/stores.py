"""Fresh stores for subjects: databases of one private PostgreSQL with its default durability, SQLite files, a private Redis."""

from __future__ import annotations

import itertools
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench.servers import temporary_store


class Stores:
    """Gives out stores that nobody has used before."""

    def __init__(self, folder: Path, postgres: str, redis: str) -> None:
        self._folder, self._postgres, self._redis = folder, postgres, redis
        self._numbers = itertools.count(1)

    @contextmanager
    def fresh(self, kind: str) -> Iterator[str]:
        """The URL of a store of that kind that is empty once its subject has prepared it; removed afterwards."""
        name = f"bench_{next(self._numbers)}"
        match kind:
            case "redis":
                yield self._redis
            case "sqlite":
                folder = self._folder / name
                folder.mkdir()
                try:
                    yield f"sqlite:///{folder / 'bench.db'}"
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
            case _:
                self._administer(f"create database {name}")
                try:
                    yield self._postgres.replace("/postgres?", f"/{name}?")
                finally:
                    self._administer(f"drop database if exists {name} with (force)")

    def settle(self, url: str) -> None:
        """After tasks were put in: what the database would do at some time is done now, for every subject alike."""
        if url.startswith("postgresql"):
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("vacuum analyze")
                connection.execute("checkpoint")

    def transactions(self, url: str) -> int:
        """How many transactions that database has ended, as its server counts them; what open connections did may come later."""
        with psycopg.connect(self._postgres, autocommit=True) as connection:
            asked = "select xact_commit + xact_rollback from pg_stat_database where datname = %s"
            row = connection.execute(asked, (conninfo_to_dict(url)["dbname"],)).fetchone()
            assert row is not None
            return int(row[0])

    @contextmanager
    def without_autovacuum(self) -> Iterator[None]:
        """The server does nothing of its own accord meanwhile that would be counted among what subjects do."""
        self._administer("alter system set autovacuum = off")
        self._administer("select pg_reload_conf()")
        try:
            yield
        finally:
            self._administer("alter system reset autovacuum")
            self._administer("select pg_reload_conf()")

    def versions(self) -> list[str]:
        """The servers that are there, as they call themselves."""
        found = []
        if self._postgres:
            with psycopg.connect(self._postgres) as connection:
                found.append(f"PostgreSQL {connection.info.server_version // 10000}")
        if self._redis:
            said = subprocess.run(["redis-server", "--version"], check=True, capture_output=True, text=True).stdout
            found.append(f"Redis {said.partition('v=')[2].partition(' ')[0]}")
        return found

    def _administer(self, statement: str) -> None:
        with psycopg.connect(self._postgres, autocommit=True) as connection:
            connection.execute(statement.encode())


def has_redis() -> bool:
    """Whether a `redis-server` is on PATH."""
    return shutil.which("redis-server") is not None


@contextmanager
def open_stores(kinds: set[str]) -> Iterator[Stores]:
    """The servers that these kinds need, for as long as the block lasts."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="treadle-peers-")))
        postgres = stack.enter_context(temporary_store("postgresql")) if "postgresql" in kinds else ""
        redis = stack.enter_context(_redis_server(folder)) if "redis" in kinds else ""
        yield Stores(folder, postgres, redis)


@contextmanager
def _redis_server(folder: Path) -> Iterator[str]:
    """A private Redis that syncs its log to the disk every second, which is its default for a log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"bind": "127.0.0.1", "port": port, "dir": folder, "appendonly": "yes", "appendfsync": "everysec", "save": ""}
    command = ["redis-server", *(str(part) for name, value in options.items() for part in (f"--{name}", value))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        _wait_for_port(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def _wait_for_port(port: int) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
