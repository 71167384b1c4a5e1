"""The workers of a namespace, with their hosts and handlers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from treadle.api.servers import Fleet, HandledCount, Served, Server, ServerDetail, ServerList
from treadle.api.wire import Instant, record_of
from treadle.kernel.queue.kinds import EXTENSION_KINDS
from treadle.kernel.reads.service import Reads
from treadle.model.tasks import LIVE_SERVER_STATES
from treadle.model.tasks import Server as StoredServer
from treadle.model.values import decode_shown


class Servers:
    """The servers of one namespace."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    async def list(self, *, live: bool = False) -> ServerList:
        servers = await self._reads.list_servers()
        return ServerList([record_of(Server, server) for server in servers if not (live and server.state == "stopped")])

    async def get(self, server_id: str) -> ServerDetail:
        server = await self._reads.get_server(server_id)
        return record_of(
            ServerDetail,
            server,
            roles=_roles(server),
            counts=[HandledCount(name, *counts) for name, counts in sorted(server.counts.items())],
            error=decode_shown(server.error),
        )

    async def fleet(self) -> Fleet:
        every = await self._reads.list_servers()
        servers = [server for server in every if server.state in LIVE_SERVER_STATES]
        return Fleet(
            states=dict(sorted(Counter(server.state for server in every).items())),
            slots=sum(server.concurrency for server in servers),
            running=sum(server.running for server in servers),
            handled=sum(server.handled for server in servers),
            failed=sum(server.failed for server in servers),
            oldest_heartbeat_at=Instant.of(min(server.heartbeat_at for server in servers)) if servers else None,
            versions=_served([server.version] for server in servers),
            releases=_served([server.release] for server in servers if server.release),
            task_lists=_served(server.task_lists for server in servers),
            handlers=_served(server.handlers for server in servers),
            roles=_served(_roles(server) for server in servers),
        )


def _roles(server: StoredServer) -> list[str]:
    return sorted({name for name in server.handlers if any(kind.is_role(name) for kind in EXTENSION_KINDS.values())})


def _served(served: Iterable[Iterable[str]]) -> list[Served]:
    """Each name with the number of servers that have it, most common first."""
    counts = Counter(name for names in served for name in set(names))
    return [Served(name, count) for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
