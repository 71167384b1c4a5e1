"""`treadle watchers ...`: what is started when files or addresses change: add, edit, look, pause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from treadle.cli.command import argument, option
from treadle.cli.commands.schedules import target_words
from treadle.cli.input.timed_options import TARGET, Options, said, takes
from treadle.cli.output.format import facts, grid, ms, plain, pretty, short, state, when
from treadle.cli.session import NotOverHttp, Session
from treadle.engine import Engine
from treadle.model.clock import as_text, span
from treadle.model.errors import TaskNotFound
from treadle.model.names import check_name
from treadle.model.watchers import DIRECTORY

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from treadle.api.tasks import TaskDetail
    from treadle.api.watchers import SeenPage, WatchedSource, Watcher, WatcherPage

Name = Annotated[str, argument(metavar="NAME", help="The watcher's name, or its id")]

_WHERE, _HOW = "Where", "How"
_PAGE = 100

PLACE: Options = {
    "directory": Annotated[str | None, option(metavar="PATH", help="Files of this directory, where the workers run", panel=_WHERE)],
    "file": Annotated[str | None, option(metavar="PATH", help="This one file", panel=_WHERE)],
    "url": Annotated[str | None, option(metavar="URL", help="What this http(s) address answers", panel=_WHERE)],
    "pattern": Annotated[str | None, option(metavar="GLOB", help="Which files: '*.csv', 'in/**/*.csv'; default all", panel=_WHERE)],
    "existing": Annotated[str | None, option(metavar="seen|new", help="What the first look finds; default seen", panel=_WHERE)],
}
HOW: Options = {
    "changes": Annotated[
        list[str] | None,
        option("--on", metavar="CHANGE", help="created, modified or deleted; may be repeated", panel=_HOW),
    ],
    "every": Annotated[str | None, option(metavar="DURATION", help="How often it looks; default 30s", panel=_HOW)],
    "settle": Annotated[str | None, option(metavar="DURATION", help="A file must stay the same so long; default 2s", panel=_HOW)],
    "hashing": Annotated[
        bool | None,
        option("--hash/--no-hash", help="Whether only other content makes a file modified; default yes", panel=_HOW),
    ],
    "fetch_timeout": Annotated[str | None, option(metavar="DURATION", help="Longest wait for an answer", panel=_HOW)],
    "looked_by": Annotated[
        str | None, option(metavar="LIST", help="Only workers of this task list look; default: all", panel=_HOW)
    ],
}
CHANGE: Options = {
    "change_as": Annotated[str | None, option(metavar="KEY", help="The field that gets the change; default change", panel="What")],
}
_DURATIONS = ("every", "settle", "timeout", "fetch_timeout")


@takes(PLACE, HOW, TARGET, CHANGE)
async def add(
    session: Session,
    /,
    name: Annotated[str, argument(metavar="NAME", help="A name for it, e.g. incoming")],
    recursive: Annotated[bool, option("--recursive", help="The pattern counts at every depth", panel=_WHERE)] = False,
    paused: Annotated[bool, option("--paused", help="Begin paused")] = False,
    dry_run: Annotated[bool, option("--dry-run", help="Say what the first look would find here, and do nothing")] = False,
    **given: Any,
) -> None:
    """Start a task, a workflow or a function when files or an address change."""
    options = said(given | {"recursive": recursive or None}, durations=_DURATIONS)
    if not session.chosen.remote:  # else it is not this machine's folder that is meant
        options |= _absolute(options)
    if dry_run:
        _try_out(session, name, options)
        return
    async with session.api(migrate=True, first=lambda engine: _check(engine, name, options)) as api:
        _done(session, await api.watchers.create(name, paused=paused, **options))


def _absolute(options: dict[str, Any]) -> dict[str, str]:
    return {place: str(Path(options[place]).absolute()) for place in ("directory", "file") if place in options}


def _check(engine: Engine, name: str, options: dict[str, Any]) -> None:
    """Bad input does not even make the database."""
    from treadle.kernel.watchers.options import make_body

    check_name(name, "watcher name")
    engine.watchers.check(make_body(options))


def _try_out(session: Session, name: str, options: dict[str, Any]) -> None:
    """What a look would find on this machine, now."""
    from treadle.kernel.watchers.options import make_body
    from treadle.model.watchers import HTTP, NEW
    from treadle.workers.fetch import fetch
    from treadle.workers.scanner import scan

    if session.chosen.remote:
        raise NotOverHttp("A dry run looks at this machine, and not at the server's: leave --server (and TREADLE_SERVER) out.")
    engine = Engine("memory://", settings=session.settings)
    _check(engine, name, options)
    body = make_body(options)
    if body.source.kind == HTTP:
        names, problem = ([] if fetch(body.source, None, engine.kernel.clock.monotonic).gone else [body.source.place]), None
    else:
        found = scan(body.source)
        names, problem = [each.name for each in found.found], found.problem
    started = len(names) if body.existing == NEW else 0
    counts = f"each would start {body.target.kind} {body.target.name}" if started else "they would count as seen"
    value = {"name": name, "dry_run": True, "found": len(names), "names": names[:100], "started": started, "problem": problem}
    said = "\n".join([f"{name} (not added): the first look would find {len(names)} here; {counts}.", *names[:20]])
    session.show(value, lambda: plain(said if problem is None else f"{said}\n{problem}"))


@takes(HOW, TARGET, CHANGE)
async def edit(session: Session, /, name: Name, **given: Any) -> None:
    """Change how a watcher looks and what it starts; what it looks at stays."""
    options = said(given, durations=_DURATIONS)
    async with session.api() as api:
        _done(session, await api.watchers.edit(name, **options))


async def list_watchers(
    session: Session,
    ended: Annotated[bool, option("--all", help="Those that have ended, too")] = False,
    limit: Annotated[int, option(min=1, max=1000, help="At most that many")] = _PAGE,
    before: Annotated[str | None, option(metavar="ID", help="The next page: only older ones than this")] = None,
) -> None:
    """List watchers, newest first."""
    async with session.api() as api:
        page = await api.watchers.list(every=ended, limit=limit, before=before)
    given = {"all": ended, "limit": None if limit == _PAGE else limit}
    session.show(page, lambda: watchers_table(page, session.again("watchers list", **given, before=page.next_before)))


async def show(session: Session, name: Name) -> None:
    """Everything about one watcher: what it looks at, what it told of last, and why if it cannot look."""
    async with session.api() as api:
        watcher = await api.watchers.get(name)
        try:
            task = None if watcher.task_id is None else await api.tasks.get(watcher.task_id)
        except TaskNotFound:  # of a watcher that has ended
            task = None
        now = (await api.system.time()).now
    session.show(watcher, lambda: show_watcher(watcher, task, now))


async def seen(
    session: Session,
    name: Name,
    after: Annotated[str | None, option(metavar="NAME", help="The next page: only names after this one")] = None,
    limit: Annotated[int, option(min=1, max=1000, help="At most that many")] = _PAGE,
) -> None:
    """List what a watcher has seen, in order of name."""
    async with session.api() as api:
        page = await api.watchers.seen(name, after=after, limit=limit)
    session.show(page, lambda: seen_table(page))


async def pause(session: Session, name: Name) -> None:
    """Let it not look until it is resumed; what was started goes on."""
    async with session.api() as api:
        _done(session, await api.watchers.pause(name))


async def resume(session: Session, name: Name) -> None:
    """Let a paused watcher go on, at once: what changed meanwhile is told of now."""
    async with session.api() as api:
        _done(session, await api.watchers.resume(name))


async def remove(session: Session, name: Name) -> None:
    """End a watcher; what it started goes on."""
    async with session.api() as api:
        _done(session, await api.watchers.remove(name))


async def look(session: Session, name: Name) -> None:
    """Let it look as soon as a worker can, instead of when it is due."""
    async with session.api() as api:
        found = await api.watchers.look(name)
    session.show(found, lambda: plain(f"{found.name} looks as soon as a worker can"))


def _done(session: Session, watcher: Watcher) -> None:
    session.show(watcher, lambda: plain(f"{watcher.name} is {watcher.state} now"))


def source_words(source: WatchedSource) -> str:
    """What is looked at, in a few words."""
    if source.kind != DIRECTORY:
        return source.place
    pattern = source.pattern or "*"
    depth = "**/" if source.recursive and "**" not in pattern else ""
    return f"{source.place.rstrip('/')}/{depth}{pattern}"


def watchers_table(page: WatcherPage, more: str) -> RenderableType:
    """Watchers in a list."""
    from rich.console import Group

    if not page.watchers:
        return plain("No watchers. Add one with `treadle watchers add NAME --directory PATH --task NAME`.")
    table = grid("name", "state", "looks at", "every", "on", "starts", ">seen", ">fired", "note")
    for each in page.watchers:
        table.add_row(
            plain(each.name),
            state(each.state),
            plain(source_words(each.source)),
            span(each.every_for),
            plain(", ".join(each.changes)),
            plain(target_words(each.target)),
            str(each.items),
            str(each.fired),
            plain(short((each.error or {}).get("message", ""))),
        )
    return Group(table, plain(f"More: {more}", "dim")) if page.next_before else table


def show_watcher(watcher: Watcher, task: TaskDetail | None, now: datetime) -> RenderableType:
    """One watcher with all there is to say."""
    from rich.console import Group

    rows: list[tuple[str, object]] = [
        ("id", watcher.id),
        ("state", state(watcher.state)),
        ("looks at", source_words(watcher.source)),
        ("on", ", ".join(watcher.changes)),
        ("starts", target_words(watcher.target)),
        ("every", span(watcher.every_for)),
        ("settles", span(watcher.settle_for)),
        ("seen", f"{watcher.items}; what the first look found counted as {watcher.existing}"),
        ("fired", watcher.fired),
    ]
    if task is not None and task.finished_at is None:
        rows += [
            ("last look", when(task.claimed_at, now)),
            ("next look", when(task.wake_at or task.due_at, now)),
            ("task", task.id),
        ]
    parts: list[RenderableType] = [plain(watcher.name, "bold"), facts(rows)]
    if watcher.target.inputs:
        parts += [plain("inputs", "bold"), pretty(watcher.target.inputs)]
    if watcher.error is not None:
        since = when(watcher.error_at, now)
        parts.append(plain(f"cannot look: {watcher.error.get('code')}: {watcher.error.get('message')} Since {since}.", "red"))
    if watcher.recent:
        table = grid("at", "change", "name", "started")
        for each in watcher.recent:
            table.add_row(as_text(ms(each.at)), plain(each.change), plain(each.name), plain(f"{each.kind} {each.id}"))
        parts.append(table)
    return Group(*parts)


def seen_table(page: SeenPage) -> RenderableType:
    """What a watcher has seen."""
    from rich.console import Group

    if not page.seen:
        return plain("It has seen nothing yet.")
    table = grid("name", ">size", "hash", "note")
    for item in page.seen:
        size = "" if item.size is None else str(item.size)
        table.add_row(plain(item.name), size, plain(short(item.hash or "", 20)), plain("settling" if item.settling else ""))
    return Group(table, plain(f"More: --after {page.next_after!r}", "dim")) if page.next_after else table
