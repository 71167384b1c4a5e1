"""`treadle watchers ...`: work that starts when files or URLs change: add, edit, show, scan, pause."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from treadle.api.options import WatcherChanges, WatcherOptions
from treadle.api.schedules import describe_target
from treadle.api.view import short
from treadle.engine import Engine
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.output.format import facts, grid, ms, plain, pretty, state, when
from treadle.interfaces.cli.session import NotOverHttp, Session
from treadle.model.clock import as_text, span
from treadle.model.errors import InvalidWatcher, TaskNotFound
from treadle.model.names import ENGINE_LIST, check_name
from treadle.model.watchers import DIRECTORY, FILE, SEEN, WatcherBody

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from treadle.api.tasks import TaskDetail
    from treadle.api.watchers import SeenItem, WatchedSource, Watcher

Name = Annotated[str, argument(metavar="NAME", help="The watcher's name, or its id")]

_PAGE = 100


async def add(
    session: Session,
    name: Annotated[str, argument(metavar="NAME", help="A name for it, e.g. incoming")],
    paused: Annotated[bool, option("--paused", help="Add it paused")] = False,
    dry_run: Annotated[
        bool, option("--dry-run", help="Change nothing; print the items that the first scan would find here")
    ] = False,
    **options: Unpack[WatcherOptions],
) -> None:
    """Start a task, a workflow or a function when files or a URL change.

    A DURATION is 90, 1.5s, 5m, 2h or 1d.
    """
    if not session.chosen.remote:  # a server's paths are not this machine's
        options.update(_absolute(options))
    if dry_run:
        _try_out(session, name, options)
        return
    async with session.api(migrate=True, first=lambda engine: _check_here(engine, name, options)) as api:
        watcher = await api.watchers.create(name, paused=paused, **options)
    session.show(watcher, lambda: plain(_added(watcher)))


def _added(watcher: Watcher) -> str:
    existing = "count as seen; --existing new starts work for them too" if watcher.existing == SEEN else "start work too"
    lines = [f"{watcher.name} is {watcher.state} now; items that already exist {existing}."]
    if watcher.error is not None:
        lines.append(f"It cannot scan on this machine: {watcher.error.get('message')}")
    return "\n".join(lines)


def _absolute(options: WatcherOptions) -> WatcherOptions:
    directory, file = options.get("directory"), options.get("file")
    found = WatcherOptions()
    if directory is not None:
        found["directory"] = str(Path(directory).absolute())
    if file is not None:
        found["file"] = str(Path(file).absolute())
    return found


def _check(engine: Engine, name: str, options: Mapping[str, Any]) -> WatcherBody:
    """Check the options."""
    from treadle.kernel.watchers.options import make_body

    check_name(name, "watcher name")
    body = make_body(options)
    engine.watchers.check(body)
    return body


def _check_here(engine: Engine, name: str, options: Mapping[str, Any]) -> None:
    """Check the options, and the path if workers are on this machine, before the database is created."""
    body = _check(engine, name, options)
    if body.looked_by == ENGINE_LIST and not engine.kernel.store.url.startswith("postgresql"):
        place = Path(body.source.place)
        if body.source.kind == DIRECTORY and not place.is_dir():
            raise InvalidWatcher(f"There is no directory {place}. Create it first.")
        if body.source.kind == FILE and not place.parent.is_dir():
            raise InvalidWatcher(f"There is no directory {place.parent}. Create it first.")


def _try_out(session: Session, name: str, options: Mapping[str, Any]) -> None:
    """Print the items that a scan would find on this machine now."""
    from treadle.model.watchers import HTTP, NEW
    from treadle.workers.scanner import fetch, scan

    if session.chosen.remote:
        raise NotOverHttp("A dry run scans this machine, not the server's: omit --server (and TREADLE_SERVER).")
    engine = Engine("memory://", settings=session.settings)
    body = _check(engine, name, options)
    if body.source.kind == HTTP:
        names, problem = ([] if fetch(body.source, None, engine.kernel.clock.monotonic).gone else [body.source.place]), None
    else:
        found = scan(body.source)
        names, problem = [each.name for each in found.found], found.problem
    started = len(names) if body.existing == NEW else 0
    counts = f"each would start {body.target.kind} {body.target.name}" if started else "they would count as seen"
    value = {"name": name, "dry_run": True, "found": len(names), "names": names[:100], "started": started, "problem": problem}
    said = "\n".join([f"{name} (not added): the first scan would find {len(names)} here; {counts}.", *names[:20]])
    session.show(value, lambda: plain(said if problem is None else f"{said}\n{problem}"))


async def edit(session: Session, name: Name, **options: Unpack[WatcherChanges]) -> None:
    """Change the interval, changes and target of a watcher; its source stays the same."""
    async with session.api() as api:
        _done(session, await api.watchers.edit(name, **options))


async def list_watchers(
    session: Session,
    ended: Annotated[bool, option("--all", help="Also show watchers that have ended")] = False,
    limit: Annotated[int, option(min=1, max=1000, help="Maximum number")] = _PAGE,
    before: Annotated[str | None, option(metavar="ID", help="Next page: only watchers older than this one")] = None,
) -> None:
    """List watchers, newest first."""
    async with session.api() as api:
        page = await api.watchers.list(every=ended, limit=limit, before=before)
    empty = "No watchers. Add one with `treadle watchers add NAME --directory PATH --task NAME`."
    session.show_page(page, page.watchers, empty, lambda: _table(page.watchers), before=page.next_before)


async def show(session: Session, name: Name) -> None:
    """Show one watcher: its source, target and recent changes, and its error if it cannot scan."""
    async with session.api() as api:
        watcher = await api.watchers.get(name)
        try:
            task = None if watcher.task_id is None else await api.tasks.get(watcher.task_id)
        except TaskNotFound:  # the watcher has ended
            task = None
        now = (await api.system.time()).now
    session.show(watcher, lambda: show_watcher(watcher, task, now))


async def seen(
    session: Session,
    name: Name,
    after: Annotated[str | None, option(metavar="NAME", help="Next page: only names after this one")] = None,
    limit: Annotated[int, option(min=1, max=1000, help="Maximum number")] = _PAGE,
) -> None:
    """List the items that a watcher has seen, by name."""
    async with session.api() as api:
        page = await api.watchers.seen(name, after=after, limit=limit)
    session.show_page(page, page.seen, "No items seen yet.", lambda: _seen(page.seen), after=page.next_after)


async def pause(session: Session, name: Name) -> None:
    """Pause a watcher; started work continues."""
    async with session.api() as api:
        _done(session, await api.watchers.pause(name))


async def resume(session: Session, name: Name) -> None:
    """Resume a paused watcher; it reports the changes made meanwhile immediately."""
    async with session.api() as api:
        _done(session, await api.watchers.resume(name))


async def remove(session: Session, name: Name) -> None:
    """Remove a watcher; started work continues."""
    async with session.api() as api:
        _done(session, await api.watchers.remove(name))


async def look(session: Session, name: Name) -> None:
    """Scan as soon as a worker is free, instead of at the next interval."""
    async with session.api() as api:
        found = await api.watchers.look(name)
    session.show(found, lambda: plain(f"{found.name} is scanned as soon as a worker is free"))


def _done(session: Session, watcher: Watcher) -> None:
    session.show(watcher, lambda: plain(f"{watcher.name} is {watcher.state} now"))


def source_words(source: WatchedSource) -> str:
    """The scanned source, in a few words."""
    if source.kind != DIRECTORY:
        return source.place
    pattern = source.pattern or "*"
    depth = "**/" if source.recursive and "**" not in pattern else ""
    return f"{source.place.rstrip('/')}/{depth}{pattern}"


def _table(watchers: list[Watcher]) -> RenderableType:
    table = grid("name", "state", "source", "?every", "?on", "starts", "?>seen", "?>fired", "note")
    for each in watchers:
        table.add_row(
            plain(each.name),
            state(each.state),
            plain(source_words(each.source)),
            span(each.every_for),
            plain(", ".join(each.changes)),
            plain(describe_target(each.target)),
            str(each.items),
            str(each.fired),
            plain(short((each.error or {}).get("message", ""))),
        )
    return table


def show_watcher(watcher: Watcher, task: TaskDetail | None, now: datetime) -> RenderableType:
    """One watcher in full."""
    from rich.console import Group

    rows: list[tuple[str, object]] = [
        ("id", watcher.id),
        ("state", state(watcher.state)),
        ("source", source_words(watcher.source)),
        ("on", ", ".join(watcher.changes)),
        ("starts", describe_target(watcher.target)),
        ("every", span(watcher.every_for)),
        ("settles", span(watcher.settle_for)),
        ("seen", f"{watcher.items}; files that existed when it was added count as {watcher.existing}"),
        ("fired", watcher.fired),
    ]
    if task is not None and task.finished_at is None:
        rows += [
            ("last scan", when(task.claimed_at, now)),
            ("next scan", when(task.wake_at or task.due_at, now)),
            ("task", task.id),
        ]
    parts: list[RenderableType] = [plain(watcher.name, "bold"), facts(rows)]
    if watcher.target.inputs:
        parts += [plain("inputs", "bold"), pretty(watcher.target.inputs)]
    if watcher.error is not None:
        since = when(watcher.error_at, now)
        parts.append(plain(f"cannot scan: {watcher.error.get('code')}: {watcher.error.get('message')} Since {since}.", "red"))
    if watcher.recent:
        table = grid("at", "change", "name", "started")
        for each in watcher.recent:
            table.add_row(as_text(ms(each.at)), plain(each.change), plain(each.name), plain(f"{each.kind} {each.id}"))
        parts.append(table)
    return Group(*parts)


def _seen(seen: list[SeenItem]) -> RenderableType:
    table = grid("name", ">size", "hash", "note")
    for item in seen:
        size = "" if item.size is None else str(item.size)
        table.add_row(plain(item.name), size, plain(short(item.hash or "", 20)), plain("settling" if item.settling else ""))
    return table
