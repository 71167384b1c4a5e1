"""Watchers: work that is started when files or addresses change: create, edit, look at what was seen, pause, look now.

A watcher makes workers look at files of their machines, and ask addresses that they can reach. So whoever is not an
administrator may watch only what `TREADLE_WATCH_ALLOW` of the server lists: nothing by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, Unpack

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.options import WatcherChanges, WatcherOptions
from treadle.api.schedules import Target
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

WatcherName = Annotated[str, Doc("The watcher's name, or its id", "incoming")]


@dataclass(frozen=True, slots=True)
class WatchedSource(ApiRecord):
    """What is looked at."""

    kind: str
    """`directory`, `file` or `http`."""
    place: str
    """An absolute path on the machines that look, or an address."""
    pattern: str | None
    """Of a directory: which files."""
    recursive: bool
    hashing: bool
    hash_limit: int
    timeout_for: int | None
    """Of an address."""


@dataclass(frozen=True, slots=True)
class Noticed(ApiRecord):
    """A change, and what it started."""

    at: Instant
    change: str
    """`created`, `modified` or `deleted`."""
    name: str
    kind: str | None
    """`task` or `run`."""
    id: str | None


@dataclass(frozen=True, slots=True)
class Watcher(ApiRecord):
    """A watcher."""

    id: str
    name: str
    state: str
    """`active`, `paused` or `removed`."""
    version: int
    source: WatchedSource
    target: Target
    changes: list[str]
    every_for: int
    settle_for: int
    existing: str
    """Whether what the first look found counted as `seen` or as `new`."""
    looked_by: str
    items: int
    """How many were there at the last look."""
    fired: int
    recent: list[Noticed]
    """The last 20 changes."""
    error: Json
    """Why it cannot look, or not everywhere; it is tried again."""
    error_at: Instant | None
    task_id: str | None
    created_at: Instant
    updated_at: Instant


@dataclass(frozen=True, slots=True)
class WatcherPage(ApiRecord):
    """Watchers, newest first."""

    watchers: list[Watcher]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class SeenItem(ApiRecord):
    """What was seen of one file or address."""

    name: str
    size: int | None
    hash: str | None
    etag: str | None
    settling: bool
    """It has changed, and is waited for until it stays the same."""


@dataclass(frozen=True, slots=True)
class SeenPage(ApiRecord):
    """What a watcher has seen, in order of name."""

    seen: list[SeenItem]
    next_after: str | None
    """Pass it as `after` for the next page; null on the last one."""


class WatchersApi(Protocol):
    """Watchers: work that is started when files or addresses change."""

    @contract.get("/watchers")
    async def list(
        self,
        *,
        every: Annotated[bool, Doc("Those that have ended too")] = False,
        limit: Annotated[int, Doc("At most so many, up to 1000", 100)] = 100,
        before: Annotated[str | None, Doc("The `next_before` of the page before")] = None,
    ) -> WatcherPage:
        """Watchers, newest first."""

    @contract.post("/watchers", Scope.OPERATE, status=201, creates=True)
    async def create(
        self,
        name: Annotated[str, Doc("A name for it", "incoming")],
        *,
        paused: Annotated[bool, Doc("Begin paused")] = False,
        **options: Unpack[WatcherOptions],
    ) -> Watcher:
        """Start a task, a workflow or a function when files or an address change.

        What may be watched without the scope `admin` is listed by `TREADLE_WATCH_ALLOW` of the server.
        """

    @contract.get("/watchers/{name}")
    async def get(self, name: WatcherName) -> Watcher:
        """One watcher: what it looks at, what it told of last, and why if it cannot look."""

    @contract.get("/watchers/{name}/seen")
    async def seen(
        self,
        name: WatcherName,
        *,
        after: Annotated[str | None, Doc("The `next_after` of the page before")] = None,
        limit: Annotated[int, Doc("At most so many, up to 1000", 100)] = 100,
    ) -> SeenPage:
        """What a watcher has seen, in order of name."""

    @contract.post("/watchers/{name}/edit", Scope.OPERATE)
    async def edit(
        self,
        name: WatcherName,
        *,
        clear: Annotated[Sequence[Literal["version", "retry"]], Doc("Options to remove", ["retry"])] = (),
        **options: Unpack[WatcherChanges],
    ) -> Watcher:
        """Change how a watcher looks and what it starts, at once; what is not given, or null, stays; what it looks at does, too."""

    @contract.post("/watchers/{name}/pause", Scope.OPERATE)
    async def pause(self, name: WatcherName) -> Watcher:
        """Let it not look until it is resumed; what was started goes on."""

    @contract.post("/watchers/{name}/resume", Scope.OPERATE)
    async def resume(self, name: WatcherName) -> Watcher:
        """Let a paused watcher go on, at once: what changed meanwhile is told of now."""

    @contract.delete("/watchers/{name}", Scope.OPERATE)
    async def remove(self, name: WatcherName) -> Watcher:
        """End a watcher; what it started goes on, and its name is free."""

    @contract.post("/watchers/{name}/look", Scope.OPERATE)
    async def look(self, name: WatcherName) -> Watcher:
        """Let it look as soon as a worker can, instead of when it is due."""
