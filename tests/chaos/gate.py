"""The network of one server of a cluster: `python -m tests.chaos.gate PORT TARGET [ADDRESS]`. Others reach it only through here.

On SIGUSR1 nothing passes any more, as if the machine had been cut off; on SIGUSR2 new connections pass, and old ones are gone.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from tests.chaos.proxy import Proxy


async def serve(port: int, target: int, address: str = "127.0.0.1") -> None:
    """Until the input ends, which is when the process that started this one ends."""
    proxy = Proxy(lambda: asyncio.open_connection("127.0.0.1", target), 0)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, proxy.shut)
    loop.add_signal_handler(signal.SIGUSR2, proxy.reopen)
    async with await asyncio.start_server(proxy.join, address, port) as server:
        print(json.dumps({"event": "ready"}), flush=True)
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.read()
        proxy.reopen()
        server.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
