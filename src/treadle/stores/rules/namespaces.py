"""The rows of a namespace in the form that all stores share, and the statements on them, made for each table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from treadle.kernel.store.transfer import TABLES, NamespaceTable, StoredRow
from treadle.model.errors import InvalidInput
from treadle.model.names import QueueKey
from treadle.stores.statements import load_statements

_BELONGS = load_statements("treadle.stores", "namespaces.sql")
_COLUMN = re.compile(r"[a-z_]+")
_QUEUE = ("kind", "task_list", "name")


def reading_statements(form: str, namespace: str) -> list[tuple[NamespaceTable, str]]:
    """Return the tables with the statements that read their rows; `namespace` is the parameter of the namespace."""
    return [
        (
            table,
            form.replace("{belongs}", _BELONGS[table.belongs])
            .replace("{row}", "t")
            .replace("{namespace}", namespace)
            .replace("{table}", table.name)
            .replace("{key}", ", ".join(table.key)),
        )
        for table in TABLES
    ]


def to_common(table: NamespaceTable, row: StoredRow, queues: Mapping[int, QueueKey], shift: int = 0) -> StoredRow:
    """Return a row in the common form; `shift` was added to the numbers of transitions."""
    common = {name: _plain(value) for name, value in row.items() if name not in table.assigned}
    if "queue_id" in common:
        queue = queues[common.pop("queue_id")]
        common["queue"] = [getattr(queue, part) for part in _QUEUE]
    if common.get("seq") is not None:
        common["seq"] -= shift
    return common


def _plain(value: Any) -> Any:
    """Return the value as every store would: truth values and whole numbers are integers."""
    if isinstance(value, bool):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def from_common(rows: Iterable[StoredRow], namespace: str, queue_ids: Mapping[QueueKey, int], shift: int) -> list[StoredRow]:
    """Return rows in the form of a store, which has these queues; `shift` is added to the numbers of transitions."""
    stored = []
    for common in rows:
        row = dict(common)
        if "queue" in row:
            row["queue_id"] = queue_ids[QueueKey(namespace, *row.pop("queue"))]
        if row.get("seq") is not None:
            row["seq"] += shift
        stored.append(row)
    return stored


def columns_of(table: str, rows: Iterable[StoredRow]) -> list[str]:
    """Return the columns of the rows, which all have the same; raise `InvalidInput` for a table or column that cannot be one."""
    columns = list(next(iter(rows)))
    if any(table == member.name for member in TABLES) and all(_COLUMN.fullmatch(name) for name in columns):
        return columns
    raise InvalidInput(f"The file has rows of {table!r} with columns that this version of Treadle does not know.")
