"""How handlers ask the service: real HTTP, over connections that are kept."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any


class ServiceClient:
    """The service, as one process sees it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send a request; return the answer, or None for an unknown path. A connection with an unread answer is not reused."""
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(_request(method, path, body, headers))
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            text = await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
        except BaseException:
            writer.close()
            raise
        self._idle.append((reader, writer))
        return json.loads(text)

    async def plain(self, key: str) -> None:
        """Let it count that some code ran."""
        await self.ask("POST", f"/plain/{key}")

    async def make(self, key: str, dedupe_key: str) -> str:
        """An effect."""
        return str((await self.ask("POST", f"/effect/{key}", **{"Dedupe-Key": dedupe_key}))["receipt"])

    def make_blocking(self, key: str, dedupe_key: str) -> str:
        """The same for code in a thread."""
        line = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            line.request("POST", f"/effect/{key}", headers={"Dedupe-Key": dedupe_key})
            return str(json.load(line.getresponse())["receipt"])
        finally:
            line.close()

    def close(self) -> None:
        """Let all connections go."""
        while self._idle:
            self._idle.pop()[1].close()


def _request(method: str, path: str, body: Any, headers: dict[str, str]) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}Content-Length: {len(text)}\r\n\r\n".encode() + text
