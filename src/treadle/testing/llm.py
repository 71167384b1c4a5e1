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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from typing import Any, Self


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
    blocks = ({"type": "tool_use", "name": name, "input": argument} for name, argument in calls)
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
                prompt, turn = first_text(request), turn_of(request)
                for about in sorted(self._conversations, key=len, reverse=True):
                    if about in prompt:
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
    class ModelRequestHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
            key = (self.headers.get("authorization") or self.headers.get("x-api-key") or "").removeprefix("Bearer ")
            reply, message_id = server.take(request, key)
            try:
                self._send(reply, format_of(self.path), message_id, bool(request.get("stream")))
            except OSError:
                return  # the client has disconnected

        def _send(self, reply: Reply, wire: Format, message_id: str, streamed: bool) -> None:
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

    return ModelRequestHandler


_PIECES = 3
"""The number of deltas that a text or an input is split into."""
_MODEL = "scripted"


class Format:
    """One wire format."""

    end = b""
    """Sent after the last event."""

    def whole(self, reply: Reply, message_id: str) -> dict[str, Any]:
        """Return the plain response."""
        raise NotImplementedError

    def events(self, reply: Reply, message_id: str) -> Iterator[dict[str, Any]]:
        """Yield the streamed response."""
        raise NotImplementedError

    def is_delta(self, event: Mapping[str, Any]) -> bool:
        """Return whether the event carries a part of the content."""
        return "delta" in event.get("type", "")


def format_of(path: str) -> Format:
    """Return the format that a path stands for; Messages if it stands for none."""
    return _FORMATS.get(path.partition("?")[0].rpartition("/")[2], _FORMATS["messages"])


def turn_of(request: Mapping[str, Any]) -> int:
    """Return how many times the model has spoken in the request; adjacent messages and tool calls of the model are one turn."""
    return sum(spoken for spoken, _ in groupby(_items(request), _is_spoken))


def first_text(request: Mapping[str, Any]) -> str:
    """Return the first text of the user."""
    for item in _items(request):
        if item.get("role") == "user":
            content = item.get("content") or ""
            return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return ""


