"""`treadle doctor`: checks of this machine and the store, with remedies."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from click.exceptions import Exit

from treadle.engine import Engine
from treadle.interfaces.cli.exits import FAILED
from treadle.interfaces.cli.format import grid, plain, state
from treadle.interfaces.cli.session import Session
from treadle.kernel.store.health import findings
from treadle.kernel.store.system import SystemClock
from treadle.kernel.store.units import Keep, Unit
from treadle.model.clock import span
from treadle.model.errors import SchemaBehind, StoreError, StoreUnavailable, TreadleError
from treadle.model.tasks import Claim
from treadle.version import VERSION

if TYPE_CHECKING:
    from rich.console import RenderableType

_SLOW_FSYNC_FOR = 20.0
_CLOCK_WARN_FOR, _CLOCK_FAIL_FOR = 1_000, 10_000
_LATE_FOR = 5_000
_CHECKED_UP_TO = 512 * 1024**2
_NOBODY = "00000000-0000-7000-8000-000000000000"


@dataclass(frozen=True)
class Check:
    """One finding; `do` is the remedy."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    found: str
    do: str = ""


async def doctor(session: Session) -> None:
    """Check this machine and the store; exit 1 if a check fails."""
    checks = list(_machine(session))
    checks += [check async for check in _store(session)]
    value = {"ok": all(check.verdict != "fail" for check in checks), "checks": [asdict(check) for check in checks]}
    session.show(value, lambda: _table(checks))
    if not value["ok"]:
        raise Exit(FAILED)


def _table(checks: list[Check]) -> RenderableType:
    table = grid("", "check", "found", "remedy")
    for check in checks:
        table.add_row(state(check.verdict), plain(check.name), plain(check.found), plain(check.do))
    return table


def _machine(session: Session) -> Iterator[Check]:
    from importlib.metadata import version

    from treadle.engine.worker_host import SHORTEST_LEASE_FOR

    yield Check("python", "ok", f"{platform.python_version()} on {platform.system()}")
    yield Check("treadle", "ok", VERSION)
    if find_spec("apsw") is None:
        yield Check("sqlite", "fail", "the package apsw is missing", "pip install apsw")
    else:
        import apsw

        yield Check("sqlite", "ok", f"library {apsw.sqlite_lib_version()} (apsw {version('apsw')})")
    wanted = session.settings.store.startswith("postgres")
    if find_spec("asyncpg") is not None:
        yield Check("asyncpg", "ok", version("asyncpg"))
    elif wanted:
        yield Check("asyncpg", "fail", "not installed, but the store is PostgreSQL", "pip install 'treadle[postgres]'")
    else:
        yield Check("asyncpg", "ok", "not installed; only PostgreSQL needs it")
    lease = session.settings.lease
    if lease * 1000 < SHORTEST_LEASE_FOR:
        yield Check("lease", "warn", f"{lease:g} s", "Leases under 30 s are for demos and tests; unset TREADLE_LEASE.")
    else:
        yield Check("lease", "ok", f"{lease:g} s, renewed every {lease / 3:g} s")


async def _store(session: Session) -> AsyncIterator[Check]:
    try:
        engine = Engine(session.settings.store, settings=session.settings)
        await engine.open(migrate=False)
    except SchemaBehind as error:
        yield Check("store", "warn", str(error), "`treadle up` and `treadle worker` migrate it when they start.")
        yield _fsync(session.settings.store)
        return
    except TreadleError as error:
        unusable = isinstance(error, StoreError) and not isinstance(error, StoreUnavailable)  # its message says what to do
        yield Check("store", "fail", f"{error.code}: {error}", "" if unusable else "Check --store or TREADLE_STORE.")
        return
    try:
        described = await engine.kernel.store.health.describe()
        yield Check("store", "ok", f"{engine.kernel.store.url} can be read")
        yield await _writable(engine)
        yield await _damage(engine)
        yield Check("schema", "ok", f"version {described.get('schema_version')}, as required by this Treadle")
        yield await _clock(engine)
        yield _fsync(session.settings.store)
        for finding in findings(await engine.kernel.store.health.check()):
            yield Check(finding.name, finding.verdict, finding.found, finding.do)
        async for check in _work(engine):
            yield check
    except StoreError as error:
        yield Check("store", "fail", f"{error.code}: {error}", "Check the database's own log.")
    finally:
        await engine.close()


