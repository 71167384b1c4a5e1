"""Streams: entries that a run or a task writes for readers while it works, such as the tokens of a model.

A stream belongs to a run, or to a task without a run, and has a name. Everything in it has an offset, from 0: entries (any JSON)
and notices. A writer is a task, a step of a function, or the code of a function. When another attempt of a writer takes over,
a generation of that writer begins with the notice `abandoned`, which names the generation and the first offset that it
replaces. `truncated` marks the place where a full stream lost entries.
"""

from __future__ import annotations

import re

import msgspec

from treadle.model.errors import InvalidName
from treadle.model.user_values import shown

ENTRIES, ABANDONED, TRUNCATED = "entries", "abandoned", "truncated"

STREAM_LIMIT = 1024 * 1024
"""Default limit in bytes on the entries of a stream, as JSON, without abandoned ones."""

ENTRY_LIMIT = 64 * 1024
"""Limit in bytes on one entry as JSON, and on the entries of one chunk unless it has only one."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def check_stream_name(name: str) -> str:
    """Return the name, or raise `InvalidName`."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidName(
            f"{shown(name)} cannot be the name of a stream: use up to 64 letters, digits, dots, dashes and underscores, starting "
            "with a letter or an underscore."
        )
    return name


class StreamChunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Consecutive entries of one writer, or a notice, as stored."""

    first_offset: int
    count: int
    kind: str
    writer: str
    """The id of the task or the step; for the code of a function, the id of its run."""
    generation: int
    entries: str
    """The entries as JSON text, a list; of the notice `abandoned` an object."""
    created_at: int


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as stored."""

    owner_id: str
    name: str
    namespace: str
    root_id: str
    next_offset: int
    bytes: int
    truncated: bool
    created_at: int
    updated_at: int
