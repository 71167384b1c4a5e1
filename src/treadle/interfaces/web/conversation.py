"""The conversation of an agent's step, read from the recorded messages of several frameworks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple


class Turn(NamedTuple):
    """A part of a conversation."""

    role: str
    """`prompt`, `reply`, `thinking`, `tool call` or `tool result`."""
    text: str


_ROLES = {
    "assistant": "reply",
    "model": "reply",
    "user": "prompt",
    "system": "prompt",
    "developer": "prompt",
    "tool": "tool result",
}
_KINDS = {
    "text": "", "output_text": "", "input_text": "", "system-prompt": "prompt", "user-prompt": "prompt", "retry-prompt": "prompt",
    "thinking": "thinking", "tool_use": "tool call", "tool-call": "tool call", "function_call": "tool call",
    "tool_result": "tool result", "tool-return": "tool result", "function_call_output": "tool result",
}  # fmt: skip
_DEPTH = 6


def conversation(*values: Any) -> list[Turn]:
    """The turns in the values, in their order; empty if they have no messages."""
    return [turn for value in values for turn in _turns(value, "", 0)]


def _turns(value: Any, role: str, depth: int) -> Iterator[Turn]:
    if depth > _DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _turns(item, role, depth + 1)
    elif isinstance(value, dict):
        kind = value.get("part_kind") or value.get("type")
        here = _ROLES.get(str(value.get("role") or value.get("kind") or ""), role) or ("reply" if kind == "message" else role)
        if kind in _KINDS:
            text = _text(value)
            if text:
                yield Turn(_KINDS[kind] or here or "reply", text)
        elif isinstance(content := value.get("content"), str) and here:
            yield Turn(here, content)
        else:
            for name in ("messages", "message_history", "parts", "content", "output", "value", "response", "message"):
                yield from _turns(value.get(name), here, depth + 1)


def _text(part: dict[str, Any]) -> str:
    name = part.get("tool_name") or part.get("name")
    for field in ("text", "content", "input", "args", "arguments", "output", "thinking"):
        if part.get(field) not in (None, "", []):
            value = part[field]
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
            return f"{name}: {text}" if name else text
    return str(name or "")
