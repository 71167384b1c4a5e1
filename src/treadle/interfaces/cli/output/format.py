"""Formats for people: states in colours, instants with their distance from now, values as indented JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from treadle.model.clock import as_text, span
from treadle.model.tasks import FRAMEWORK, LogLine
from treadle.model.text import printable
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

    from treadle.api.tasks import TaskLogLine

Instant = datetime | int
"""An instant of the API (datetime) or of the kernel (milliseconds)."""

_STYLES = {
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
}


_LEVELS = {"error": "red", "warning": "yellow", "debug": "dim"}


def plain(value: object, style: str = "") -> Text:
    """Any value as literal text: no markup, no terminal control."""
    from rich.text import Text

    return Text(printable(str(value), keep="\n\t"), style=style)


def line(said: TaskLogLine | LogLine, before: str = "") -> Text:
    """A log line of a task; lines of the framework are dimmer than those of handlers."""
    told = said.said if isinstance(said, LogLine) else said.details
    details = f"  {json.dumps(told, ensure_ascii=False, separators=(',', ':'))}" if told else ""
    style = _LEVELS.get(said.level, "dim" if said.source == FRAMEWORK else "")
    return plain(printable(f"{as_text(ms(said.at))} {said.level:7} {before}{said.message}{details}"), style)


def state(word: str) -> Text:
    """A state in its colour."""
    return plain(word, _STYLES.get(word, ""))


def ago(at: Instant | None, now: Instant) -> str:
    """`3 s ago`, `in 5 min`, or a dash."""
    if at is None:
        return "-"
    passed = ms(now) - ms(at)
    return f"{span(passed)} ago" if passed >= 0 else f"in {span(passed)}"


def when(at: Instant | None, now: Instant) -> str:
    """The instant and its distance from now."""
    return "-" if at is None else f"{as_text(ms(at))} ({ago(at, now)})"


def ms(at: Instant) -> int:
    """The instant in milliseconds."""
    return round(at.timestamp() * 1000) if isinstance(at, datetime) else at


def pretty(value: Json) -> Text:
    """A JSON value, indented."""
    return plain(json.dumps(value, ensure_ascii=False, indent=2))


def short(text: str, limit: int = 60) -> str:
    """Shorten to one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


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


def tag_line(tags: Mapping[str, Json]) -> str:
    """Tags in one line: `customer=acme, n=5`."""
    return ", ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in tags.items())
