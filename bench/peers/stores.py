"""Fresh stores for subjects: databases of one private PostgreSQL with its default durability, SQLite files, a private Redis."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench.servers import temporary_store


class Stores:
    """Gives out stores that nobody has used before."""

    def __init__(self, postgres: str | None, folder: Path) -> None:
        self._postgres, self._folder = postgres, folder
        self._numbers = itertools.count(1)

    @contextmanager
    def fresh(self, kind: str) -> Iterator[str]:
        """The URL of an empty store of that kind, removed afterwards."""
        name = f"bench_{next(self._numbers)}"
        if kind == "sqlite":
            folder = self._folder / name
            folder.mkdir()
            try:
                yield f"sqlite:///{folder / 'bench.db'}"
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
        self._administer(f"create database {name}")
        try:
            yield self._url("postgresql").replace("/postgres?", f"/{name}?")
        finally:
            self._administer(f"drop database if exists {name} with (force)")

    def settle(self, url: str) -> None:
        """After tasks were put in: what the database would do at some time is done now, for every subject alike."""
        if url.startswith("postgresql"):
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("vacuum analyze")
                connection.execute("checkpoint")

    def transactions(self, url: str) -> int:
        """How many transactions that database has ended, as its server counts them."""
        name = conninfo_to_dict(url)["dbname"]
        with psycopg.connect(self._url("postgresql"), autocommit=True) as connection:
            asked = "select xact_commit + xact_rollback from pg_stat_database where datname = %s"
            row = connection.execute(asked, (name,)).fetchone()
            assert row is not None
            return int(row[0])

    def _url(self, kind: str) -> str:
        if self._postgres is None:
            raise ValueError(f"no {kind} was started")
        return self._postgres

    def _administer(self, statement: str) -> None:
        with psycopg.connect(self._url("postgresql"), autocommit=True) as connection:
            connection.execute(statement.encode())


@contextmanager
def open_stores(kinds: set[str]) -> Iterator[Stores]:
    """The servers that these kinds need, for as long as the block lasts."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="treadle-peers-")))
        postgres = stack.enter_context(temporary_store("postgresql")) if "postgresql" in kinds else None
        yield Stores(postgres, folder)