def _items(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    items = request.get("messages") or request.get("input") or []
    return [{"role": "user", "content": items}] if isinstance(items, str) else list(items)


def _is_spoken(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning")


def _pieces(whole: str) -> Iterator[str]:
    size = max(len(whole) // _PIECES, 1)
    return (whole[at : at + size] for at in range(0, len(whole), size))


def _input(block: Mapping[str, Any]) -> str:
    argument = block["input"]
    return argument if isinstance(argument, str) else json.dumps(argument)


class _Messages(Format):
    def whole(self, reply: Reply, message_id: str) -> dict[str, Any]:
        blocks = [
            block if block["type"] == "text" else {**block, "id": f"toolu_{message_id}_{index}"}
            for index, block in enumerate(reply.content)
        ]
        usage = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
        return self._message(message_id, blocks, usage) | {"stop_reason": reply.stop_reason}

    def _message(self, message_id: str, content: list[Any], usage: dict[str, int]) -> dict[str, Any]:
        message = {"id": f"msg_{message_id}", "type": "message", "role": "assistant", "model": _MODEL, "content": content}
        return {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}

    def events(self, reply: Reply, message_id: str) -> Iterator[dict[str, Any]]:
        usage = {"input_tokens": reply.input_tokens, "output_tokens": 1}
        yield {"type": "message_start", "message": self._message(message_id, [], usage)}
        for index, block in enumerate(reply.content):
            if block["type"] == "text":
                start: dict[str, Any] = {"type": "text", "text": ""}
                whole, delta = block["text"], ("text_delta", "text")
            else:
                start = {"type": "tool_use", "id": f"toolu_{message_id}_{index}", "name": block["name"], "input": {}}
                whole, delta = _input(block), ("input_json_delta", "partial_json")
            yield {"type": "content_block_start", "index": index, "content_block": start}
            for piece in _pieces(whole):
                yield {"type": "content_block_delta", "index": index, "delta": {"type": delta[0], delta[1]: piece}}
            yield {"type": "content_block_stop", "index": index}
        ended = {"stop_reason": reply.stop_reason, "stop_sequence": None}
        yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": reply.output_tokens}}
        yield {"type": "message_stop"}

    def is_delta(self, event: Mapping[str, Any]) -> bool:
        return bool(event["type"] == "content_block_delta")


class _Chat(Format):
    end = b"data: [DONE]\n\n"

    def whole(self, reply: Reply, message_id: str) -> dict[str, Any]:
        text = "".join(block["text"] for block in reply.content if block["type"] == "text")
        calls = [self._call(message_id, index, block) for index, block in self._calls(reply)]
        message = {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": self._reason(reply)}
        return {**self._head(message_id), "object": "chat.completion", "choices": [choice], "usage": self._usage(reply)}

    def events(self, reply: Reply, message_id: str) -> Iterator[dict[str, Any]]:
        head = {**self._head(message_id), "object": "chat.completion.chunk"}

        def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
            return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

        yield chunk({"role": "assistant", "content": ""})
        for block in reply.content:
            if block["type"] == "text":
                yield from (chunk({"content": piece}) for piece in _pieces(block["text"]))
        for index, block in self._calls(reply):
            call = self._call(message_id, index, block)
            yield chunk({"tool_calls": [{**call, "index": index, "function": {**call["function"], "arguments": ""}}]})
            for piece in _pieces(call["function"]["arguments"]):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, self._reason(reply))
        yield {**head, "choices": [], "usage": self._usage(reply)}

    def is_delta(self, event: Mapping[str, Any]) -> bool:
        return any(choice["delta"].keys() - {"role"} for choice in event["choices"])

    def _head(self, message_id: str) -> dict[str, Any]:
        return {"id": f"chatcmpl_{message_id}", "created": 0, "model": _MODEL}

    def _calls(self, reply: Reply) -> Iterator[tuple[int, Mapping[str, Any]]]:
        return enumerate(block for block in reply.content if block["type"] == "tool_use")

    def _call(self, message_id: str, index: int, block: Mapping[str, Any]) -> dict[str, Any]:
        function = {"name": block["name"], "arguments": _input(block)}
        return {"id": f"call_{message_id}_{index}", "type": "function", "function": function}

    def _reason(self, reply: Reply) -> str:
        return {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}.get(reply.stop_reason, reply.stop_reason)

    def _usage(self, reply: Reply) -> dict[str, int]:
        total = reply.input_tokens + reply.output_tokens
        return {"prompt_tokens": reply.input_tokens, "completion_tokens": reply.output_tokens, "total_tokens": total}


class _Responses(Format):
    def whole(self, reply: Reply, message_id: str) -> dict[str, Any]:
        items = [self._item(message_id, index, block) for index, block in enumerate(reply.content)]
        usage = {
            "input_tokens": reply.input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": reply.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.input_tokens + reply.output_tokens,
        }
        ended = "incomplete" if reply.stop_reason == "max_tokens" else "completed"
        return self._response(message_id, ended, items) | {"usage": usage}

    def events(self, reply: Reply, message_id: str) -> Iterator[dict[str, Any]]:
        whole = self.whole(reply, message_id)
        events = self._parts(whole["output"])
        yield {"type": "response.created", "sequence_number": 0, "response": self._response(message_id, "in_progress", [])}
        number = 0
        for number, event in enumerate(events, 1):
            yield {**event, "sequence_number": number}
        yield {"type": f"response.{whole['status']}", "sequence_number": number + 1, "response": whole}

    def _parts(self, items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for index, item in enumerate(items):
            place = {"item_id": item["id"], "output_index": index}
            if item["type"] == "message":
                content, at = item["content"][0], {**place, "content_index": 0}
                yield self._at("output_item.added", output_index=index, item={**item, "status": "in_progress", "content": []})
                yield self._at("content_part.added", **at, part={**content, "text": ""})
                for piece in _pieces(content["text"]):
                    yield self._at("output_text.delta", **at, delta=piece, logprobs=[])
                yield self._at("output_text.done", **at, text=content["text"], logprobs=[])
                yield self._at("content_part.done", **at, part=content)
            else:
                yield self._at("output_item.added", output_index=index, item={**item, "status": "in_progress", "arguments": ""})
                for piece in _pieces(item["arguments"]):
                    yield self._at("function_call_arguments.delta", **place, delta=piece)
                yield self._at("function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"])
            yield self._at("output_item.done", output_index=index, item=item)

    def _at(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", **fields}

    def _item(self, message_id: str, index: int, block: Mapping[str, Any]) -> dict[str, Any]:
        if block["type"] == "text":
            content = {"type": "output_text", "text": block["text"], "annotations": []}
            return {
                "type": "message",
                "id": f"msg_{message_id}_{index}",
                "role": "assistant",
                "status": "completed",
                "content": [content],
            }
        call = {"type": "function_call", "id": f"fc_{message_id}_{index}", "call_id": f"call_{message_id}_{index}"}
        return {**call, "name": block["name"], "arguments": _input(block), "status": "completed"}

    def _response(self, message_id: str, ended: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        response = {"id": f"resp_{message_id}", "object": "response", "created_at": 0, "model": _MODEL, "status": ended}
        options = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return {**response, **options, "error": None, "incomplete_details": None, "output": output, "usage": None}


_FORMATS: dict[str, Format] = {"messages": _Messages(), "completions": _Chat(), "responses": _Responses()}
