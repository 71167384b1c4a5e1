"""Calls about servers, on an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from treadle.api.servers import Fleet, HandledCount, Served, Server, ServerDetail, ServerList, ServersApi
from treadle.api.wire import Instant, record_of
from treadle.kernel.reads.service import ShownServer
from treadle.model.names import GOAL_KINDS, GOAL_ROLE
from treadle.model.tasks import LIVE_SERVER_STATES
from treadle.model.values import decode_shown
from treadle.service.group import Group


class Servers(Group, ServersApi):
    """See `ServersApi`."""

    async def list(self, *, live: bool = False) -> ServerList:
        found = await self.engine.kernel.reads.list_servers()
        return ServerList([record_of(Server, shown, shown.server) for shown in found if not (live and shown.state == "stopped")])

    async def get(self, server_id: str) -> ServerDetail:
        shown = await self.engine.kernel.reads.get_server(server_id)
        server = shown.server
        return record_of(
            ServerDetail,
            shown,
            server,
            roles=_roles(shown),
            counts=[HandledCount(name, *counts) for name, counts in sorted(server.counts.items())],
            error=decode_shown(server.error),
        )

    async def fleet(self) -> Fleet:
        found = await self.engine.kernel.reads.list_servers()
        live = [shown for shown in found if shown.state in LIVE_SERVER_STATES]
        servers = [shown.server for shown in live]
        return Fleet(
            states=dict(sorted(Counter(shown.state for shown in found).items())),
            slots=sum(each.concurrency for each in servers),
            running=sum(each.running for each in servers),
            handled=sum(each.handled for each in servers),
            failed=sum(each.failed for each in servers),
            oldest_heartbeat_at=Instant.of(min(each.heartbeat_at for each in servers)) if servers else None,
            versions=_served([each.version] for each in servers),
            task_lists=_served(each.task_lists for each in servers),
            handlers=_served(each.handlers for each in servers),
            roles=_served(_roles(shown) for shown in live),
        )


def _roles(shown: ShownServer) -> list[str]:
    return sorted({each for each in shown.server.handlers if each in GOAL_KINDS or each.startswith(f"{GOAL_ROLE}/")})


def _served(found: Iterable[Iterable[str]]) -> list[Served]:
    """Each name with the number of servers that have it, most common first."""
    counts = Counter(name for names in found for name in set(names))
    return [Served(name, count) for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]
