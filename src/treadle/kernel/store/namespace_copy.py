"""The rows of a namespace in a form that does not depend on the store, their digest, and their copy into another store.

Lanes and numbers of moves have other values in another store: tasks name their lane by its parts, and moves are numbered from
the first number that was reserved for them. Two stores hold the same namespace when the digests are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.namespace_tables import REMOVAL, SETTINGS, TABLES, NamespaceTable
from treadle.kernel.store.ports import Store
from treadle.kernel.store.ports.namespaces import StoredRow
from treadle.model.errors import Refused
from treadle.model.names import Lane

PAGE = 500
"""Rows of a table that are read, written or removed in one transaction."""

Progress = Callable[[str], None]
"""Receives a line about the step that begins."""

_LANE = ("kind", "task_list", "name")


@dataclass(slots=True)
class Digest:
    """The number of rows of each table, and a sum of their hashes, which does not depend on their order."""

    rows: dict[str, int] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, row: StoredRow) -> None:
        """Count a row in the common form."""
        text = msgspec.json.encode(row, order="sorted")
        self.rows[table] = self.rows.get(table, 0) + 1
        self.sums[table] = (self.sums.get(table, 0) + int.from_bytes(hashlib.sha256(text).digest()[:16])) % 2**128

    def differences(self, other: Digest, *, without: tuple[str, ...] = ()) -> list[str]:
        """Return the tables that differ, `without` some of them, with the numbers of rows in both."""
        names = sorted({*self.rows, *other.rows}.difference(without))
        return [
            f"{name}: {self.rows.get(name, 0)} and {other.rows.get(name, 0)} rows"
            for name in names
            if (self.rows.get(name), self.sums.get(name)) != (other.rows.get(name), other.sums.get(name))
        ]


class NamespaceRows:
    """The rows of one namespace in one store; `first_seq` is subtracted from the numbers of moves."""

    def __init__(self, store: Store, namespace: str, first_seq: int = 0) -> None:
        self._store = store
        self._namespace = namespace
        self._first_seq = first_seq

    async def digest(self) -> Digest:
        """Read everything and return its digest, without the settings of lists, which a move changes."""
        found = Digest()
        async for table, rows in self.pages():
            if table.name not in SETTINGS:
                for row in rows:
                    found.add(table.name, row)
        return found

    async def pages(self) -> AsyncIterator[tuple[NamespaceTable, list[StoredRow]]]:
        """Yield all rows in the common form, table by table, in an order in which they can be written."""
        lanes = await self._store.list_lanes()
        for table in TABLES:
            after = None
            while True:
                page = await self._store.read_rows(self._namespace, table.name, after, PAGE)
                if page.rows:
                    yield table, [self._common(table, row, lanes) for row in page.rows]
                if page.next_after is None:
                    break
                after = page.next_after

    def _common(self, table: NamespaceTable, row: StoredRow, lanes: dict[int, Lane]) -> StoredRow:
        made = {name: _plain(value) for name, value in row.items() if name not in table.assigned}
        if "lane_id" in made:
            lane = lanes[made.pop("lane_id")]
            made["lane"] = [getattr(lane, part) for part in _LANE]
        if made.get("seq") is not None:
            made["seq"] -= self._first_seq
        return made

    async def write(self, table: NamespaceTable, rows: list[StoredRow]) -> None:
        """Insert rows in the common form."""
        if rows and "lane" in rows[0]:
            lanes = await self._store.lane_ids(list({Lane(self._namespace, *row["lane"]) for row in rows}))
            rows = [{**row, "lane_id": lanes[Lane(self._namespace, *row["lane"])]} for row in rows]
            for row in rows:
                del row["lane"]
        if rows and rows[0].get("seq") is not None:
            rows = [{**row, "seq": row["seq"] + self._first_seq} for row in rows]
        await self._store.write_rows(table.name, rows)

    async def remove(self) -> None:
        """Remove everything but lists and lanes. May be repeated after a crash."""
        for name in REMOVAL:
            after, more = None, True
            while more:
                after = await self._store.remove_rows(self._namespace, name, after, PAGE)
                reach("move.removing")
                more = after is not None


def _plain(value: Any) -> Any:
    """Return the value as every store would: truth values and whole numbers are integers."""
    if isinstance(value, bool):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def copy_namespace(source: Store, target: Store, namespace: str, progress: Progress) -> Digest:
    """Copy everything of the namespace into the target, after removing what an earlier copy left there; return its digest.

    Raises `Refused` if the copy differs from the source.
    """
    last_seq = await source.find_last_seq()
    first_seq = await target.reserve_seqs(last_seq)
    copied, written = NamespaceRows(source, namespace), NamespaceRows(target, namespace, first_seq)
    await written.remove()
    digest, before = Digest(), ""
    async for table, rows in copied.pages():
        if table.name != before:
            progress(f"copying {table.name}")
            before = table.name
        await written.write(table, rows)
        reach("move.copying")
        if table.name not in SETTINGS:
            for row in rows:
                digest.add(table.name, row)
    progress("comparing the copy with the source")
    if differ := (await written.digest()).differences(digest):
        raise Refused(f"The copy of the namespace {namespace} differs from the source: {'; '.join(differ)}. Nothing was switched.")
    return digest
