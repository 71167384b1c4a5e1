"""A request to a route of the API."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request


class ApiRequest(Request):
    """A request whose body is read whole; the framework's reader passes each part through a generator."""

    _whole: bytes | None = None

    async def body(self) -> bytes:
        """The body; raises `ClientDisconnect` if the rest does not come."""
        if self._whole is None:
            parts, more = list[bytes](), True
            while more:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect()
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
            self._whole = b"".join(parts)
        return self._whole
