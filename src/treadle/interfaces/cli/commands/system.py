"""`treadle status`, `recover`, `doctor`, `external rebuild` and `token create`: operations on the whole system."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from click.exceptions import Exit

from treadle.api.store import FINDING
from treadle.api.store import StoreFinding as Check
from treadle.api.system import STATUS
from treadle.api.view import words
from treadle.api.wire import to_builtins
from treadle.engine import Engine
from treadle.interfaces.cli.calls import until_end
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import details, facts, plain, table, together
from treadle.interfaces.cli.messages import FAILED, print_note
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.cli.values import seconds
from treadle.kernel.store.health import findings
from treadle.kernel.store.process import SystemClock
from treadle.kernel.store.units import Keep, Unit
from treadle.model.access import PRESET_DAYS, PRESETS, check_token_name, parse_scopes
from treadle.model.clock import span
from treadle.model.errors import SchemaBehind, StoreError, StoreUnavailable, TreadleError
from treadle.model.tasks import Claim
from treadle.version import VERSION

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.kernel.recovery import RecoveryReport


async def status(
    session: CommandSession, check: Annotated[bool, option("--check", help="Exit 1 if there is a problem, for scripts")] = False
) -> None:
    """Show the health of the system: problems, pending work, and workers."""
    async with session.api() as api:
        report = await api.system.status()
    session.show(report, lambda: details(STATUS, report, report.now))
    if check and report.health != "ok":
        raise Exit(FAILED)


async def recover(
    session: CommandSession,
    dry_run: Annotated[bool, option("--dry-run", help="Change nothing; print the actions")] = False,
    name: Annotated[
        str | None,
        option(
            metavar="NAME",
            help="Act as the worker with this name on this host: its earlier processes count as stopped, not as lost",
        ),
    ] = None,
) -> None:
    """Clean up after crashed processes: approvals, expired leases, schedules, watchers. Never touches the live work of others.

    Workers do the same when they start, and expired leases are taken over anyway. Safe to repeat at any time.
    """
    from treadle.engine.machine import SystemMachine
    from treadle.kernel.recovery import RecoveringServer

    machine = SystemMachine()
    place = RecoveringServer(name, machine.host, machine.has_ended)
    async with session.engine() as engine:
        report = await engine.kernel.recovery.recover(place, dry_run=dry_run)
    session.show(msgspec.to_builtins(report), lambda: _report(report))


def _report(report: RecoveryReport) -> RenderableType:
    closed = "would be canceled" if report.dry_run else "canceled"
    freed = "would be made ready" if report.dry_run else "made ready"
    rows: list[tuple[str, object]] = [
        ("1. approvals", f"{report.pending_approvals} pending, {report.overdue_approvals} of them overdue"),
        ("", f"{len(report.orphaned_approvals)} without a task, {closed}"),
        ("2. running work", f"{report.expired_leases} with an expired lease, {freed}"),
        ("", f"{report.own_tasks} of {len(report.own_servers)} dead process(es) of this machine, {freed}"),
        ("", f"{report.unknown_effects} effect(s) of these are unknown"),
    ]
    for number, service in enumerate(("schedules", "watchers"), 3):
        missed = report.others.get(service, [])
        rows.append((f"{number}. {service}", f"{len(missed)} with missed events"))
        rows += [("", f"{trigger.name}: {trigger.text}") for trigger in missed]
        rows += [("", f"{name}: its task was restored") for name in report.repaired.get(service, [])]
    rows += [("problem", problem) for problem in report.problems]
    rows.append(("5. loops", "then a worker starts to claim" if report.dry_run else "none: `treadle worker` starts them"))
    head = "Actions of a start-up (nothing was changed):" if report.dry_run else "Recovered:"
    return together(plain(head, "bold"), facts(rows))


_SLOW_FSYNC_FOR = 20.0
_CLOCK_WARN_FOR, _CLOCK_FAIL_FOR = 1_000, 10_000
_LATE_FOR = 5_000
_CHECKED_UP_TO = 512 * 1024**2
_NOBODY = "00000000-0000-7000-8000-000000000000"


async def doctor(session: CommandSession) -> None:
    """Check this machine and the store; exit 1 if a check fails."""
    checks = list(_machine(session))
    checks += [check async for check in _store(session)]
    value = {"ok": all(check.verdict != "fail" for check in checks), "checks": to_builtins(checks)}
    session.show(value, lambda: table(FINDING, checks, datetime.min))
    if not value["ok"]:
        raise Exit(FAILED)


def _machine(session: CommandSession) -> Iterator[Check]:
    from importlib.metadata import version

    from treadle.engine.worker_host import MIN_LEASE_FOR

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
    if lease * 1000 < MIN_LEASE_FOR:
        yield Check("lease", "warn", f"{lease:g} s", "Leases under 30 s are for demos and tests; unset TREADLE_LEASE.")
    else:
        yield Check("lease", "ok", f"{lease:g} s, renewed every {lease / 3:g} s")


async def _store(session: CommandSession) -> AsyncIterator[Check]:
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
    if damage := await engine.kernel.store.health.list_damage(pages=pages):
        return Check("damage", "fail", " ".join(damage), "docs/how-to/damage.md explains what to do.")
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
    summary = (
        f"the store's clock is {span(apart)} {'ahead of' if apart >= 0 else 'behind'} this machine's (asked in {after - before} ms)"
    )
    if abs(apart) - slack > _CLOCK_FAIL_FOR:
        return Check(
            "clock", "warn", summary, "Leases are safe, because the store's clock decides; but displayed times differ. Run NTP."
        )
    if abs(apart) - slack > _CLOCK_WARN_FOR:
        return Check("clock", "warn", summary, "Run NTP on both machines.")
    return Check("clock", "ok", summary)


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
    summary = f"{median:.2f} ms (median of 20)"
    if median > _SLOW_FSYNC_FOR:
        return Check("fsync", "warn", summary, "Each commit waits for this; use a faster disk, or enqueue in batches.")
    return Check("fsync", "ok", summary)


async def _work(engine: Engine) -> AsyncIterator[Check]:
    """Check for expired leases and lost workers."""
    now = await engine.kernel.store.now()
    running = await engine.kernel.reads.list_tasks(kind="handler", states=("running",), limit=1000)
    late = [task for task in running if task.wake_at is not None and task.wake_at < now - _LATE_FOR]
    if late:
        summary = f"{len(late)} of {len(running)} have expired without a takeover"
        yield Check("leases", "warn", summary, "Start a worker; any worker takes over expired leases.")
    else:
        yield Check("leases", "ok", f"{len(running)} active, none overdue")
    servers = await engine.kernel.reads.list_servers()
    count = {word: sum(server.state == word for server in servers) for word in ("running", "lost")}
    summary = f"{count['running']} running, {count['lost']} lost"
    if not count["running"]:
        yield Check("workers", "warn", summary, "Start one with `treadle worker --handlers MODULE`.")
    else:
        yield Check("workers", "ok", summary)


async def rebuild(session: CommandSession) -> None:
    """Rebuild every job's record from its events; `store verify` reports whether that is needed."""
    async with session.api() as api:
        done = await until_end(session, api.external_jobs.rebuild, lambda total: f"{total.records} record(s) so far")
    value = {"records": done.records, "changed": done.changed}
    session.show(value, lambda: plain(f"{done.records} record(s), {done.changed} of them rebuilt."))


