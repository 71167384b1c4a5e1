"""Workers: the processes that execute tasks."""

from __future__ import annotations

from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.tasks import evidence_text
from treadle.model.values import Json


class Server(ApiRecord, frozen=True):
    """A worker: a process that executes tasks."""

    id: str
    """New for each start of the process; the owner of all its claims."""
    name: str
    state: str
    """`starting`, `running`, `draining`, `stopped`, `error`, or `lost` (three missed heartbeats, or `evidence`)."""
    host: str
    pid: int
    version: str
    namespace: str | None
    """The namespace that it serves; null: an older version registered it, and it counts for every namespace."""
    handlers: list[str]
    """The handlers it serves, including roles of the goal pipeline."""
    task_lists: list[str]
    concurrency: int
    running: int
    handled: int
    failed: int
    started_at: Instant
    heartbeat_at: Instant
    release: str
    """The release of the application whose code it runs; empty if it is not known."""
    evidence: str | None
    """How others saw that it is dead before its heartbeats stopped: by its `process`, or by its `session` with the database."""


class HandledCount(ApiRecord, frozen=True):
    """Counters of a worker for one handler."""

    name: str
    completed: int
    failed: int


class ServerDetail(Server, frozen=True):
    """Everything about one worker."""

    heartbeat_every_for: int
    server_group: str
    service_name: str
    topics: list[str]
    roles: list[str]
    """Roles in the goal pipeline."""
    counts: list[HandledCount]
    error: Json
    """The error that stopped it, or the last time that a handler held its Python interpreter."""


class ServerList(ApiRecord, frozen=True):
    """Workers, newest first."""

    servers: list[Server]


class Served(ApiRecord, frozen=True):
    """A value and the number of live workers that have it."""

    name: str
    servers: int


class Fleet(ApiRecord, frozen=True):
    """All workers together; everything except `states` covers live workers only."""

    states: dict[str, int]
    """Number of workers by state."""
    slots: int
    """Tasks that they can run concurrently."""
    running: int
    handled: int
    failed: int
    oldest_heartbeat_at: Instant | None
    """The oldest heartbeat."""
    versions: list[Served]
    releases: list[Served]
    task_lists: list[Served]
    handlers: list[Served]
    roles: list[Served]
    """Roles in the goal pipeline."""


View(
    Server,
    columns=(
        Column("name", link="/servers/{id}"),
        "state",
        "?host",
        Column("pid", lambda server: str(server.pid), spare=True),
        "?started_at",
        "heartbeat_at",
        Column("evidence", lambda server: server.evidence and evidence_text(server.evidence), spare=True),
        Column("running", lambda server: f"{server.running}/{server.concurrency}"),
        "?handled",
        "failed",
        Column("lists", "task_lists", spare=True),
        "?version",
        "?release",
        Column("handlers", spare=True, limit=30),
    ),
    brief=("name", "state", "running", "heartbeat_at"),
    empty="No workers. Start one with `treadle worker --handlers MODULE`.",
)


class ServersApi(Protocol):
    """The processes that execute tasks."""

    @contract.get("/servers")
    async def list(self, *, live: Annotated[bool, Doc("Exclude stopped workers")] = False) -> ServerList:
        """Workers, newest first; one that is dead or missed three heartbeats is `lost`. Stopped workers are kept for a week."""

    @contract.get("/servers/{server_id}")
    async def get(self, server_id: Annotated[str, Doc("The id of the worker's process")]) -> ServerDetail:
        """One worker, with its counters by handler."""

    @contract.get("/fleet")
    async def fleet(self) -> Fleet:
        """All workers together: states, handlers and counters."""
