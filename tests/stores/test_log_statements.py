"""The log is only ever added to: no statement of a store changes a row of it, and only pruning removes rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import treadle.stores

ROOT = Path(treadle.stores.__file__).parent
_CHANGE = re.compile(r"\b(update|delete\s+from|truncate|replace\s+into|insert\s+or\s+\w+\s+into)\s+(\w+)", re.IGNORECASE)
_UPSERT = re.compile(r"insert\s+into\s+(\w+)[^;]*?on\s+conflict[^;]*?do\s+update", re.IGNORECASE | re.DOTALL)


def changes(store: str) -> Iterator[tuple[str, str, str]]:
    """(file, what, table) of all that the store's statements do to rows that are there; schema migrations are no statements."""
    files = sorted(file for file in (ROOT / store).rglob("*.sql") if file.parent.name != "migrations")
    assert len(files) > 10
    for file in files:
        text = re.sub(r"--[^\n]*", "", file.read_text("utf-8"))
        for match in _CHANGE.finditer(text):
            yield file.stem, " ".join(match[1].lower().split()), match[2].lower()
        for match in _UPSERT.finditer(text):
            yield file.stem, "upsert", match[1].lower()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_no_statement_changes_the_log_and_only_pruning_removes_from_it(store: str) -> None:
    found = list(changes(store))
    assert ("tasks", "update", "tasks") in found  # it does see what there is
    assert [each for each in found if each[2] == "log"] == [("retention", "delete from", "log")]
    # A finished task's row is the log entry of its end. A revival, or another end, first puts that entry into the log itself.
    ends = sorted({(what, file == "retention") for file, what, table in found if table == "finished"})
    assert ends == [("delete from", False), ("delete from", True), ("update", False)]
