"""Formats for people: states in colours, instants with their distance from now, values as indented JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from treadle.api.view import Column, View, fill, short, words
from treadle.model.clock import span
from treadle.model.tasks import FRAMEWORK
from treadle.model.text import printable
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

    from treadle.api.runs import RunLogLine

STYLES = {
    "completed": "green",
    "failed": "bold red",
    "canceled": "magenta",
    "ignored": "magenta",
    "approved": "green",
    "denied": "bold red",
    "expired": "yellow",
    "running": "cyan",
    "paused": "yellow",
    "draining": "yellow",
    "lost": "bold red",
    "error": "bold red",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
    "NEW": "magenta",
    "TODO": "yellow",
    "IN_PROGRESS": "cyan",
    "BLOCKED": "bold red",
    "DONE": "green",
}


_LEVELS = {"error": "red", "warning": "yellow", "debug": "dim"}


def plain(value: object, style: str = "") -> Text:
    """Any value as literal text: no markup, no terminal control."""
    from rich.text import Text

    return Text(printable(str(value), keep="\n\t"), style=style)


def log_line(line: RunLogLine) -> Text:
    """A log line of a run, after the path of its step; lines of the framework are dimmer than those of handlers."""
    details = f"  {json.dumps(line.details, ensure_ascii=False, separators=(',', ':'))}" if line.details else ""
    style = _LEVELS.get(line.level, "dim" if line.source == FRAMEWORK else "")
    path = "" if not line.path or line.message.startswith(f"{line.path}:") else f"{line.path}: "
    return plain(printable(f"{words(line.at)} {line.level:7} {path}{line.message}{details}"), style)


def state(word: str) -> Text:
    """A state in its colour."""
    return plain(word, STYLES.get(word, ""))


def ago(at: datetime | None, now: datetime) -> str:
    """`3 s ago`, `in 5 min`, or a dash."""
    if at is None:
        return "-"
    passed = round((now - at) / timedelta(milliseconds=1))
    return f"{span(passed)} ago" if passed >= 0 else f"in {span(passed)}"


def when(at: datetime | None, now: datetime) -> str:
    """The instant and its distance from now."""
    return "-" if at is None else f"{words(at)} ({ago(at, now)})"


def pretty(value: Json) -> Text:
    """A JSON value, indented."""
    return plain(json.dumps(value, ensure_ascii=False, indent=2))


def facts(rows: list[tuple[str, object]]) -> Table:
    """Names and values, side by side."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(f"  {name}", value if isinstance(value, Text) else plain(value))
    return table


def grid(*columns: str) -> Table:
    """An empty table with these columns.

    `>` before a name aligns it to the right, for numbers; `?` marks a column that is left out, the last one first, where
    the terminal is too narrow for all.
    """
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table

    class Fitting(Table):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            wide = options.update(max_width=sys.maxsize)
            while spare and Measurement.get(console, wide, self).maximum > options.max_width:
                del self.columns[spare.pop()]
                for index, column in enumerate(self.columns):
                    column._index = index
            return super().__rich_console__(console, options)

    spare = [index for index, column in enumerate(columns) if column.startswith("?")]
    table = Fitting(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        name = column.lstrip("?>")
        table.add_column(name, justify="right" if ">" in column else "left", overflow="fold", no_wrap=name in ("id", "state"))
    return table


def table(view: View, records: Sequence[object], now: datetime) -> RenderableType:
    """A table of records with the columns of their view; its text about none, if there are none."""
    if not records:
        return plain(view.empty)
    rows = [[column.value(record) for column in view.columns] for record in records]
    indexes = [index for index, column in enumerate(view.columns) if not column.spare or any(row[index] for row in rows)]
    columns = [view.columns[index] for index in indexes]
    numeric = [all(isinstance(row[index], int | float | None) for row in rows) for index in indexes]
    rich_table = grid(
        *(f"{'?' * column.spare}{'>' * right}{column.heading}" for column, right in zip(columns, numeric, strict=True))
    )
    for row in rows:
        rich_table.add_row(*(cell(column, row[index], now) for column, index in zip(columns, indexes, strict=True)))
    return rich_table


def cell(column: Column, value: Any, now: datetime) -> Text:
    """A value as a cell of a table."""
    match column.shown_as:
        case "state":
            return state(words(value))
        case "instant":
            return plain(ago(value, now))
        case "error":
            value = value.get("message") if isinstance(value, dict) else value
    text = words(value, column.shown_as)
    return plain(short(text, column.limit) if column.limit else text)


def details(view: View, record: object, now: datetime) -> RenderableType:
    """One record in full: its title, its facts, then its JSON values and tables, each with its name."""
    rows: list[tuple[str, object]] = []
    parts: list[RenderableType] = []
    for column, value in view.facts_of(record):
        match column.shown_as:
            case "rows" if column.rows is not None and not column.rows.columns:
                parts += [part for row in value for part in ("", details(column.rows, row, now))]
            case "rows":
                parts += [plain(f"\n{_title(column)}", "bold"), table(column.rows or view, value, now)]
            case "json":
                parts += [plain(f"\n{_title(column)}", "bold"), pretty(value)]
            case "state":
                rows.append((column.heading, state(words(value))))
            case "instant":
                rows.append((column.heading, when(value, now)))
            case "error":
                rows.append((column.heading, plain(words(value, "error"), "red")))
            case "text" if isinstance(value, list):
                rows += [(column.heading, short(words(part), column.limit or sys.maxsize)) for part in value]
            case kind:
                text = words(value, kind)
                rows.append((column.heading, short(text, column.limit) if column.limit else text))
    return together(plain(fill(view.title, record), "bold"), facts(rows), *parts)


def together(*parts: RenderableType) -> RenderableType:
    """Parts below one another."""
    from rich.console import Group

    return Group(*parts)


def _title(column: Column) -> str:
    return f"{column.heading[0].upper()}{column.heading[1:]}"
