"""The clocks of the processes that share a file: each uses its own, so leases and delays mean nothing if these are far apart.

Only a live process counts. At open, that is a process of this machine that has the file open; later, one whose heartbeat has
changed since the last look. The heartbeats in a restored backup, or of a process that crashed, never change.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from treadle.model.clock import Clock
from treadle.model.errors import ClocksApart
from treadle.model.tasks import Server

APART_FOR = 300_000
"""Milliseconds by which the clocks of two processes may differ."""

_LOOK_EVERY = 0.2
_LIVE = ("starting", "running", "draining")


class ClockWatch:
    """Compares the heartbeats of other servers with this process's clock, from one look to the next."""

    def __init__(self, clock: Clock, shown: str) -> None:
        self._clock = clock
        self._shown = shown
        self._seen: dict[str, int] = {}
        self._looked_at: tuple[int, float] | None = None

    def look(self, own_id: str, servers: Sequence[Server]) -> tuple[str, ClocksApart] | None:
        """Return the id of a live worker with another time, and the error; None if there is none.

        A heartbeat since the last look is from between then and now, unless this process's own clock was set meanwhile.
        """
        now, monotonic = self._clock.now(), self._clock.monotonic()
        before, seen = self._looked_at, self._seen
        others = [server for server in servers if server.id != own_id and server.state in _LIVE and server.pid]
        self._looked_at, self._seen = (now, monotonic), {server.id: server.heartbeat_at for server in others}
        if before is None or abs(now - before[0] - (monotonic - before[1]) * 1000) > APART_FOR / 2:
            return None
        for server in others:
            beat_at = server.heartbeat_at
            if seen.get(server.id) != beat_at and not before[0] - APART_FOR <= beat_at <= now + APART_FOR:
                return server.id, apart(server, now, self._shown)
        return None


async def check_clocks(path: str, now: Callable[[], int], list_servers: Callable[[], Awaitable[list[Server]]]) -> None:
    """Raise `ClocksApart` if a live process of this machine uses the file with another time.

    A process whose last heartbeat is long ago may just hang: this waits for its next one, for as long as that may take.
    """
    suspects = {
        server.id: server
        for server in await list_servers()
        if server.state in _LIVE and abs(server.heartbeat_at - now()) > APART_FOR and _has_open(server, path)
    }
    for server in suspects.values():
        if server.heartbeat_at > now():
            raise apart(server, now(), path)
    remaining = max((1.2 * server.heartbeat_every_for / 1000 for server in suspects.values()), default=0.0)
    while suspects and remaining > 0:
        await asyncio.sleep(_LOOK_EVERY)
        remaining -= _LOOK_EVERY
        for server in await list_servers():
            if server.id in suspects and server.heartbeat_at != suspects[server.id].heartbeat_at:
                del suspects[server.id]
                if abs(server.heartbeat_at - now()) > APART_FOR:
                    raise apart(server, now(), path)


def apart(server: Server, now: int, shown: str) -> ClocksApart:
    """Return the error about a live worker with another time."""
    by, way = abs(server.heartbeat_at - now) / 1000, "ahead of" if server.heartbeat_at > now else "behind"
    return ClocksApart(
        f"The clock of {server.name} (pid {server.pid} on {server.host}), which uses {shown} too, is {by:.0f} s {way} the clock "
        "of this process. Leases would expire early or never, so only the process that came first may use the store. "
        "Set the clocks, then start the other again."
    )


def _has_open(server: Server, path: str) -> bool:
    """Whether the server is another running process of this machine that has the file open; not known on systems without /proc."""
    if server.host != socket.gethostname() or server.pid in (0, os.getpid()):
        return False
    file = str(Path(path).resolve())
    try:
        if Path(f"/proc/{server.pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z"):
            return False  # it was stopped, or is dead
        return any(str(link.readlink()) == file for link in Path(f"/proc/{server.pid}/fd").iterdir())
    except OSError:
        return False
