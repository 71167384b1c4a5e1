"""`treadle watchers ...`: what is started when files or addresses change: add, edit, look, pause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli.inputs import payload, seconds
from treadle.cli.schedules import (
    FlowOption,
    FunctionOption,
    ListOption,
    ParamOption,
    PayloadOption,
    PriorityOption,
    RetryOption,
    TaskOption,
    TimeoutOption,
    WorkflowOption,
)
from treadle.cli.session import Session
from treadle.cli.show_watcher import seen_table, show_watcher, watcher_json, watchers_table
from treadle.cli.words import plain
from treadle.model.names import check_name
from treadle.wiring.engine import Engine

if TYPE_CHECKING:
    from treadle.kernel.watchers import Watcher

Name = Annotated[str, typer.Argument(metavar="NAME", help="The watcher's name, or its id")]

_WHERE, _HOW = "Where", "How"

DirectoryOption = Annotated[
    str | None, typer.Option(metavar="PATH", help="Files of this directory, where the workers run", rich_help_panel=_WHERE)
]
FileOption = Annotated[str | None, typer.Option(metavar="PATH", help="This one file", rich_help_panel=_WHERE)]
UrlOption = Annotated[str | None, typer.Option(metavar="URL", help="What this http(s) address answers", rich_help_panel=_WHERE)]
PatternOption = Annotated[
    str | None, typer.Option(metavar="GLOB", help="Which files: '*.csv', 'in/**/*.csv'; default all", rich_help_panel=_WHERE)
]
RecursiveOption = Annotated[bool, typer.Option("--recursive", help="The pattern counts at every depth", rich_help_panel=_WHERE)]
ExistingOption = Annotated[
    str | None, typer.Option(metavar="seen|new", help="What the first look finds; default seen", rich_help_panel=_WHERE)
]
OnOption = Annotated[
    list[str] | None,
    typer.Option("--on", metavar="CHANGE", help="created, modified or deleted; may be repeated", rich_help_panel=_HOW),
]
EveryOption = Annotated[str | None, typer.Option(metavar="DURATION", help="How often it looks; default 30s", rich_help_panel=_HOW)]
SettleOption = Annotated[
    str | None, typer.Option(metavar="DURATION", help="A file must stay the same so long; default 2s", rich_help_panel=_HOW)
]
HashOption = Annotated[
    bool | None,
    typer.Option("--hash/--no-hash", help="Whether only other content makes a file modified; default yes", rich_help_panel=_HOW),
]
FetchOption = Annotated[
    str | None, typer.Option("--fetch-timeout", metavar="DURATION", help="Longest wait for an answer", rich_help_panel=_HOW)
]
LookedByOption = Annotated[
    str | None, typer.Option(metavar="LIST", help="Only workers of this task list look; default: all", rich_help_panel=_HOW)
]
ChangeAsOption = Annotated[
    str | None, typer.Option(metavar="KEY", help="The field that gets the change; default change", rich_help_panel="What")
]


def _options(whole: str | None, pairs: list[str] | None, **given: Any) -> dict[str, Any]:
    """What was said, in the words of `WatcherOptions`; what was not said is not in it."""
    for name in ("every", "settle", "timeout", "fetch_timeout"):
        given[name] = seconds(given[name], f"--{name.replace('_', '-')}")
    for name in ("directory", "file"):
        if given.get(name) is not None:
            given[name] = str(Path(given[name]).absolute())
    given["inputs"] = payload(whole, pairs or ())
    return {name: value for name, value in given.items() if value is not None}


async def add(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for it, e.g. incoming")],
    directory: DirectoryOption = None,
    file: FileOption = None,
    url: UrlOption = None,
    pattern: PatternOption = None,
    recursive: RecursiveOption = False,
    existing: ExistingOption = None,
    on: OnOption = None,
    every: EveryOption = None,
    settle: SettleOption = None,
    hashing: HashOption = None,
    fetch_timeout: FetchOption = None,
    looked_by: LookedByOption = None,
    task: TaskOption = None,
    workflow: WorkflowOption = None,
    function: FunctionOption = None,
    flow: FlowOption = None,
    whole: PayloadOption = None,
    pairs: ParamOption = None,
    change_as: ChangeAsOption = None,
    task_list: ListOption = None,
    priority: PriorityOption = None,
    retry: RetryOption = None,
    timeout: TimeoutOption = None,
    paused: Annotated[bool, typer.Option("--paused", help="Begin paused")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what the first look would find here, and do nothing")] = False,
) -> None:
    """Start a task, a workflow or a function when files or an address change."""
    options = _options(
        whole,
        pairs,
        directory=directory,
        file=file,
        url=url,
        pattern=pattern,
        recursive=recursive or None,
        existing=existing,
        changes=on or None,
        every=every,
        settle=settle,
        hashing=hashing,
        fetch_timeout=fetch_timeout,
        looked_by=looked_by,
        task=task,
        workflow=workflow,
        function=function,
        flow=flow,
        change_as=change_as,
        task_list=task_list,
        priority=priority,
        retry=retry,
        timeout=timeout,
    )
    if dry_run:
        _try_out(session, name, options)
        return
    async with session.engine(migrate=True, first=lambda engine: _check(engine, name, options)) as engine:
        _done(session, await engine.watchers.create(name, paused=paused, actor=session.actor, **options))


def _check(engine: Engine, name: str, options: dict[str, Any]) -> None:
    """Bad input does not even make the database."""
    from treadle.kernel.watchers import make_body

    check_name(name, "watcher name")
    engine.watchers.check(make_body(options))


def _try_out(session: Session, name: str, options: dict[str, Any]) -> None:
    """What a look would find on this machine, now."""
    from treadle.kernel.watchers import make_body
    from treadle.model.watchers import HTTP, NEW
    from treadle.workers.fetching import fetch
    from treadle.workers.scanning import scan

    engine = Engine("memory://", settings=session.settings)
    _check(engine, name, options)
    body = make_body(options)
    if body.source.kind == HTTP:
        names, problem = ([] if fetch(body.source, None, engine.clock.monotonic).gone else [body.source.place]), None
    else:
        found = scan(body.source)
        names, problem = [each.name for each in found.found], found.problem
    started = len(names) if body.existing == NEW else 0
    counts = f"each would start {body.target.kind} {body.target.name}" if started else "they would count as seen"
    value = {"name": name, "dry_run": True, "found": len(names), "names": names[:100], "started": started, "problem": problem}
    said = "\n".join([f"{name} (not added): the first look would find {len(names)} here; {counts}.", *names[:20]])
    session.show(value, lambda: plain(said if problem is None else f"{said}\n{problem}"))


async def edit(
    session: Session,
    name: Name,
    on: OnOption = None,
    every: EveryOption = None,
    settle: SettleOption = None,
    hashing: HashOption = None,
    fetch_timeout: FetchOption = None,
    looked_by: LookedByOption = None,
    task: TaskOption = None,
    workflow: WorkflowOption = None,
    function: FunctionOption = None,
    flow: FlowOption = None,
    whole: PayloadOption = None,
    pairs: ParamOption = None,
    change_as: ChangeAsOption = None,
    task_list: ListOption = None,
    priority: PriorityOption = None,
    retry: RetryOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Change how a watcher looks and what it starts; what it looks at stays."""
    options = _options(
        whole,
        pairs,
        changes=on or None,
        every=every,
        settle=settle,
        hashing=hashing,
        fetch_timeout=fetch_timeout,
        looked_by=looked_by,
        task=task,
        workflow=workflow,
        function=function,
        flow=flow,
        change_as=change_as,
        task_list=task_list,
        priority=priority,
        retry=retry,
        timeout=timeout,
    )
    async with session.engine() as engine:
        _done(session, await engine.watchers.edit(name, actor=session.actor, **options))


