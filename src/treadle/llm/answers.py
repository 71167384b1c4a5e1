"""A response of the Messages API, assembled from the events of its stream."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from treadle.model.values import Json


class Malformed(Exception):
    """The response is not a message of the Messages API; `partial` if it started well and then broke off."""

    def __init__(self, message: str, *, partial: bool = False) -> None:
        super().__init__(message)
        self.partial = partial


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call of the model; `input` is None if its JSON is invalid."""

    id: str
    tool: str
    input: dict[str, Json] | None
    raw: str


@dataclass(slots=True)
class Answer:
    """One message of the model, with its usage."""

    model: str = ""
    stop_reason: str = ""
    content: list[dict[str, Any]] = field(default_factory=list)
    """Blocks in the form in which the next request sends them back."""
    uses: list[ToolUse] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0

    @property
    def text(self) -> str:
        """The text of the message."""
        return "".join(block.get("text", "") for block in self.content if block.get("type") == "text")


class Assembler:
    """Collects the events; `answer` returns the message when they are complete."""

    def __init__(self) -> None:
        self._answer = Answer()
        self._open: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self.begun = False
        self.ended = False

    def add(self, event: Any) -> str:
        """Add an event; return the readable text that it adds: text, or the JSON of a tool's input."""
        match getattr(event, "type", None):
            case "message_start":
                self.begun = True
                self._answer.model = str(event.message.model)
                self._count(event.message.usage)
            case "content_block_start":
                self._open[event.index] = _plain(event.content_block)
            case "content_block_delta":
                return self._delta(event.index, event.delta)
            case "content_block_stop":
                self._close(event.index)
            case "message_delta":
                self._answer.stop_reason = event.delta.stop_reason or ""
                self._count(event.usage)
            case "message_stop":
                self.ended = True
            case None:
                raise Malformed("an event without a type")
            case _:
                pass  # event types newer than this code
        return ""

    def answer(self) -> Answer:
        """Return the complete message, or raise `Malformed`."""
        if not self.begun:
            raise Malformed("the response is not a stream of message events")
        if not self.ended or self._open:
            raise Malformed("the stream ended within the message", partial=True)
        return self._answer

    def _delta(self, index: int, delta: Any) -> str:
        block = self._open[index]
        match delta.type:
            case "text_delta":
                block["text"] = block.get("text", "") + delta.text
                return str(delta.text)
            case "input_json_delta":
                self._inputs[index] = self._inputs.get(index, "") + delta.partial_json
                return str(delta.partial_json)
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta.thinking
            case "signature_delta":
                block["signature"] = delta.signature
            case _:
                pass
        return ""

    def _close(self, index: int) -> None:
        block = self._open.pop(index)
        if block.get("type") == "tool_use":
            raw = self._inputs.pop(index, "")
            parsed = _object(raw) if raw else block.get("input") or {}
            self._answer.uses.append(ToolUse(str(block["id"]), str(block["name"]), parsed, raw))
            block["input"] = parsed or {}
        if block.get("type") == "text":
            block["text"] = block.get("text", "").encode("utf-8", "replace").decode()
        if block.get("type") != "text" or block["text"]:  # empty text blocks must not be sent back
            self._answer.content.append(block)

    def _count(self, usage: Any) -> None:
        """Take over token counts, which are cumulative."""
        answer = self._answer
        answer.input_tokens = _number(usage, "input_tokens", answer.input_tokens)
        answer.output_tokens = _number(usage, "output_tokens", answer.output_tokens)
        answer.cache_write_tokens = _number(usage, "cache_creation_input_tokens", answer.cache_write_tokens)
        answer.cache_read_tokens = _number(usage, "cache_read_input_tokens", answer.cache_read_tokens)


def _plain(block: Any) -> dict[str, Any]:
    found: dict[str, Any] = block.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    return found


def _number(usage: Any, name: str, before: int) -> int:
    value = getattr(usage, name, None)
    return value if isinstance(value, int) and value >= 0 else before


def _object(raw: str) -> dict[str, Json] | None:
    try:
        found = json.loads(raw)
        json.dumps(found, ensure_ascii=False).encode()  # JSON allows half a surrogate pair, which cannot be encoded
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
