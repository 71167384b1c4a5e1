"""Watchers as people see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.cli.format import facts, grid, ms, plain, pretty, short, state, when
from treadle.cli.show_schedule import target_words
from treadle.model.clock import as_text, span
from treadle.model.watchers import DIRECTORY

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from treadle.api.tasks import TaskDetail
    from treadle.api.watchers import SeenPage, WatchedSource, Watcher, WatcherPage


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
