"""Watchers: their sources, the changes that count, their targets, and the items seen so far. Pure.

The cursor of a watcher is the set of items it has seen, never the wall clock: a change is reported once, regardless of
delays and repeated scans.
"""

from __future__ import annotations

from typing import Annotated, Any

from treadle.model.names import ENGINE_LIST
from treadle.model.schedules import Target
from treadle.model.stored import Stored, words

SOURCES = DIRECTORY, FILE, HTTP = "directory", "file", "http"

CREATED, MODIFIED, DELETED = "created", "modified", "deleted"
CHANGES = (CREATED, MODIFIED, DELETED)

SEEN, NEW = "seen", "new"
EXISTING = (SEEN, NEW)
"""Whether items that existed when the watcher was created count as seen, or as created."""

EVERY_FOR = 30_000
SETTLE_FOR = 2_000
HASH_LIMIT = 64 * 1024 * 1024
"""Bytes of a file or a response that are read for its hash; larger ones are identified by size and time alone."""
FETCH_FOR = 30_000


class Source(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The place to scan: files of a directory that match a pattern, one file, or the response of an address."""

    kind: Annotated[str, words(SOURCES)]
    place: str
    """An absolute path, or an http(s) address."""
    pattern: str = "*"
    recursive: bool = False
    hashing: bool = True
    """Whether a file with a new mtime counts as modified only if its content changed."""
    hash_limit: int = HASH_LIMIT
    timeout_for: int = FETCH_FOR


class Item(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The last seen version of one file or address."""

    size: int | None = None
    """None: it was never seen complete."""
    mtime: int | None = None
    """In nanoseconds."""
    hash: str | None = None
    etag: str | None = None
    modified: str | None = None
    """The `Last-Modified` of an address."""
    pending: tuple[int, int, int] | None = None
    """Current size and time, and since when: it is reported once they stop changing."""


class Noticed(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """A change, and the work that it started."""

    at: int
    change: str
    name: str
    kind: str | None = None
    id: str | None = None


class WatcherBody(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a watcher's record."""

    source: Source
    target: Target
    changes: tuple[Annotated[str, words(CHANGES)], ...] = (CREATED, MODIFIED)
    every_for: int = EVERY_FOR
    settle_for: int = SETTLE_FOR
    existing: Annotated[str, words(EXISTING)] = SEEN
    looked_by: str = ENGINE_LIST
    """The task list whose workers scan: for a path that exists only on some machines."""
    listed: bool = False
    """Whether the existing files were listed when the watcher was created; if not, the first scan identifies them by time."""
    begun: bool = False
    """Whether the first scan has finished."""
    digest: str | None = None
    """Digest of all items of the last scan, if none was still changing: an equal digest means no change."""
    items: int = 0
    fired: int = 0
    recent: tuple[Noticed, ...] = ()
    error: dict[str, Any] | None = None
    """Why it cannot scan all or part of its source."""
    error_at: int | None = None