async def _writable(engine: Engine) -> Check:
    """Try a write that changes nothing, because nobody holds the claim."""
    try:
        await engine.kernel.store.commit([Unit(Claim(_NOBODY, 1, _NOBODY), Keep(None))])
    except StoreError as error:
        return Check("writable", "fail", f"{error.code}: {error}", "Grant this user write access, or free some space.")
    return Check("writable", "ok", "a write was accepted")


async def _damage(engine: Engine) -> Check:
    """Check for missing commits, and for damaged pages unless there are too many."""
    size = (await engine.kernel.store.health.describe()).get("file_size") or 0
    pages = not isinstance(size, int) or size <= _CHECKED_UP_TO
    if found := await engine.kernel.store.health.list_damage(pages=pages):
        return Check("damage", "fail", " ".join(found), "docs/how-to/damage.md explains what to do.")
    if not pages:
        return Check(
            "damage", "ok", "no commit is missing; pages were not checked, because the file is large: `treadle store verify`"
        )
    return Check("damage", "ok", "none was found")


async def _clock(engine: Engine) -> Check:
    clock = SystemClock()
    before = clock.now()
    store_now = await engine.kernel.store.now()
    after = clock.now()
    apart = store_now - (before + after) // 2
    slack = (after - before) // 2
    found = (
        f"the store's clock is {span(apart)} {'ahead of' if apart >= 0 else 'behind'} this machine's (asked in {after - before} ms)"
    )
    if abs(apart) - slack > _CLOCK_FAIL_FOR:
        return Check(
            "clock", "warn", found, "Leases are safe, because the store's clock decides; but displayed times differ. Run NTP."
        )
    if abs(apart) - slack > _CLOCK_WARN_FOR:
        return Check("clock", "warn", found, "Run NTP on both machines.")
    return Check("clock", "ok", found)


def _fsync(url: str) -> Check:
    """Measure how long the disk takes to make a few bytes durable: the lower bound of a SQLite commit."""
    if not url.startswith("sqlite:///"):
        return Check("fsync", "ok", "the disk is the database server's")
    folder = Path(url.removeprefix("sqlite:///")).absolute().parent
    clock = SystemClock()
    took = []
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            for _ in range(20):
                began = clock.monotonic()
                file.write(b"x" * 4096)
                os.fsync(file.fileno())
                took.append((clock.monotonic() - began) * 1000)
    except OSError as error:
        return Check("fsync", "fail", f"cannot write in {folder}: {error.strerror}", "Grant write access, or free some space.")
    median = sorted(took)[len(took) // 2]
    found = f"{median:.2f} ms (median of 20)"
    if median > _SLOW_FSYNC_FOR:
        return Check("fsync", "warn", found, "Each commit waits for this; use a faster disk, or enqueue in batches.")
    return Check("fsync", "ok", found)


async def _work(engine: Engine) -> AsyncIterator[Check]:
    """Check for expired leases and lost servers."""
    now = await engine.kernel.store.now()
    running = await engine.list_tasks(states=("running",), limit=1000)
    late = [task for task in running if task.wake_at is not None and task.wake_at < now - _LATE_FOR]
    if late:
        found = f"{len(late)} of {len(running)} have expired without a takeover"
        yield Check("leases", "warn", found, "Start a worker; any worker takes over expired leases.")
    else:
        yield Check("leases", "ok", f"{len(running)} active, none overdue")
    servers = await engine.kernel.reads.list_servers()
    count = {word: sum(shown.state == word for shown in servers) for word in ("running", "lost")}
    found = f"{count['running']} running, {count['lost']} lost"
    if not count["running"]:
        yield Check("servers", "warn", found, "Start one with `treadle worker --handlers MODULE`.")
    else:
        yield Check("servers", "ok", found)
