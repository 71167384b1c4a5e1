"""The exchange with one script's process: sends its request, and returns its answer and its exit status."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from treadle.workers.scripts.host import Ended, Host
from treadle.workers.scripts.sandbox import wire

GRACE_FOR = 10.0
"""Seconds that the host process may be late in ending a script before it is killed itself."""

_READ_FOR = 2.0
_KILLED_FOR = 5.0


class AnswerTooLarge(Exception):
    """The child announced an answer above the limit; it was not read."""


async def exchange(host: Host, request: bytes, wall_for: float, limit: int) -> tuple[Ended, bytes | None]:
    """Run one script until its process ends. The answer, of at most `limit` bytes, is None if it is incomplete.

    A cancellation ends the process. Raises `HostGone`, `HostRefused` or `AnswerTooLarge`.
    """
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        with theirs:
            script_id, end = host.run(theirs)
        talk = asyncio.create_task(_talk(ours, request, limit))
        try:
            await asyncio.wait([end], timeout=wall_for + GRACE_FOR)
            if not end.done():
                host.give_up("it did not end a script after its timeout")
            # Everything written before the end can be read now; only an escaped process keeps the channel open.
            await asyncio.wait([talk], timeout=_READ_FOR)
            return end.result(), talk.result() if talk.done() else None
        except asyncio.CancelledError:
            host.kill(script_id)
            await asyncio.wait([end], timeout=_KILLED_FOR)
            raise
        finally:
            talk.cancel()
            await asyncio.wait([talk])
            if not talk.cancelled():
                talk.exception()


async def _talk(channel: socket.socket, request: bytes, limit: int) -> bytes | None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):  # it may end before it has read the whole request
        await loop.sock_sendall(channel, wire.frame(request))
    head = await _read(channel, wire.LENGTH_BYTES)
    if head is None:
        return None
    if wire.length(head) > limit:
        with contextlib.suppress(OSError):
            channel.shutdown(socket.SHUT_RDWR)
        raise AnswerTooLarge
    return await _read(channel, wire.length(head))


async def _read(channel: socket.socket, size: int) -> bytes | None:
    loop = asyncio.get_running_loop()
    received = bytearray()
    while len(received) < size:
        try:
            part = await loop.sock_recv(channel, min(size - len(received), 1 << 20))
        except OSError:
            return None
        if not part:
            return None
        received += part
    return bytes(received)
