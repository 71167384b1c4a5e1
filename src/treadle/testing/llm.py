"""A local model server that answers from a script, so that tests and examples use the real SDKs without a real service.

It speaks Messages, Chat Completions and Responses, each plain and streamed:

with ModelServer() as server:
    server.script(status(429, after=0.01), uses(("ns__Facet", {"answer": 42})))
    settings = Settings(anthropic_api_key="key", anthropic_base_url=server.url)
    client = AsyncOpenAI(api_key="key", base_url=f"{server.url}/v1")

A conversation answers by the number of turns in the request instead, so that a repeated request gets the same reply, and counts
the requests of each turn:

    server.conversation(uses(("search", {"q": "tea"})), text("Found."), key="tea")
    assert server.repeated() == {}
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from treadle.testing import llm_wire


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


class ModelServer:
    """The server on a local port (default: a free one); replies follow the order of the script, or the turns of a conversation."""

    def __init__(self, port: int = 0) -> None:
        self._replies: list[Reply] = []
        self._conversations: dict[str, tuple[Reply, ...]] = {}
        self._lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        """The requests, as JSON."""
        self.keys: list[str] = []
        """The API key of each request."""
        self.counts: Counter[tuple[str, int]] = Counter()
        """The number of requests by key and turn of a conversation."""
        self._closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="model-server", daemon=True)

    @property
    def url(self) -> str:
        """The `base_url` of Anthropic's SDK; that of OpenAI's ends with `/v1`."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def script(self, *replies: Reply) -> None:
        """Append replies to the script."""
        with self._lock:
            self._replies += replies

    def conversation(self, *replies: Reply, key: str = "") -> None:
        """Answer every request whose first user text contains the key with the reply of its turn, counted from 0.

        A turn is the number of times that the model has spoken in the request.
        """
        with self._lock:
            self._conversations[key] = replies

    def repeated(self) -> dict[tuple[str, int], int]:
        """Return the turns of conversations that were requested more than once, by key and turn."""
        return {turn: count for turn, count in self.counts.items() if count > 1}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def take(self, request: dict[str, Any], key: str) -> tuple[Reply, str]:
        """Return the reply to a request and the id of its message; after the end of the script, an error that is not retried."""
        with self._lock:
            self.requests.append(request)
            self.keys.append(key)
            if self._conversations:
                said, turn = llm_wire.first_text(request), llm_wire.turn_of(request)
                for about in sorted(self._conversations, key=len, reverse=True):
                    if about in said:
                        self.counts[about, turn] += 1
                        replies = self._conversations[about]
                        return (replies[turn] if turn < len(replies) else _OVER), f"{about}_{turn}"
            return (self._replies.pop(0) if self._replies else _OVER), str(len(self.requests))

    def wait(self, gate: threading.Event) -> bool:
        """Return whether the gate was opened before the server closed."""
        while not gate.wait(0.01):
            if self._closing.is_set():
                return False
        return True


_OVER = status(400, "invalid_request_error", "the script is over")

MessagesServer = ModelServer


def _handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
            key = (self.headers.get("authorization") or self.headers.get("x-api-key") or "").removeprefix("Bearer ")
            reply, message_id = server.take(request, key)
            try:
                self._send(reply, llm_wire.format_of(self.path), message_id, bool(request.get("stream")))
            except OSError:
                return  # the client has disconnected

        def _send(self, reply: Reply, wire: llm_wire.Format, message_id: str, streamed: bool) -> None:
            self.send_response(reply.status)
            kind = "text/event-stream" if streamed else "application/json"
            for name, value in {"content-type": kind, "connection": "close", **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if reply.body is not None or not streamed:
                self.wfile.write(json.dumps(wire.whole(reply, message_id)).encode() if reply.body is None else reply.body)
                return
            for number, event in enumerate(wire.events(reply, message_id)):
                if reply.cut_after is not None and number >= reply.cut_after:
                    return
                named = f"event: {event['type']}\n" if "type" in event else ""
                self.wfile.write(f"{named}data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
                if wire.is_delta(event) and reply.gate is not None and not server.wait(reply.gate):
                    return
            self.wfile.write(wire.end)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    return Handler
