"""Views: which fields of a record people and models see, declared once, next to the record.

Commands, the dashboard and MCP show records through them: a table has the `columns`, a page about one record the `facts`,
a brief answer the `brief` fields. A view knows neither colours nor HTML; `words` is the text of a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from treadle.model.clock import as_text, span

Kind = Literal["text", "state", "instant", "time", "duration", "error", "json", "rows"]
"""How a value is shown: an `instant` with its distance from now, a `time` without it; a duration is in milliseconds, an error is
an object with code and message, `rows` are records with a view of their own."""

_SUFFIXES: dict[str, Kind] = {"_at": "instant", "_for": "duration"}
_NAMED: dict[str, Kind] = {"state": "state", "error": "error", "at": "time"}


class Column(msgspec.Struct, frozen=True):
    """A value that is shown: a column of a table, or a fact about one record."""

    name: str
    of: str | Callable[[Any], object] = ""
    """The path of the attribute, such as `why.text`, or a function of the record; default: the attribute with this name."""
    kind: Kind | None = None
    """Default: by the name, as `next_at` is an instant, `took_for` a duration, `state` a state and `error` an error."""
    spare: bool = False
    """Whether a table leaves it out where there is no room, or where all values are absent."""
    limit: int | None = None
    """Maximum number of characters in a table; of rows: maximum number of rows in a brief answer, the last ones."""
    rows: View | None = None
    """The view of the records that the value lists."""
    link: str | Callable[[Any], str] = ""
    """The page of what the value names, such as `/tasks/{task_id}`, or a function that returns its pattern; empty: none."""

    @property
    def heading(self) -> str:
        """The name for people: `next` for `next_at`."""
        return self.name.removesuffix("_at").removesuffix("_for").removesuffix("_id").replace("_", " ")

    @property
    def shown_as(self) -> Kind:
        """The kind, by default that of the attribute's name."""
        if self.kind is not None or self.rows is not None:
            return self.kind or "rows"
        path = (self.of or self.name) if isinstance(self.of, str) else self.name
        if path in _NAMED:
            return _NAMED[path]
        return next((kind for suffix, kind in _SUFFIXES.items() if path.endswith(suffix)), "text")

    def value(self, record: Any) -> Any:
        """The value of a record; None if there is none."""
        return self.of(record) if callable(self.of) else attribute(record, self.of or self.name)


def attribute(record: Any, path: str) -> Any:
    """The attribute or item at a path such as `error.message`; None if a part of the path is absent."""
    value = record
    for name in path.split("."):
        if value is None:
            return None
        value = value.get(name) if isinstance(value, dict) else getattr(value, name)
    return value


class View:
    """The fields of a record that people and models see. A name stands for the attribute; `?` before it marks a spare column."""

    def __init__(
        self,
        record: type,
        *,
        title: str = "{name}",
        columns: tuple[str | Column, ...] = (),
        facts: tuple[str | Column, ...] = (),
        brief: tuple[str | Column, ...] = (),
        empty: str = "",
        changed: str | Callable[[Any], str] = "{name} is {state} now",
    ) -> None:
        self.record = record
        self.title, self.empty, self.changed = title, empty, changed
        """`title` heads the facts, `empty` stands for a table without rows, `changed` reports a change."""
        self.columns, self.facts, self.brief = _columns(columns), _columns(facts), _columns(brief)
        _VIEWS[record] = self

    def facts_of(self, record: Any) -> Iterator[tuple[Column, Any]]:
        """The facts about a record that are present."""
        for column in self.facts:
            value = column.value(record)
            if not (value is None or (value in ("", [], {}, ()))):
                yield column, value


_VIEWS: dict[type, View] = {}


def view_of(record: type) -> View | None:
    """The view of a class of records or of its base, if its module declares one."""
    return next((_VIEWS[kind] for kind in record.__mro__ if kind in _VIEWS), None)


def rows_of(page: type) -> tuple[str, View]:
    """The field of a page of records with its rows, and their view."""
    for name, hint in get_type_hints(page).items():
        for kind in get_args(hint):
            if (view := view_of(kind)) is not None:
                return name, view
    raise TypeError(f"No view shows {page.__name__}.")


def _columns(columns: tuple[str | Column, ...]) -> tuple[Column, ...]:
    return tuple(
        Column(column.lstrip("?"), spare=column.startswith("?")) if isinstance(column, str) else column for column in columns
    )


def words(value: Any, kind: Kind = "text") -> str:
    """A value as one text; an absent one is empty."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return as_text(round(value.timestamp() * 1000)) or ""
    if kind == "duration":
        return span(value)
    if kind == "error":
        return f"{value.get('code')}: {value.get('message')}" if isinstance(value, dict) else str(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):  # such as tags: `customer=acme, n=5`
        return ", ".join(f"{key}={part if isinstance(part, str) else json.dumps(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(words(part) for part in value)
    return str(value)


def fill(template: str, record: Any) -> str:
    """A sentence such as `{name} is {state} now` with the values of a record."""
    return re.sub(r"{([\w.]+)}", lambda match: words(attribute(record, match[1])), template)


def short(text: str, limit: int = 60) -> str:
    """The text in one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
