"""The statements on all rows of a namespace, made from one form for each operation and the descriptions of the tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from treadle.kernel.store.namespace_tables import OPERATIONS, TABLES, UNFENCED, NamespaceTable
from treadle.kernel.store.ports.namespaces import RowKey, StoredRow
from treadle.model.errors import InvalidInput
from treadle.stores.statements import load_statements

BELONGS = load_statements("treadle.stores", "namespaces.sql")

_FIRST = {"uuid": "00000000-0000-0000-0000-000000000000", "text": "", "integer": -(2**31), "bigint": -(2**63)}
"""A value before all others, for each type of a key."""

_COLUMN = re.compile(r"[a-z_]+")

Parameters = Callable[[NamespaceTable], str]
"""Returns the parameters of a key."""


def statements_of(forms: Mapping[str, str], namespace: str, after: Parameters) -> dict[tuple[str, str], str]:
    """Return the statements by form and table; `namespace` is the parameter of the namespace."""
    made = {}
    for table in TABLES:
        for form, text in forms.items():
            belongs = BELONGS[table.removable if form == "remove" and table.removable is not None else table.belongs]
            made[form, table.name] = (
                text.replace("{belongs}", belongs)
                .replace("{row}", "t")
                .replace("{namespace}", namespace)
                .replace("{table}", table.name)
                .replace("{key}", ", ".join(name for name, _ in table.key))
                .replace("{after}", after(table))
            )
    return made


def fences_of(form: str, conditions: Mapping[str, str]) -> list[str]:
    """Return the statements on the fences of all tables; `conditions` has those of some operations, by `when_TABLE_OPERATION`."""
    return [
        form.replace("{when}", conditions.get(f"when_{table.name}_{operation}", "true"))
        .replace("{belongs}", BELONGS["own" if table.removable else table.belongs])
        .replace("{row}", "old" if operation == "delete" else "new")
        .replace("{namespace}", "m.namespace")
        .replace("{table}", table.name)
        .replace("{operation}", operation)
        for table in TABLES
        for operation in OPERATIONS
        if (table.name, operation) not in UNFENCED
    ]


def first_key(table: NamespaceTable) -> RowKey:
    """Return a key before all keys of the table."""
    return tuple(_FIRST[kind] for _, kind in table.key)


def columns_of(rows: Iterable[StoredRow]) -> list[str]:
    """Return the columns of the rows, which all have the same."""
    found = list(next(iter(rows)))
    if wrong := next((name for name in found if not _COLUMN.fullmatch(name)), None):
        raise InvalidInput(f"{wrong!r} is not a column.")
    return found
