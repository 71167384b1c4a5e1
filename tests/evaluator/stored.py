"""A simulated run on storage that counts what it reads and writes.

Rows are JSON text. A value of more than `BLOB_LIMIT` bytes leaves the row; `refs` records its place and its digest, so no JSON
from a user can be mistaken for a reference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from treadle.evaluator import BlobRef, Changes, Event, Expand, Limits, LoadedRows, Need, RunRef, StepRow, Value, advance, steps_of
from treadle.evaluator.simulated import SimulatedRun
from treadle.lang import Program
from treadle.model.values import Json, decode, encode

BLOB_LIMIT = 8 * 1024
_ANY_SIZE = 2**40
_FIELDS = ("params", "returns", "loop")
Put = Callable[[str, str], None]


class _Packed(msgspec.Struct, omit_defaults=True):
    row: StepRow
    refs: dict[str, dict[str, BlobRef]] = {}


def fold(value: Value, put: Put, limit: int = BLOB_LIMIT) -> Value:
    """Return the value, or a reference to it if it is large; `put(digest, text)` receives the text to store."""
    if isinstance(value, BlobRef) or value is None or isinstance(value, bool | int | float):
        return value
    text = encode(value, "value", limit=_ANY_SIZE)
    size = len(text) if text.isascii() else len(text.encode())
    if size <= limit:
        return value
    digest = hashlib.sha256(text.encode()).hexdigest()
    put(digest, text)
    return BlobRef(digest, size, isinstance(value, list))


def pack(row: StepRow, put: Put, limit: int = BLOB_LIMIT) -> bytes:
    """Encode the row as JSON text."""
    fields: dict[str, dict[str, Json]] = {}
    refs: dict[str, dict[str, BlobRef]] = {}
    for field in _FIELDS:
        values: dict[str, Any] = getattr(row, field)
        folded = {name: fold(value, put, limit) for name, value in values.items()}
        moved = {name: value for name, value in folded.items() if isinstance(value, BlobRef)}
        if moved:
            refs[field] = moved
        fields[field] = {name: value for name, value in folded.items() if name not in moved}
    return msgspec.json.encode(_Packed(msgspec.structs.replace(row, **fields), refs))


def unpack(text: bytes) -> StepRow:
    """Decode the output of `pack`, with references for values that were moved out."""
    packed = _decoder.decode(text)
    for field, moved in packed.refs.items():
        setattr(packed.row, field, {**getattr(packed.row, field), **moved})
    return packed.row


_decoder = msgspec.json.Decoder(_Packed)


class StoredRun(SimulatedRun):
    """One run on simulated storage. Counters record the rows and blobs read and written.

    Without `preload` a call starts without rows, and requests each one.
    """

    def __init__(
        self, program: Program, workflow: str, *,
        limits: Limits | None = None, number: int = 1, blob_limit: int = BLOB_LIMIT, preload: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(program, workflow, limits=limits, number=number)
        self._blob_limit, self._preloads = blob_limit, preload
        self.reads = self.writes = self.blob_reads = self.calls = 0
        self._texts: dict[str, bytes] = {}
        self._children: dict[str, list[str]] = {}
        self._blobs: dict[str, str] = {}

    # --- reads ---

    def rows(self) -> list[StepRow]:
        """Return all rows, as stored."""
        return [unpack(text) for text in self._texts.values()]

    def step(self, row_id: str) -> StepRow:
        """Return the row with this id."""
        return unpack(self._texts[row_id])

    def row(self, path: str) -> StepRow:
        """Return the row at this place, or the step with this readable path."""
        return next(row for row in self.rows() if row.place == path or (row.is_step and row.path == path))

    def value(self, value: Json) -> Json:
        """Return the JSON of an attribute value."""
        return decode(self._blobs[value.digest]) if isinstance(value, BlobRef) else value

    def _load(self, view: LoadedRows, row_id: str) -> StepRow | None:
        if row_id not in view.rows:
            self.reads += 1
            text = self._texts.get(row_id)
            view.rows[row_id] = unpack(text) if text is not None else None
        return view.rows[row_id]

    def _load_children(self, view: LoadedRows, row_id: str) -> None:
        if row_id not in view.children:
            rows = [self._load(view, each) for each in self._children.get(row_id, [])]
            view.add_children(row_id, [row for row in rows if row is not None])

    def _preload(self, events: Sequence[Event]) -> LoadedRows:
        """Load for each event its step, all ancestors, and the children of each, except the items of foreach blocks.

        A block that continues may end a foreach: the items are loaded too if they are few.
        """
        view = LoadedRows()
        if not self._preloads:
            return view
        self._load(view, self.run.root_id)
        blocks = {event.block_id for event in events if isinstance(event, Expand)}
        for step_id in steps_of(events, self.limits):
            few = self.limits.expand if step_id in blocks else 0
            row_id: str | None = step_id
            while row_id is not None:
                row = self._load(view, row_id)
                if row is not None and (row.total is None or row.expanded <= few):
                    self._load_children(view, row_id)
                row_id = row.parent_id if row is not None else None
        return view

    def _fetch(self, view: LoadedRows, need: Need) -> None:
        for row_id in need.rows:
            self._load(view, row_id)
        for row_id in need.children_of:
            self._load_children(view, row_id)
        for digest in need.blobs:
            self.blob_reads += 1
            view.add_blob(digest, decode(self._blobs[digest]))

    def decide(self, events: Sequence[Event]) -> Changes:
        """Return the evaluator's decision about the events; nothing is stored."""
        run = RunRef(id=self.run.id, workflow=self.run.workflow, rows=len(self._texts))
        view = self._preload(events)
        asked: set[Need] = set()
        while True:
            self.calls += 1
            answer = advance(self.program, run, view, events, self.limits)
            if isinstance(answer, Changes):
                return answer
            if answer in asked:
                raise AssertionError(f"asked twice for {answer}")
            asked.add(answer)
            self._fetch(view, answer)

    def store(self, row: StepRow) -> None:
        if row.id not in self._texts and row.parent_id is not None:
            self._children.setdefault(row.parent_id, []).append(row.id)
        self._texts[row.id] = pack(row, self._blobs.__setitem__, self._blob_limit)
        self.writes += 1
