"""Watchers: work that is started when files or addresses change: create, edit, look at what was seen, pause, look now.

A watcher makes workers look at files of their machines, and ask addresses that they can reach. So whoever is not an
administrator may watch only what `TREADLE_WATCH_ALLOW` of the server lists: nothing by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import Says, Shape
from treadle.api.schedules import (
    FlowName,
    FunctionName,
    Inputs,
    Priority,
    Retry,
    Target,
    TaskList,
    TaskName,
    Timeout,
    Version,
    WorkflowName,
)
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

WatcherName = Annotated[str, Says("The watcher's name, or its id", "incoming")]
Changes = Annotated[
    Sequence[Literal["created", "modified", "deleted"]] | None,
    Says("Which changes count; those that create and modify by default", ["created"]),
]
Every = Annotated[float | None, Says("How often it looks, in seconds; 30 by default, at least 1", 60)]
Settle = Annotated[float | None, Says("For how many seconds a file must have stayed the same; 2 by default")]
Hashing = Annotated[bool | None, Says("Whether only other content makes a file modified; yes by default")]
HashLimit = Annotated[int | None, Says("Bytes that are read for that; bigger files are known by size and time")]
FetchTimeout = Annotated[float | None, Says("Of an address: longest wait for its answer, in seconds")]
LookedBy = Annotated[str | None, Says("Only workers of this task list look; by default all do")]
ChangeAs = Annotated[str | None, Says("The field of the inputs that gets the change; `change` by default")]


@dataclass(frozen=True, slots=True)
class WatchedSource(Shape):
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
class Noticed(Shape):
    """A change, and what it started."""

    at: Instant
    change: str
    """`created`, `modified` or `deleted`."""
    name: str
    kind: str | None
    """`task` or `run`."""
    id: str | None


@dataclass(frozen=True, slots=True)
class Watcher(Shape):
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
class WatcherPage(Shape):
    """Watchers, newest first."""

    watchers: list[Watcher]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class SeenItem(Shape):
    """What was seen of one file or address."""

    name: str
    size: int | None
    hash: str | None
    etag: str | None
    settling: bool
    """It has changed, and is waited for until it stays the same."""


@dataclass(frozen=True, slots=True)
class SeenPage(Shape):
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
        every: Annotated[bool, Says("Those that have ended too")] = False,
        limit: Annotated[int, Says("At most so many, up to 1000", 100)] = 100,
        before: Annotated[str | None, Says("The `next_before` of the page before")] = None,
    ) -> WatcherPage:
        """Watchers, newest first."""

    @contract.post("/watchers", Scope.OPERATE, status=201, creates=True)
    async def create(
        self,
        name: Annotated[str, Says("A name for it", "incoming")],
        *,
        directory: Annotated[str | None, Says("Files of this directory, where the workers run", "/srv/incoming")] = None,
        file: Annotated[str | None, Says("This one file")] = None,
        url: Annotated[str | None, Says("What this http(s) address answers")] = None,
        pattern: Annotated[str | None, Says("Of a directory: which files, such as `*.csv`; all by default", "*.csv")] = None,
        recursive: Annotated[bool | None, Says("Of a directory: the pattern counts at every depth")] = None,
        existing: Annotated[
            Literal["seen", "new"] | None, Says("What the first look finds counts as that; `seen` by default")
        ] = None,
        changes: Changes = None,
        every: Every = None,
        settle: Settle = None,
        hashing: Hashing = None,
        hash_limit: HashLimit = None,
        fetch_timeout: FetchTimeout = None,
        looked_by: LookedBy = None,
        task: TaskName = None,
        workflow: WorkflowName = None,
        function: FunctionName = None,
        flow: FlowName = None,
        version: Version = None,
        inputs: Inputs = None,
        change_as: ChangeAs = None,
        task_list: TaskList = None,
        priority: Priority = None,
        retry: Retry = None,
        timeout: Timeout = None,
        paused: Annotated[bool, Says("Begin paused")] = False,
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
        after: Annotated[str | None, Says("The `next_after` of the page before")] = None,
        limit: Annotated[int, Says("At most so many, up to 1000", 100)] = 100,
    ) -> SeenPage:
        """What a watcher has seen, in order of name."""

    @contract.post("/watchers/{name}/edit", Scope.OPERATE)
    async def edit(
        self,
        name: WatcherName,
        *,
        changes: Changes = None,
        every: Every = None,
        settle: Settle = None,
        hashing: Hashing = None,
        hash_limit: HashLimit = None,
        fetch_timeout: FetchTimeout = None,
        looked_by: LookedBy = None,
        task: TaskName = None,
        workflow: WorkflowName = None,
        function: FunctionName = None,
        flow: FlowName = None,
        version: Version = None,
        inputs: Inputs = None,
        change_as: ChangeAs = None,
        task_list: TaskList = None,
        priority: Priority = None,
        retry: Retry = None,
        timeout: Timeout = None,
        clear: Annotated[Sequence[Literal["version", "retry"]], Says("What is not to be said any more", ["retry"])] = (),
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
