"""Servers: the processes that host workers, one by one and all together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.wire import Instant
from treadle.model.values import Json


@dataclass(frozen=True, slots=True)
class Server(ApiRecord):
    """A process that hosts workers."""

    id: str
    """New for each process start; the owner of all its claims."""
    name: str
    state: str
    """`starting`, `running`, `draining`, `stopped`, `error`, or `lost`: it has missed three heartbeats."""
    host: str
    pid: int
    version: str
    handlers: list[str]
    """The names that it serves; roles of the goal pipeline among them."""
    task_lists: list[str]
    concurrency: int
    running: int
    handled: int
    failed: int
    started_at: Instant
    heartbeat_at: Instant


@dataclass(frozen=True, slots=True)
class HandledCount(ApiRecord):
    """What a server has done for one name."""

    name: str
    completed: int
    failed: int


@dataclass(frozen=True, slots=True)
class ServerDetail(Server):
    """Everything about one server."""

    heartbeat_every_for: int
    server_group: str
    service_name: str
    topics: list[str]
    roles: list[str]
    """Of the goal pipeline."""
    counts: list[HandledCount]
    error: Json
    """What it could not recover from."""


@dataclass(frozen=True, slots=True)
class ServerList(ApiRecord):
    """Servers, newest first."""

    servers: list[Server]


@dataclass(frozen=True, slots=True)
class Served(ApiRecord):
    """Something that live servers have, and how many of them."""

    name: str
    servers: int


@dataclass(frozen=True, slots=True)
class Fleet(ApiRecord):
    """All servers together; all but `states` is of those that are alive."""

    states: dict[str, int]
    """Servers by shown state."""
    slots: int
    """Tasks that they can run at once."""
    running: int
    handled: int
    failed: int
    oldest_heartbeat_at: Instant | None
    """The sign of life that was longest ago."""
    versions: list[Served]
    task_lists: list[Served]
    handlers: list[Served]
    roles: list[Served]
    """Of the goal pipeline."""


class ServersApi(Protocol):
    """The processes that host workers."""

    @contract.get("/servers")
    async def list(self, *, live: Annotated[bool, Doc("Leave out those that have stopped")] = False) -> ServerList:
        """The servers, newest first; one that missed three heartbeats is shown as lost. Stopped ones are kept for a week."""

    @contract.get("/servers/{server_id}")
    async def get(self, server_id: Annotated[str, Doc("The server's id")]) -> ServerDetail:
        """One server, with what it has done for each name."""

    @contract.get("/fleet")
    async def fleet(self) -> Fleet:
        """All servers together: how many in which state, what they serve, what they have done."""
