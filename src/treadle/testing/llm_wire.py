"""The wire formats of the scripted model server: Messages, Chat Completions and Responses, plain and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.testing.llm import Reply

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
    given = block["input"]
    return given if isinstance(given, str) else json.dumps(given)


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
        said = "".join(block["text"] for block in reply.content if block["type"] == "text")
        calls = [self._call(message_id, index, block) for index, block in self._calls(reply)]
        message = {"role": "assistant", "content": said or None, **({"tool_calls": calls} if calls else {})}
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
                said, at = item["content"][0], {**place, "content_index": 0}
                yield self._at("output_item.added", output_index=index, item={**item, "status": "in_progress", "content": []})
                yield self._at("content_part.added", **at, part={**said, "text": ""})
                for piece in _pieces(said["text"]):
                    yield self._at("output_text.delta", **at, delta=piece, logprobs=[])
                yield self._at("output_text.done", **at, text=said["text"], logprobs=[])
                yield self._at("content_part.done", **at, part=said)
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
            said = {"type": "output_text", "text": block["text"], "annotations": []}
            return {
                "type": "message",
                "id": f"msg_{message_id}_{index}",
                "role": "assistant",
                "status": "completed",
                "content": [said],
            }
        call = {"type": "function_call", "id": f"fc_{message_id}_{index}", "call_id": f"call_{message_id}_{index}"}
        return {**call, "name": block["name"], "arguments": _input(block), "status": "completed"}

    def _response(self, message_id: str, ended: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        response = {"id": f"resp_{message_id}", "object": "response", "created_at": 0, "model": _MODEL, "status": ended}
        options = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return {**response, **options, "error": None, "incomplete_details": None, "output": output, "usage": None}


_FORMATS: dict[str, Format] = {"messages": _Messages(), "completions": _Chat(), "responses": _Responses()}
