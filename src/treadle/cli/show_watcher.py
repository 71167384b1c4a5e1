"""Watchers as JSON and as people see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.cli.show_schedule import target_json, target_words
from treadle.cli.words import facts, grid, plain, pretty, short, span, state, when
from treadle.model.clock import as_text
from treadle.model.values import Json
from treadle.model.watchers import DIRECTORY, HTTP, Item, Source

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.kernel.watchers import Watcher
    from treadle.model.tasks import Task


def watcher_json(watcher: Watcher) -> dict[str, Json]:
    """A watcher."""
    body = watcher.body
    return {
        "id": watcher.id,
        "name": watcher.name,
        "state": watcher.state,
        "version": watcher.version,
        "source": {
            "kind": body.source.kind,
            "place": body.source.place,
            "pattern": body.source.pattern if body.source.kind == DIRECTORY else None,
            "recursive": body.source.recursive,
            "hashing": body.source.hashing,
            "hash_limit": body.source.hash_limit,
            "timeout_for": body.source.timeout_for if body.source.kind == HTTP else None,
        },
        "target": target_json(body.target),
        "changes": list(body.changes),
        "every_for": body.every_for,
        "settle_for": body.settle_for,
        "existing": body.existing,
        "looked_by": body.looked_by,
        "items": body.items,
        "fired": body.fired,
        "recent": [
            {"at": as_text(each.at), "change": each.change, "name": each.name, "kind": each.kind, "id": each.id}
            for each in body.recent
        ],
        "error": body.error,
        "error_at": as_text(body.error_at),
        "task_id": watcher.task_id,
        "created_at": as_text(watcher.created_at),
        "updated_at": as_text(watcher.updated_at),
    }


def source_words(source: Source) -> str:
    """What is looked at, in a few words."""
    if source.kind != DIRECTORY:
        return source.place
    depth = "**/" if source.recursive and "**" not in source.pattern else ""
    return f"{source.place.rstrip('/')}/{depth}{source.pattern}"


def watchers_table(found: list[Watcher], more: str | None) -> RenderableType:
    """Watchers in a list."""
    from rich.console import Group

    if not found:
        return plain("No watchers. Add one with `treadle watchers add NAME --directory PATH --task NAME`.")
    table = grid("name", "state", "looks at", "every", "on", "starts", ">seen", ">fired", "note")
    for each in found:
        body = each.body
        table.add_row(
            plain(each.name),
            state(each.state),
            plain(source_words(body.source)),
            span(body.every_for),
            plain(", ".join(body.changes)),
            plain(target_words(body.target)),
            str(body.items),
            str(body.fired),
            plain(short((body.error or {}).get("message", ""))),
        )
    return Group(table, plain(f"More: treadle watchers list --before {more}", "dim")) if more else table


def show_watcher(watcher: Watcher, task: Task | None, now: int) -> RenderableType:
    """One watcher with all there is to say."""
    from rich.console import Group

    body = watcher.body
    rows: list[tuple[str, object]] = [
        ("id", watcher.id),
        ("state", state(watcher.state)),
        ("looks at", source_words(body.source)),
        ("on", ", ".join(body.changes)),
        ("starts", target_words(body.target)),
        ("every", span(body.every_for)),
        ("settles", span(body.settle_for)),
        ("seen", f"{body.items}; what the first look found counted as {body.existing}"),
        ("fired", body.fired),
    ]
    if task is not None and not task.finished:
        rows += [
            ("last look", when(task.claimed_at, now)),
            ("next look", when(task.wake_at or task.due_at, now)),
            ("task", task.id),
        ]
    parts: list[RenderableType] = [plain(watcher.name, "bold"), facts(rows)]
    if body.target.inputs:
        parts += [plain("inputs", "bold"), pretty(body.target.inputs)]
    if body.error is not None:
        since = when(body.error_at, now)
        parts.append(plain(f"cannot look: {body.error.get('code')}: {body.error.get('message')} Since {since}.", "red"))
    if body.recent:
        table = grid("at", "change", "name", "started")
        for each in body.recent:
            table.add_row(as_text(each.at), plain(each.change), plain(each.name), plain(f"{each.kind} {each.id}"))
        parts.append(table)
    return Group(*parts)


def seen_table(found: list[tuple[str, Item]], more: str | None) -> RenderableType:
    """What a watcher has seen."""
    from rich.console import Group

    if not found:
        return plain("It has seen nothing yet.")
    table = grid("name", ">size", "hash", "note")
    for key, item in found:
        size = "" if item.size is None else str(item.size)
        table.add_row(plain(key), size, plain(short(item.hash or "", 20)), plain("settling" if item.pending else ""))
    return Group(table, plain(f"More: --after {more!r}", "dim")) if more else table
