"""A local server that answers the Messages API from a script, so that tests use the real SDK without the real service.

with MessagesServer() as server:
    server.script(status(429, after=0.01), uses(("ns__Facet", {"answer": 42})))
    settings = Settings(anthropic_api_key="key", anthropic_base_url=server.url)
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

_PIECES = 3
"""The number of deltas that a text or an input is split into."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The response to one request: a message as a stream of events, or a raw body."""

    content: tuple[Mapping[str, Any], ...] = ()
    stop_reason: str = "end_turn"
    input_tokens: int = 100
    output_tokens: int = 20
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Sent unchanged instead of a stream."""
    gate: threading.Event | None = None
    """Awaited after the first delta; if it is never set, the response never ends."""
    cut_after: int | None = None
    """The connection closes after this number of events."""


def text(*parts: str, **fields: Any) -> Reply:
    """Return a text message."""
    return Reply(tuple({"type": "text", "text": part} for part in parts), **fields)


def uses(*calls: tuple[str, Any], **fields: Any) -> Reply:
    """Return a message that calls tools; an input that is a string is sent unchanged, even if it is not JSON."""
    blocks = ({"type": "tool_use", "name": name, "input": given} for name, given in calls)
    return Reply(tuple(blocks), **{"stop_reason": "tool_use"} | fields)


def status(code: int, kind: str = "overloaded_error", message: str = "busy", after: float | None = None) -> Reply:
    """Return an error of the service, with `retry-after` if given."""
    body = json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    headers = {} if after is None else {"retry-after": f"{after:g}"}
    return Reply(status=code, body=body, headers={"content-type": "application/json", **headers})


def raw(body: bytes, content_type: str = "text/event-stream") -> Reply:
    """Return a raw response."""
    return Reply(body=body, headers={"content-type": content_type})


class MessagesServer:
    """The server on a free local port; replies are sent in the order of the script."""

    def __init__(self) -> None:
        self._replies: list[Reply] = []
        self._lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        """The requests, as JSON."""
        self.keys: list[str] = []
        """The key of each request."""
        self._closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="messages-server", daemon=True)

    @property
    def url(self) -> str:
        """The SDK's `base_url`."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def script(self, *replies: Reply) -> None:
        """Append replies to the script."""
        with self._lock:
            self._replies += replies

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def take(self, request: dict[str, Any], key: str) -> Reply:
        """Return the reply to a request; after the end of the script, an error that is not retried."""
        with self._lock:
            self.requests.append(request)
            self.keys.append(key)
            return self._replies.pop(0) if self._replies else status(400, "invalid_request_error", "the script is over")

    def wait(self, gate: threading.Event) -> bool:
        """Return whether the gate was opened before the server closed."""
        while not gate.wait(0.01):
            if self._closing.is_set():
                return False
        return True


def _handler(server: MessagesServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            reply = server.take(
                json.loads(body), (self.headers.get("authorization") or self.headers.get("x-api-key") or "").removeprefix("Bearer ")
            )
            try:
                self._send(reply)
            except OSError:
                return  # the client has disconnected

        def _send(self, reply: Reply) -> None:
            self.send_response(reply.status)
            for name, value in {"content-type": "text/event-stream", "connection": "close", **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if reply.body is not None:
                self.wfile.write(reply.body)
                return
            for number, event in enumerate(_events(reply, len(server.requests))):
                if reply.cut_after is not None and number >= reply.cut_after:
                    return
                self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
                if event["type"] == "content_block_delta" and reply.gate is not None and not server.wait(reply.gate):
                    return

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    return Handler


def _events(reply: Reply, number: int) -> Iterator[dict[str, Any]]:
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "scripted", "content": []}
    usage = {"input_tokens": reply.input_tokens, "output_tokens": 1}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    for index, block in enumerate(reply.content):
        if block["type"] == "text":
            start: dict[str, Any] = {"type": "text", "text": ""}
            whole, delta = block["text"], ("text_delta", "text")
        else:
            given = block["input"]
            start = {"type": "tool_use", "id": f"toolu_{number}_{index}", "name": block["name"], "input": {}}
            whole, delta = given if isinstance(given, str) else json.dumps(given), ("input_json_delta", "partial_json")
        yield {"type": "content_block_start", "index": index, "content_block": start}
        size = max(len(whole) // _PIECES, 1)
        for piece in (whole[at : at + size] for at in range(0, len(whole), size)):
            yield {"type": "content_block_delta", "index": index, "delta": {"type": delta[0], delta[1]: piece}}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": reply.stop_reason, "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": reply.output_tokens}}
    yield {"type": "message_stop"}