async def list_watchers(
    session: Session,
    ended: Annotated[bool, typer.Option("--all", help="Those that have ended, too")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most that many")] = 100,
    before: Annotated[str | None, typer.Option(metavar="ID", help="The next page: only older ones than this")] = None,
) -> None:
    """List watchers, newest first."""
    async with session.engine() as engine:
        found = await engine.watchers.list_watchers(ended=ended, limit=limit, before_id=before)
    more = found[-1].id if len(found) == limit else None
    value = {"watchers": [watcher_json(each) for each in found], "next_before": more}
    session.show(value, lambda: watchers_table(found, more))


async def show(session: Session, name: Name) -> None:
    """Everything about one watcher: what it looks at, what it told of last, and why if it cannot look."""
    async with session.engine() as engine:
        watcher = await engine.watchers.get(name)
        task = None if watcher.task_id is None else await engine.store.find_task(watcher.task_id)
        now = await engine.store.now()
    session.show(watcher_json(watcher), lambda: show_watcher(watcher, task, now))


async def seen(
    session: Session,
    name: Name,
    after: Annotated[str | None, typer.Option(metavar="NAME", help="The next page: only names after this one")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most that many")] = 100,
) -> None:
    """List what a watcher has seen, in order of name."""
    async with session.engine() as engine:
        found = await engine.watchers.list_seen(name, after=after, limit=limit)
    more = found[-1][0] if len(found) == limit else None
    rows = [
        {"name": key, "size": item.size, "hash": item.hash, "etag": item.etag, "settling": item.pending is not None}
        for key, item in found
    ]
    session.show({"seen": rows, "next_after": more}, lambda: seen_table(found, more))


async def pause(session: Session, name: Name) -> None:
    """Let it not look until it is resumed; what was started goes on."""
    async with session.engine() as engine:
        _done(session, await engine.watchers.pause(name, actor=session.actor))


async def resume(session: Session, name: Name) -> None:
    """Let a paused watcher go on, at once: what changed meanwhile is told of now."""
    async with session.engine() as engine:
        _done(session, await engine.watchers.resume(name, actor=session.actor))


async def remove(session: Session, name: Name) -> None:
    """End a watcher; what it started goes on."""
    async with session.engine() as engine:
        _done(session, await engine.watchers.remove(name, actor=session.actor))


async def look(session: Session, name: Name) -> None:
    """Let it look as soon as a worker can, instead of when it is due."""
    async with session.engine() as engine:
        found = await engine.watchers.look(name, actor=session.actor)
    session.show(watcher_json(found), lambda: plain(f"{found.name} looks as soon as a worker can"))


def _done(session: Session, watcher: Watcher) -> None:
    session.show(watcher_json(watcher), lambda: plain(f"{watcher.name} is {watcher.state} now"))
