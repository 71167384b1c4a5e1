"""The way to the database of some processes: it loses answers, and hangs. `python -m tests.chaos.proxy FOLDER HOST HANG_FOR`.

On SIGUSR1 the database still hears everything, for a moment nobody hears its answers, and then all connections are gone: what was
committed meanwhile is known to nobody. On SIGUSR2 nothing passes for HANG_FOR seconds; then everything goes on.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

SOCKET = ".s.PGSQL.5432"
LOSES_FOR = 0.3
"""Seconds for which answers are lost."""


Dial = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects to the other side."""


class Proxy:
    """All connections that pass through here."""

    def __init__(self, dial: Dial, hang_for: float) -> None:
        self._dial, self._hang_for = dial, hang_for
        self._open = asyncio.Event()
        self._open.set()
        self._losing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._acts: set[asyncio.Task[None]] = set()

    def act(self, lose: bool) -> None:
        """Do wrong."""
        task = asyncio.ensure_future(self._lose() if lose else self._hang())
        self._acts.add(task)
        task.add_done_callback(self._acts.discard)

    async def _lose(self) -> None:
        self._losing = True
        await asyncio.sleep(LOSES_FOR)
        for writer in self._writers:
            writer.transport.abort()
        self._losing = False

    async def _hang(self) -> None:
        self.shut()
        await asyncio.sleep(self._hang_for)  # the length of the fault
        self._open.set()

    def shut(self) -> None:
        """Let nothing pass: both sides hear nothing, not even that the other one is gone."""
        self._open.clear()

    def reopen(self) -> None:
        """Let new connections pass; those that hung are gone."""
        for writer in self._writers:
            writer.transport.abort()
        self._open.set()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side is gone."""
        try:
            await self._open.wait()
            far_reader, far_writer = await self._dial()
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._writers |= both
        try:
            await asyncio.wait(
                [
                    asyncio.ensure_future(self._pass(reader, far_writer, answers=False)),
                    asyncio.ensure_future(self._pass(far_reader, writer, answers=True)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while said := await reader.read(1 << 16):
                await self._open.wait()
                if not (answers and self._losing):
                    writer.write(said)
                    await writer.drain()
        except OSError:
            pass


async def serve(folder: Path, host: Path, hang_for: float) -> None:
    """Until somebody ends this process."""
    proxy = Proxy(lambda: asyncio.open_unix_connection(host / SOCKET), hang_for)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, proxy.act, True)
    loop.add_signal_handler(signal.SIGUSR2, proxy.act, False)
    async with await asyncio.start_unix_server(proxy.join, folder / SOCKET) as server:
        print(json.dumps({"event": "ready"}), flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
