"""Watchers: work started by changes of files or URLs; create, edit, list seen items, pause, scan now.

A watcher makes workers read files on their machines and request URLs that they can reach. Callers without the scope `admin` may
therefore watch only the sources that the server's `TREADLE_WATCH_ALLOW` lists: none by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol, Unpack

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc, Lookup, Page
from treadle.api.options import WatcherChanges, WatcherOptions
from treadle.api.schedules import Trigger, brief_target, describe_target
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.access import Scope

WatcherName = Annotated[str, Doc("The watcher's name, or its id", "incoming")]


class WatchedSource(ApiRecord, frozen=True):
    """The source that is scanned."""

    kind: str
    """`directory`, `file` or `http`."""
    place: str
    """An absolute path on the workers' machines, or a URL."""
    pattern: str | None
    """For a directory: the matching files."""
    recursive: bool
    hashing: bool
    hash_limit: int
    timeout_for: int | None
    """For a URL."""


class WatcherChange(ApiRecord, frozen=True):
    """A change and the work it started."""

    at: Instant
    change: str
    """`created`, `modified` or `deleted`."""
    name: str
    kind: str | None
    """`task` or `run`."""
    id: str | None


class Watcher(Trigger, frozen=True):
    """A watcher."""

    source: WatchedSource
    changes: list[str]
    every_for: int
    settle_for: int
    existing: str
    """Whether items that existed when the watcher was added count as `seen` or as `new`."""
    scan_on: str
    items: int
    """Number of items in the last scan."""
    recent: list[WatcherChange]
    """The last 20 changes."""
    error_at: Instant | None
    program: str | None = None
    """The program that declares it."""


class WatcherPage(Page, frozen=True):
    """Watchers, newest first."""

    watchers: list[Watcher]


class SeenItem(ApiRecord, frozen=True):
    """A known file or URL."""

    name: str
    size: int | None
    hash: str | None
    etag: str | None
    settling: bool
    """It has changed recently and must stay unchanged before it counts."""


class SeenPage(ApiRecord, frozen=True):
    """Known items of a watcher, ordered by name."""

    seen: list[SeenItem]
    next_after: str | None
    """Pass it as `after` for the next page; null on the last page."""


def describe_source(source: WatchedSource) -> str:
    """The scanned source, in a few words."""
    if source.kind != "directory":
        return source.place
    pattern = source.pattern or "*"
    depth = "**/" if source.recursive and "**" not in pattern else ""
    return f"{source.place.rstrip('/')}/{depth}{pattern}"


def _brief_source(watcher: Watcher) -> str:
    return f"{watcher.source.kind} {watcher.source.place}"


_SOURCE = Column("source", lambda watcher: describe_source(watcher.source))
_STARTS = Column("starts", lambda watcher: describe_target(watcher.target))

WATCHER = View(
    Watcher,
    columns=(
        Column("name", link="/watchers/{id}"),
        "state",
        _SOURCE,
        "?every_for",
        Column("on", "changes", spare=True),
        _STARTS,
        Column("seen", "items", spare=True),
        "?fired",
        Column("declared by", "program", spare=True),
        Column("note", "error.message", limit=60),
    ),
    facts=(
        "id",
        "state",
        _SOURCE,
        Column("on", "changes"),
        _STARTS,
        "every_for",
        Column("settles", "settle_for"),
        Column("seen", "items"),
        Column("existing", lambda watcher: f"files that existed when it was added count as {watcher.existing}"),
        "fired",
        Column("declared by", "program"),
        Column("cannot scan", "error"),
        Column("since", "error_at"),
        Column("inputs", "target.inputs", "json"),
        Column(
            "recent",
            rows=View(
                WatcherChange,
                columns=(
                    "at",
                    "change",
                    "name",
                    Column("started", lambda change: f"{change.kind or ''} {change.id or ''}", link="/{kind}s/{id}"),
                ),
            ),
        ),
    ),
    brief=(
        "name",
        "state",
        Column("source", _brief_source),
        Column("target", brief_target),
        "items",
        "fired",
        "error",
        "error_at",
    ),
    empty="No watchers. Add one with `treadle watchers add NAME --directory PATH --task NAME`.",
)
View(
    SeenItem,
    columns=(
        "name",
        "size",
        Column("hash", limit=20),
        Column("note", lambda item: "settling" if item.settling else None),
    ),
    empty="No items seen yet.",
)


class WatchersApi(Lookup[Watcher], Protocol):
    """Watchers: work started by changes of files or URLs."""

    @contract.get("/watchers")
    async def list(
        self,
        *,
        every: Annotated[bool, Doc("Include ended ones")] = False,
        limit: Annotated[int, Doc("Page size, up to 1000", 100)] = 100,
        before: Annotated[str | None, Doc("`next_before` of the previous page")] = None,
    ) -> WatcherPage:
        """Watchers, newest first."""

    @contract.post("/watchers", Scope.OPERATE, status=201, creates=True)
    async def create(
        self,
        name: Annotated[str, Doc("The name", "incoming")],
        *,
        paused: Annotated[bool, Doc("Create it paused")] = False,
        **options: Unpack[WatcherOptions],
    ) -> Watcher:
        """Create a watcher that starts a task, a workflow or a function when files or a URL change.

        Sources allowed without the scope `admin` are listed in the server's `TREADLE_WATCH_ALLOW`.
        """

    @contract.get("/watchers/{name}")
    async def get(self, name: WatcherName) -> Watcher:
        """One watcher: its source, last changes, and its error, if any."""

    @contract.get("/watchers/{name}/seen")
    async def seen(
        self,
        name: WatcherName,
        *,
        after: Annotated[str | None, Doc("`next_after` of the previous page")] = None,
        limit: Annotated[int, Doc("Page size, up to 1000", 100)] = 100,
    ) -> SeenPage:
        """Known items of a watcher, ordered by name."""

    @contract.post("/watchers/{name}/edit", Scope.OPERATE)
    async def edit(
        self,
        name: WatcherName,
        *,
        clear: Annotated[Sequence[Literal["version", "retry"]], Doc("Options to remove", ["retry"])] = (),
        **options: Unpack[WatcherChanges],
    ) -> Watcher:
        """Edit a watcher, effective immediately; omitted or null options stay. The source cannot be changed."""

    @contract.post("/watchers/{name}/pause", Scope.OPERATE)
    async def pause(self, name: WatcherName) -> Watcher:
        """Pause a watcher: it does not scan until it is resumed; started work continues."""

    @contract.post("/watchers/{name}/resume", Scope.OPERATE)
    async def resume(self, name: WatcherName) -> Watcher:
        """Resume a paused watcher; it scans immediately and reports changes made in the meantime."""

    @contract.delete("/watchers/{name}", Scope.OPERATE)
    async def remove(self, name: WatcherName) -> Watcher:
        """Remove a watcher; started work continues, and its name becomes free."""

    @contract.post("/watchers/{name}/look", Scope.OPERATE)
    async def look(self, name: WatcherName) -> Watcher:
        """Scan as soon as a worker is free, instead of at the next due time."""
