"""What a watcher is: what it looks at, which changes count, what they start; and what it has seen. Pure.

The cursor of a watcher is what it has seen, item by item, never the wall clock: a change is told once, however late it is
noticed, and however often it is looked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from treadle.model.names import ENGINE_LIST
from treadle.model.schedules import Target

DIRECTORY, FILE, HTTP = "directory", "file", "http"

CREATED, MODIFIED, DELETED = "created", "modified", "deleted"
CHANGES = (CREATED, MODIFIED, DELETED)

SEEN, NEW = "seen", "new"
EXISTING = (SEEN, NEW)
"""What the first look finds counts as seen, or as created."""

EVERY_FOR = 30_000
SETTLE_FOR = 2_000
HASH_LIMIT = 64 * 1024 * 1024
"""Bytes of a file or a response that are read for its hash; bigger ones are known by size and time alone."""
FETCH_FOR = 30_000

_PORTS = {"http": 80, "https": 443}


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is looked at: files of a directory by a pattern, one file, or what an address answers."""

    kind: str
    place: str
    """An absolute path, or an http(s) address."""
    pattern: str = "*"
    recursive: bool = False
    hashing: bool = True
    """Whether a file whose time changed counts as modified only if its content has."""
    hash_limit: int = HASH_LIMIT
    timeout_for: int = FETCH_FOR


def is_allowed(source: Source, allowed: Sequence[str]) -> bool:
    """Whether the place is one of these paths or addresses, or below one. Where links lead is not known here."""
    place = _parts(source.place)
    return place is not None and any(_begins(place, other) for each in allowed if (other := _parts(each)) is not None)


def _parts(place: str) -> tuple[str, ...] | None:
    """Where it is, and the names on the way there; None for what climbs up again, or cannot be told."""
    try:
        split = urlsplit(place) if "://" in place else SplitResult("", "", place, "", "")
        where = (split.scheme, split.hostname or "", str(split.port or _PORTS.get(split.scheme)))
    except ValueError:
        return None
    names = tuple(name for name in split.path.split("/") if name)
    climbs = any(unquote(name) in (".", "..") or "\\" in name for name in names)
    return None if climbs or "@" in split.netloc else (*where, *names)


def _begins(place: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return place[: len(other)] == other


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was seen of one file or address."""

    size: int | None = None
    """None: it was never seen whole, and is waited for."""
    mtime: int | None = None
    """In nanoseconds."""
    hash: str | None = None
    etag: str | None = None
    modified: str | None = None
    """The `Last-Modified` of an address."""
    pending: tuple[int, int, int] | None = None
    """Size and time that it has now, and since when: it is told of once it stays so."""


class Noticed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change, and what it started."""

    at: int
    change: str
    name: str
    kind: str | None = None
    id: str | None = None


class WatcherBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a watcher's record."""

    source: Source
    target: Target
    changes: tuple[str, ...] = (CREATED, MODIFIED)
    every_for: int = EVERY_FOR
    settle_for: int = SETTLE_FOR
    existing: str = SEEN
    looked_by: str = ENGINE_LIST
    """The task list whose workers look: for a path that only some machines have."""
    begun: bool = False
    """Whether the first look has come to its end."""
    digest: str | None = None
    """Of all that the last look found, if nothing was left to wait for: the same again means that nothing changed."""
    items: int = 0
    fired: int = 0
    recent: tuple[Noticed, ...] = ()
    error: dict[str, Any] | None = None
    """Why it cannot look, or not everywhere."""
    error_at: int | None = None
