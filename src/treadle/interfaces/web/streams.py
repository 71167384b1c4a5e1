"""Streams on the pages of runs and tasks: their last entries, which a script continues."""

from __future__ import annotations

from typing import NamedTuple

from treadle.api.streams import StreamEntry, StreamSummary
from treadle.engine.operations import Operations
from treadle.model.text import json_text

_STREAMS = 3
"""Streams that are shown: a browser holds few connections to a server."""
_ENTRIES = 1000


class ShownEntry(NamedTuple):
    """An entry as text; `abandoned` if a later one replaces it."""

    offset: int
    writer: str
    kind: str
    text: str
    abandoned: bool


class ShownStream(NamedTuple):
    """The last entries of a stream."""

    summary: StreamSummary
    entries: list[ShownEntry]
    next_offset: int
    ended: bool


async def shown_streams(service: Operations, work_id: str) -> list[ShownStream]:
    """The streams of a run or a task, with their last entries."""
    shown = []
    for summary in (await service.streams.list(work_id)).streams[:_STREAMS]:
        offset = max(summary.next_offset - _ENTRIES, 0)
        page = await service.streams.read(work_id, summary.name, offset=offset, limit=_ENTRIES)
        shown.append(ShownStream(summary, shown_entries(page.entries), page.next_offset, page.ended))
    return shown


def shown_entries(entries: list[StreamEntry]) -> list[ShownEntry]:
    """The entries as text. `static/streams.js` does the same with those that follow."""
    shown: list[ShownEntry] = []
    for entry in entries:
        if entry.kind == "abandoned":
            since = entry.value["since"]
            shown = [
                each._replace(abandoned=True) if each.writer == entry.writer and each.offset >= since else each for each in shown
            ]
        shown.append(ShownEntry(entry.offset, entry.writer, entry.kind, _text(entry), abandoned=False))
    return shown


def _text(entry: StreamEntry) -> str:
    match entry.kind:
        case "abandoned":
            return f"\n[attempt {entry.value['generation']} was abandoned; attempt {entry.generation} begins]\n"
        case "truncated":
            return "\n[the stream is full: entries are missing here]\n"
        case "unreadable":
            return "\n[entries cannot be read]\n"
    return entry.value if isinstance(entry.value, str) else f"{json_text(entry.value, separators=(',', ':'))}\n"
