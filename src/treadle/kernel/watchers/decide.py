"""Diffs of watched sources: from the items seen before and the current ones to changes and new items. Pure.

A new or different file is reported when it has had the same size and time in two scans that are `settle_for` apart, so that a
half-written file never counts as complete. A file that cannot be read does not count as deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from treadle.model.watchers import CREATED, DELETED, MODIFIED, Item

KEY_LIMIT = 1000
"""Bytes; longer names are identified by their beginning and a digest."""


@dataclass(frozen=True, slots=True, order=True)
class ScannedFile:
    """A file found by a scan; items are sorted by `key`."""

    key: str
    size: int
    mtime: int
    name: str
    arrived_at: int = 0
    """Milliseconds: the later of the last changes of its content and of its name or owner (a moved file keeps its mtime)."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of a scan, sorted by key; names under `unreadable` could not be scanned."""

    found: Sequence[ScannedFile]
    unreadable: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one item: `item` is its new value (None: remove it), unless `same`.

    A `change` is reported immediately, or, if it depends on the file's content, once that is known: `read`.
    """

    key: str
    same: bool = False
    item: Item | None = None
    change: str | None = None
    read: ScannedFile | None = None
    delay: int | None = None
    """Milliseconds until the next useful scan."""


def key_of(name: str) -> str:
    """Return the key of a name: the name itself, unless it is too long for the stores to sort."""
    raw = name.encode()
    if len(raw) <= KEY_LIMIT:
        return name
    return f"{raw[: KEY_LIMIT - 70].decode('utf-8', 'ignore')}#{hashlib.sha256(raw).hexdigest()}"


def judge(
    key: str, item: Item | None, found: ScannedFile | None, *, now: int, settle_for: int, baseline: bool, hidden: bool = False
) -> Judged:
    """Compare one name; `baseline`: a new item counts as seen; `hidden`: it cannot be scanned now."""
    if found is None:
        if item is None or hidden:
            return Judged(key, same=True)
        return Judged(key, change=DELETED if item.size is not None else None)
    if item is None:
        if baseline:
            return Judged(key, item=Item(size=found.size, mtime=found.mtime))
        return _settling(key, Item(), found, now, settle_for)
    if (item.size, item.mtime) == (found.size, found.mtime):
        if item.pending is None:
            return Judged(key, same=True)
        return Judged(key, item=replace(item, etag=None, modified=None, pending=None))  # unchanged after all
    return _settling(key, item, found, now, settle_for)


def _settling(key: str, item: Item, file: ScannedFile, now: int, settle_for: int) -> Judged:
    """Return the verdict on a changed file: it is reported once it has stopped changing."""
    change = CREATED if item.size is None else MODIFIED
    waited_for = 0
    if item.pending is not None and item.pending[:2] == (file.size, file.mtime) and item.pending[2] <= now:
        waited_for = now - item.pending[2]
        if waited_for < settle_for:
            return Judged(key, same=True, delay=settle_for - waited_for)
    elif settle_for > 0:
        pending = (file.size, file.mtime, now)
        return Judged(key, item=replace(item, etag=None, modified=None, pending=pending), delay=settle_for)
    return Judged(key, item=item, change=change, read=file)


@dataclass(frozen=True, slots=True)
class Content:
    """The result of reading a file: its hash (None if it is not hashed), and its size and time afterwards."""

    size: int = 0
    mtime: int = 0
    hash: str | None = None
    gone: bool = False
    problem: str | None = None
    """Why it cannot be read; it is retried."""


def concluded(verdict: Judged, item: Item | None, content: Content, now: int, settle_for: int) -> Judged:
    """Return the verdict on a file after its content was read."""
    file = verdict.read
    assert file is not None
    seen = Item() if item is None else item
    if content.gone or (content.size, content.mtime) != (file.size, file.mtime):  # it changed during the read
        pending = (content.size, content.mtime, now)
        waiting = replace(seen, etag=None, modified=None, pending=pending)
        return Judged(verdict.key, same=content.gone, item=waiting, delay=settle_for)
    new = Item(size=file.size, mtime=file.mtime, hash=content.hash, more=seen.more)
    touched = verdict.change == MODIFIED and seen.hash is not None and seen.hash == content.hash
    return Judged(verdict.key, item=new, change=None if touched else verdict.change)


def digest_of(files: Iterable[ScannedFile]) -> str:
    """Return a digest that is equal for the same files with the same sizes and times."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.key}\0{file.size}\0{file.mtime}\n".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def is_under(name: str, places: Sequence[str]) -> bool:
    """Return whether a name is in one of those directories (`""` is the root)."""
    return any(not place or name == place or name.startswith(f"{place}/") for place in places)


# --- addresses ---


@dataclass(frozen=True, slots=True)
class Fetched:
    """The response of an address. `same`: unchanged since the request's validators; `gone`: there is nothing there."""

    same: bool = False
    gone: bool = False
    etag: str | None = None
    modified: str | None = None
    hash: str | None = None
    size: int | None = None


def judge_answer(key: str, item: Item | None, fetched: Fetched, *, baseline: bool) -> Judged:
    """Compare the response of an address; its content takes precedence over its headers."""
    if fetched.gone:
        return Judged(key, same=True) if item is None else Judged(key, change=DELETED)
    if fetched.same:
        return Judged(key, same=True)
    new = Item(size=fetched.size or 0, hash=fetched.hash, etag=fetched.etag, modified=fetched.modified, more=(item or Item()).more)
    if item is None:
        return Judged(key, item=new, change=None if baseline else CREATED)
    if item == new:
        return Judged(key, same=True)
    if item.hash is not None and fetched.hash is not None:
        return Judged(key, item=new, change=None if item.hash == fetched.hash else MODIFIED)
    marks = (item.etag, item.modified) if item.etag or item.modified else (item.size,)
    others = (fetched.etag, fetched.modified) if item.etag or item.modified else (fetched.size,)
    return Judged(key, item=new, change=None if marks == others else MODIFIED)
