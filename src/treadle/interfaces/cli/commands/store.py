"""`treadle store ...`, `treadle namespaces ...` and `treadle import ...`: the database and its contents."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from click.exceptions import Exit

from treadle.api.store import FINDING, QUEUE, TABLE
from treadle.api.wire import to_builtins
from treadle.interfaces.cli.calls import until_end
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import facts, grid, plain, state, table, together
from treadle.interfaces.cli.messages import FAILED, end_progress, print_progress
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.cli.values import seconds
from treadle.model.errors import InvalidInput, Refused, TreadleError
from treadle.settings import read_directory

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.facade import Api
    from treadle.api.store import PruneStep, StoreInfo
    from treadle.engine import Engine
    from treadle.kernel.store.transfer import Header


async def migrate(
    session: CommandSession,
    to: Annotated[
        int | None, option(metavar="N", help="Migrate to this version instead of the newest; going down drops data")
    ] = None,
    yes: Annotated[bool, option("--yes", help="Confirm that data of later versions is dropped")] = False,
    wait: Annotated[
        float, option(metavar="SECONDS", min=0, max=86_400, help="Wait this long for a database that cannot be reached")
    ] = 0,
) -> None:
    """Create the tables, or migrate them to the newest version; does nothing if they are at that version."""
    if to is not None and to < 0:
        raise InvalidInput("--to takes a schema version, 0 or higher.")
    async with _migrated(session, wait) as engine:
        version = (await engine.kernel.store.health.describe())["schema_version"]
        if to is not None and to != version:
            if isinstance(version, int) and to < version and not yes:
                raise Refused(f"Going from schema {version} down to {to} drops data. Add --yes to confirm.")
            await engine.kernel.store.migrate_to(to)
            if to:  # version 0 has no log
                await _log(session, engine, "migrate", {"schema_version": version}, {"schema_version": to})
            version = to
        else:
            await engine.kernel.store.retention.prepare(engine.kernel.retention.rules)
        url = engine.kernel.store.url
    session.show({"store": url, "schema_version": version}, lambda: plain(f"{url} is at schema version {version}"))


@asynccontextmanager
async def _migrated(session: CommandSession, wait: float) -> AsyncIterator[Engine]:
    """An engine on the migrated store; a database that cannot be reached is tried again for `wait` seconds."""
    if not wait:
        async with session.engine(migrate=True) as engine:
            yield engine
        return
    from treadle.engine import Engine
    from treadle.interfaces.cli.host import opened, stop_signal

    session.need_store()
    stop = stop_signal()
    asyncio.get_running_loop().call_later(wait, stop.set)
    async with opened(Engine(session.settings.store, settings=session.settings), stop) as engine:
        yield engine


_PROBLEMS = 1000
"""Limit on the problems that are listed."""


async def verify(session: CommandSession) -> None:
    """Check that the log explains every row, and that every stored document can be read; list the problems and exit 1 if not."""
    async with session.api() as api:
        done = await until_end(session, api.store.verify, lambda part: f"{part.checked} histories checked")
    checked, problems = done.checked, done.problems[:_PROBLEMS]
    session.show({"holds": not problems, "checked": checked, "problems": problems}, lambda: _report(checked, problems))
    if problems:
        raise Exit(FAILED)


def _report(checked: int, problems: list[str]) -> RenderableType:
    from rich.console import Group

    if not problems:
        return plain(f"The log is consistent: {checked} histories checked, no problems.", "green")
    count = f"{len(problems)} or more" if len(problems) == _PROBLEMS else len(problems)
    return Group(
        plain(f"The store is NOT consistent: {checked} histories checked, {count} problem(s):", "bold red"),
        *(plain(f"  {problem}") for problem in problems),
    )


async def show_info(session: CommandSession, api: Api, info: StoreInfo) -> None:
    """Show the store: kind, contents, health and risks."""
    now = (await api.system.time()).now
    value = to_builtins(info)
    session.show({"store": value.pop("store"), **value.pop("described"), **value}, lambda: _overview(info, now))


def _overview(info: StoreInfo, now: datetime) -> RenderableType:
    rows: list[tuple[str, object]] = [
        (name.replace("_", " "), value)
        for name, value in info.described.items()
        if value is not None and name not in ("finished_tasks", "url")
    ]
    about = "" if info.finished_exact else "about "
    finished = ", ".join(f"{about}{count} {name}" for name, count in sorted(info.finished.items())) or "none"
    risks = [finding for finding in info.health.findings if finding.verdict != "ok"]
    parts: list[RenderableType] = [plain(info.store, "bold"), facts([*rows, ("finished", finished)])]
    for title, view, records in (
        ("Live tasks", QUEUE, info.queues),
        ("Tables", TABLE, info.health.tables),
        ("Risks", FINDING, risks),
    ):
        if records:
            parts += [plain(f"\n{title}", "bold"), table(view, records, now)]
    return together(*parts)


_COUNTS = {
    "trees": "",
    "tasks": "tasks",
    "runs": "runs",
    "steps": "steps",
    "transitions": "transitions",
    "lines": "lines",
    "blobs": "big values",
    "records": "records",
    "outcomes": "outcomes of effects",
    "dedupe_keys": "idempotency keys",
    "servers": "servers",
    "freed": "",
}
"""Counted rows and their names for people."""


async def prune(
    session: CommandSession,
    older_than: Annotated[
        str | None,
        option(metavar="AGE", help="Prune by this age instead of the default rules, e.g. 7d; rules of lists still apply"),
    ] = None,
    tree: Annotated[str | None, option(metavar="ID", help="Only the tree of this task or run, regardless of its age")] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Change nothing; print the numbers")] = False,
    compact: Annotated[bool, option("--compact", help="Then rewrite the SQLite file to its smallest size")] = False,
) -> None:
    """Remove finished trees older than their retention; never touches an active tree. Workers do this every hour."""
    age = seconds(older_than, "--older-than")
    if age is not None and age < 0:
        raise InvalidInput(f"--older-than must be zero or more, not {older_than}.")
    if tree is not None and (dry_run or age is not None):
        raise InvalidInput("--tree cannot be combined with --older-than or --dry-run: it removes one tree regardless of its age.")
    if dry_run and compact:
        raise InvalidInput("--compact changes the file and cannot be combined with --dry-run.")
    if compact and session.chosen.remote:
        raise InvalidInput("--compact rewrites the file on the store's own machine: omit --server.", code="not_over_http")
    async with session.api() as api:
        if tree is not None:
            done = await api.store.prune_tree(tree)
        else:
            done = await until_end(session, api.store.prune, _pruned, older_than=age, dry_run=dry_run)
    total = to_builtins(done)
    if compact:
        async with session.engine() as engine:
            total["freed"] += await engine.kernel.store.retention.compact(whole=True)
    del total["next_after"]
    session.show(total, lambda: plain(_words(total)))


def _pruned(total: PruneStep) -> str:
    return f"{total.trees} trees, {total.tasks} tasks"


def _words(total: dict[str, Any]) -> str:
    if total["dry_run"]:
        return f"{total['trees']} trees with {total['tasks']} finished tasks would be pruned; nothing was changed."
    parts = ", ".join(f"{total[name]} {word}" for name, word in _COUNTS.items() if word and total[name])
    freed = f"; {total['freed'] // 1024} KiB freed" if total["freed"] else ""
    return f"{total['trees']} trees pruned{f' ({parts})' if parts else ''}{freed}."


async def compact(session: CommandSession) -> None:
    """Return free space of a SQLite file to the file system, in short steps beside running workers."""
    freed = 0
    async with session.engine() as engine:
        store = engine.kernel.store
        while step := await store.retention.compact(tight=True):
            freed += step
            print_progress(session, f"{freed // 1024} KiB freed")
        size = (await store.health.check()).bytes
        url = store.url
    end_progress(session)
    text = f"{url}: {freed // 1024} KiB freed, {size // 1024} KiB in use"
    session.show({"store": url, "freed": freed, "bytes": size}, lambda: plain(text))


async def backup(
    session: CommandSession, path: Annotated[str, argument(metavar="PATH", help="A file that does not exist yet")]
) -> None:
    """Copy the store into a new file while it is in use (SQLite; on PostgreSQL, prints how to use pg_dump)."""
    async with session.engine() as engine:
        size = await engine.kernel.store.health.backup(path)
        url = engine.kernel.store.url
    session.show({"store": url, "path": path, "bytes": size}, lambda: plain(f"{url} copied to {path} ({size // 1024} KiB)"))


async def export(
    session: CommandSession, path: Annotated[str, argument(metavar="FILE", help="A new file; compressed if its name ends with .gz")]
) -> None:
    """Write the namespace with its history to a file, for `store import`. Stop its workers before."""
    from treadle.kernel.store.transfer import export_namespace

    namespace = session.settings.namespace
    async with session.engine() as engine:
        header = await export_namespace(engine.kernel.store, namespace, Path(path), lambda line: print_progress(session, line))
    _show_transfer(session, header, path, f"Exported the namespace {namespace} to {path}")


async def import_file(
    session: CommandSession, path: Annotated[str, argument(metavar="FILE", help="A file that `store export` has written")]
) -> None:
    """Import a namespace into a store, of any kind, that has nothing of it: all of the file or nothing."""
    from treadle.kernel.store.transfer import import_namespace

    namespace = session.settings.namespace
    async with session.engine(migrate=True) as engine:
        header = await import_namespace(engine.kernel.store, namespace, Path(path), lambda line: print_progress(session, line))
        await _log(session, engine, "import", None, {"path": path, "rows": _rows(header)})
        url = engine.kernel.store.url
    _show_transfer(session, header, path, f"Imported the namespace {namespace} into {url}")


def _show_transfer(session: CommandSession, header: Header, path: str, text: str) -> None:
    end_progress(session)
    rows = _rows(header)
    value = {"namespace": header.treadle_namespace, "path": path, "rows": rows}
    session.show(value, lambda: plain(f"{text} ({sum(rows.values())} rows)"))


def _rows(header: Header) -> dict[str, int]:
    return {name: digest.rows for name, digest in header.tables.items()}


async def _log(session: CommandSession, engine: Engine, operation: str, before: Any, after: Any) -> None:
    """Log an operation on the whole store."""
    from treadle.kernel.operations import log_operation

    await log_operation(engine.kernel.core, f"store.{operation}", engine.kernel.store.url, session.actor, after, before)


async def accept(
    session: CommandSession, yes: Annotated[bool, option("--yes", help="Confirm that the missing commits are lost")] = False
) -> None:
    """Continue with a SQLite store that lacks commits: a restored backup, or one that has lost its -wal file."""
    from treadle.engine import Engine  # opened, it would refuse such a store

    if not yes:
        raise Refused("This gives up commits that were acknowledged but are not in the store any more. Add --yes to confirm.")
    engine = Engine(session.settings.store, settings=session.settings)
    store = engine.kernel.store
    removed = await store.health.accept_damage()
    if removed is not None:
        async with engine:
            await _log(session, engine, "accept", None, {"removed": removed})
    message = "Nothing was recorded about its commits" if removed is None else f"The record of {removed}, was removed"
    session.show({"store": store.url, "removed": removed}, lambda: plain(f"{message}; {store.url} can be used as it is."))


_WITHIN = 10.0
"""Seconds that a store has to answer."""


async def list_namespaces(session: CommandSession) -> None:
    """List the namespaces of the directory and of its stores: where each lives, and whether that store answers."""
    session.need_store()
    directory = read_directory(session.settings.directory) if session.settings.directory else None
    listed = {} if directory is None else directory.namespaces
    default = session.settings.store if directory is None else directory.store or session.default_store
    looks = await asyncio.gather(*(_look(session, url) for url in dict.fromkeys([*listed.values(), default])))
    looks_by_url = {look["url"]: look for look in looks}
    names = listed | {name: default for name in looks_by_url[default]["namespaces"] if name not in listed}
    rows = [
        {
            "namespace": name,
            "store": looks_by_url[url]["shown"],
            "listed": name in listed,
            "reachable": looks_by_url[url]["error"] is None,
            "error": looks_by_url[url]["error"],
        }
        for name, url in sorted(names.items())
    ]
    value = {"directory": session.settings.directory or None, "default": looks_by_url[default]["shown"], "namespaces": rows}
    session.show(value, lambda: _namespaces(rows, value["default"]))


async def _look(session: CommandSession, url: str) -> dict[str, Any]:
    """Return the namespaces of a store, or the reason why it does not answer."""
    from treadle.engine import Engine

    engine = Engine(url, settings=replace(session.settings, store=url))
    look: dict[str, Any] = {"url": url, "shown": engine.kernel.store.url, "namespaces": [], "error": None}
    try:
        async with asyncio.timeout(_WITHIN):
            await engine.open(migrate=False)
            look["namespaces"] = await engine.kernel.store.namespaces.list_names()
    except TimeoutError:
        look["error"] = f"It did not answer within {_WITHIN:g} s."
    except TreadleError as error:
        look["error"] = str(error)
    finally:
        await engine.close()
    return look


def _namespaces(rows: list[dict[str, Any]], default: str) -> RenderableType:
    namespace_table = grid("namespace", "store", "placed by", "")
    for row in rows:
        by = "the directory" if row["listed"] else "default"
        namespace_table.add_row(
            plain(row["namespace"]), plain(row["store"]), by, plain(row["error"]) if row["error"] else state("ok")
        )
    return together(namespace_table, plain(f"\nAll others: {default}"))


async def mongodump(
    session: CommandSession,
    folder: Annotated[Path, argument(metavar="DIR", help="The folder that mongodump wrote")],
    dry_run: Annotated[bool, option("--dry-run", help="Read and check everything, and import nothing")] = False,
) -> None:
    """Import flows, handler registrations and finished runs of the AFL reference implementation; safe to repeat."""
    from treadle.agents.mongodump import Mongodump

    counts, skipped = Counter[tuple[str, str]](), list[dict[str, str]]()
    async with session.engine(migrate=True) as engine:
        async for what, name, outcome, reason in Mongodump(folder, engine, dry_run=dry_run).load():
            counts[what, outcome] += 1
            skipped += [{"what": what, "name": name, "reason": reason}] if outcome == "skipped" else []
            print_progress(session, f"{counts.total()} records read")
    end_progress(session)
    outcomes = ("imported", "unchanged", "skipped")
    by_kind = {f"{what}s": {outcome: counts[what, outcome] for outcome in outcomes} for what in ("flow", "handler", "run")}

    def shown() -> RenderableType:
        from rich.console import Group

        table = grid("", ">would import" if dry_run else ">imported", ">unchanged", ">skipped")
        for what, by in by_kind.items():
            table.add_row(what, *map(str, by.values()))
        return Group(
            table, *(plain(f"skipped {record['what']} {record['name']}: {record['reason']}", "yellow") for record in skipped)
        )

    session.show({"dry_run": dry_run, **by_kind, "problems": skipped}, shown)
