"""`treadle watchers ...`: work that starts when files or URLs change: add, edit, show, scan, pause."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from treadle.api.options import WatcherOptions
from treadle.api.watchers import WATCHER
from treadle.engine import Engine
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import details, facts, plain, together, when
from treadle.interfaces.cli.session import NotOverHttp, Session
from treadle.model.errors import InvalidWatcher, TaskNotFound
from treadle.model.names import ENGINE_LIST, check_name
from treadle.model.watchers import DIRECTORY, FILE, SEEN, WatcherBody

if TYPE_CHECKING:
    from treadle.api.facade import Api
    from treadle.api.watchers import Watcher

Name = Annotated[str, argument(metavar="NAME", help="The watcher's name, or its id")]


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


async def show_watcher(session: Session, api: Api, watcher: Watcher) -> None:
    """Show one watcher, with its last and its next scan."""
    try:
        task = None if watcher.task_id is None else await api.tasks.get(watcher.task_id)
    except TaskNotFound:  # the watcher has ended
        task = None
    now = (await api.system.time()).now
    scans: list[tuple[str, object]] = []
    if task is not None and task.finished_at is None:
        next_scan = when(task.wake_at or task.due_at, now)
        scans = [("last scan", when(task.claimed_at, now)), ("next scan", next_scan), ("task", task.id)]
    session.show(watcher, lambda: together(details(WATCHER, watcher, now), facts(scans)))
