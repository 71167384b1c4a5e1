"""Appends to streams: decide the offsets, generations and notices, from the heads of the streams and the writers' last chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from treadle.kernel.store.records import AppendStream
from treadle.model.records import ABANDONED, ENTRIES, TRUNCATED
from treadle.model.values import encode

StreamKey = tuple[str, str]
"""The owner and the name of a stream."""

WriterKey = tuple[str, str, str]
"""The owner and the name of a stream, and a writer."""


class Head(NamedTuple):
    """The row of a stream."""

    next_offset: int = 0
    bytes: int = 0
    truncated: bool = False


class Last(NamedTuple):
    """The last chunk of a writer; `bytes` are those of its generation so far, which began at the offset `since`."""

    first_offset: int
    session: str
    next_start: int
    generation: int
    since: int
    bytes: int
    continues: bool


class NewChunk(NamedTuple):
    """A chunk to insert, in the order of the columns."""

    owner_id: str
    name: str
    first_offset: int
    offsets: int
    kind: str
    writer: str
    session: str
    start: int
    generation: int
    since: int
    bytes: int
    continues: bool
    entries: str


class Appends(msgspec.Struct):
    """The appends of a commit; `heads` and `lasts` are as they are after those decided so far."""

    heads: dict[StreamKey, Head]
    lasts: dict[WriterKey, Last]
    chunks: list[NewChunk] = msgspec.field(default_factory=list)
    continued: list[tuple[str, str, int]] = msgspec.field(default_factory=list)
    """The chunks that are marked as continued: owner, name and first offset."""
    removed: list[tuple[str, str, str, int]] = msgspec.field(default_factory=list)
    """Abandoned generations to remove: owner, name, writer, and the first generation to keep."""

    def add(self, rows: Iterable[AppendStream]) -> None:
        """Decide the rows, one after the other."""
        for row in rows:
            self._add(row)

    def _add(self, row: AppendStream) -> None:
        last = self.lasts.get((row.owner_id, row.name, row.writer))
        if last is None or last.session != row.session:
            last = self._begin(row, last)
        head = self.heads[row.owner_id, row.name]
        if row.count and (last is None or row.start >= last.next_start) and not head.truncated:
            size = len(row.entries.encode())
            if head.bytes + size > row.limit:
                self._put(row, last, TRUNCATED)
            else:
                last = self._put(row, last, ENTRIES, size)
        elif row.continues and last is not None and last.session == row.session:
            self.continued.append((row.owner_id, row.name, last.first_offset))
            self.lasts[row.owner_id, row.name, row.writer] = last._replace(continues=True)
        if row.truncated and not self.heads[row.owner_id, row.name].truncated:
            self._put(row, last, TRUNCATED)

    def _begin(self, row: AppendStream, last: Last | None) -> Last | None:
        """Begin a session; one that replaces another begins a generation."""
        if last is None:
            return None
        if last.continues:
            return last._replace(next_start=0)
        head = self.heads[row.owner_id, row.name]
        self.heads[row.owner_id, row.name] = Head(head.next_offset, head.bytes - last.bytes, truncated=False)
        if last.generation > 1:
            self.removed.append((row.owner_id, row.name, row.writer, last.generation))
        return self._put(row, last, ABANDONED)

    def _put(self, row: AppendStream, last: Last | None, kind: str, size: int = 0) -> Last:
        key = row.owner_id, row.name
        head = self.heads[key]
        offset = head.next_offset
        generation, since, total = (1, offset, 0) if last is None else (last.generation, last.since, last.bytes)
        entries, count, start = row.entries, row.count, row.start
        if kind == ABANDONED:
            entries, count, total = encode({"generation": generation, "since": since}), 1, 0
            generation, since, next_start = generation + 1, offset, start
        elif kind == TRUNCATED:
            start = next_start = row.start if last is None else last.next_start
            entries, count = "null", 1
        else:
            total, next_start = total + size, start + count
        continues = row.continues and kind != ABANDONED
        self.chunks.append(
            NewChunk(*key, offset, count, kind, row.writer, row.session, start, generation, since, total, continues, entries)
        )
        self.heads[key] = Head(offset + count, head.bytes + size, head.truncated or kind == TRUNCATED)
        new = Last(offset, row.session, next_start, generation, since, total, continues)
        self.lasts[row.owner_id, row.name, row.writer] = new
        return new