_SCOPES = (
    "Scope: read, enqueue, work (includes enqueue), approve (read), operate (read, work), publish (read, enqueue), register (read) "
    "or admin (everything); repeatable"
)

_PRESETS = "Scopes for a person: " + ", ".join(f"{name} ({', '.join(scopes)})" for name, scopes in PRESETS.items())


async def create(
    session: CommandSession,
    name: Annotated[str, argument(metavar="NAME", help="Name recorded in the log, such as ci or ada@example.org")],
    scopes: Annotated[list[str] | None, option("--scope", metavar="SCOPE", help=_SCOPES)] = None,
    preset: Annotated[str | None, option(choices=tuple(PRESETS), help=_PRESETS)] = None,
    expires: Annotated[
        str | None,
        option(
            metavar="DURATION", help=f"Lifetime, e.g. 12h or 30d; default: {PRESET_DAYS}d with --preset, else until it is revoked"
        ),
    ] = None,
    lists: Annotated[
        list[str] | None, option("--list", metavar="LIST", help="Restrict it to this task list; repeatable; default: all")
    ] = None,
) -> None:
    """Create a token and print its secret, which is shown only once; stdout contains only the secret."""
    valid_for = seconds(expires or (f"{PRESET_DAYS}d" if preset else None), "--expires")
    granted = [*(scopes or ()), *(PRESETS[preset] if preset else ())]

    def check(_: object) -> None:
        check_token_name(name)
        parse_scopes(granted)

    async with session.api(migrate=True, first=check) as api:
        token = await api.tokens.create(name, granted, expires=valid_for, task_lists=lists or ())
    if session.json:
        session.show(token, lambda: plain(""))
        return
    sys.stdout.write(token.secret + "\n")
    sys.stdout.flush()
    until = f" until {words(token.expires_at)}" if token.expires_at else ""
    print_note(
        f"Token {name} ({', '.join(token.scopes)}) is valid{until}. Save its secret now: it is not stored and cannot be shown "
        "again. Callers send it as `Authorization: Bearer SECRET`."
    )
