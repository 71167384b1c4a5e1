"""Tables of records with the columns of their views."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from treadle.api.view import Column, attribute, short, view_of, words
from treadle.interfaces.web.filters import ID, short_id

_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


class Cell(NamedTuple):
    """A value: the kind of its column (or `number`), the value, and the page that it leads to."""

    kind: str
    value: Any
    href: str | None


class RecordTable(NamedTuple):
    """The columns with their headings, and the cells of each record."""

    columns: list[tuple[str, Column]]
    rows: list[tuple[Any, list[Cell]]]
    head: int
    """The column that names the record: the first one with a link, or else the first."""


def table(records: Sequence[Any]) -> RecordTable:
    """The records in a table, without columns that are absent from all of them and without ids that only commands need."""
    view = view_of(type(records[0]))
    assert view is not None
    columns = [
        column
        for column in view.columns
        if (column.name != "id" or column.link) and not (column.spare and all(_is_absent(column.value(row)) for row in records))
    ]
    rows = [(row, [_cell(column, row) for column in columns]) for row in records]
    numeric = [all(cells[index].kind in ("number", "absent") for _, cells in rows) for index in range(len(columns))]
    head = next((index for index, column in enumerate(columns) if column.link), 0)
    return RecordTable([("number" if right else "", column) for right, column in zip(numeric, columns, strict=True)], rows, head)


def _is_absent(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _cell(column: Column, record: Any) -> Cell:
    value, kind = column.value(record), column.shown_as
    if _is_absent(value):
        return Cell("absent", None, None)
    if kind == "error":
        return Cell(kind, value.get("message") if isinstance(value, dict) else value, None)
    if kind != "text":
        return Cell(kind, value, None)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell("number", value, None)
    link = column.link(record) if callable(column.link) else column.link
    href, label = link_to(link, record), words(value)
    if isinstance(value, dict):
        label = _DIGEST.sub(_shortened, label)
    return (
        Cell("link", re.sub(ID, _shortened, label), href)
        if href
        else Cell("text", short(label, column.limit or len(label) + 1), None)
    )


def _shortened(match: re.Match[str]) -> str:
    return short_id(match[0])


def link_to(link: str, record: Any) -> str | None:
    """The page with the values of the record in its path; None if one of them is absent."""
    values = {name: attribute(record, name) for name in re.findall(r"{(\w+)}", link)}
    if not link or None in values.values():
        return None
    return link.format_map({name: quote(str(value), safe="") for name, value in values.items()})
