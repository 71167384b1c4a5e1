"""Bounded results: limited pages, and large values shown by their size and beginning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from treadle.api.contract import Doc
from treadle.model.errors import InvalidInput
from treadle.model.values import Json

VALUE = 4_000
"""Characters of JSON up to which a value is shown in full."""
_START = 400

PAGE, PAGE_LIMIT = 20, 100

Limit = Annotated[int, Doc(f"Page size, up to {PAGE_LIMIT}", PAGE)]
Before = Annotated[str | None, Doc("`next_before` of the previous page")]
After = Annotated[str | None, Doc("`next_after` of the previous page")]
Whole = Annotated[bool, Doc("Include large values, which are otherwise shown by their size and beginning")]


def page_size(limit: int) -> int:
    """The limit, if it is allowed."""
    if not 0 < limit <= PAGE_LIMIT:
        raise InvalidInput(f"limit must be from 1 to {PAGE_LIMIT}, not {limit}.")
    return limit


def shown(value: Json, whole: bool = False, most: int = VALUE) -> Json:
    """The value, or its size and beginning if it is large; in an object, only large values are replaced."""
    if whole or (size := _size(value)) <= most:
        return value
    if isinstance(value, dict) and len(value) <= 50:
        share = max(most // len(value), _START)
        return {name: each if _size(each) <= share else _cut(each) for name, each in value.items()}
    return _cut(value, size)


def _cut(value: Json, size: int | None = None) -> dict[str, Json]:
    text = value if isinstance(value, str) else _text(value)
    return {"@size": size or len(text), "@start": text[:_START]}


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str) else len(_text(value))


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def line(text: str | None, most: int = 300) -> str | None:
    """The text as one line."""
    if text is None:
        return None
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def error_line(error: Json) -> str | None:
    """The message of an error, in one line."""
    if error is None:
        return None
    return line(str(error.get("message", error)) if isinstance(error, dict) else str(error))


def last(items: Sequence[Any], most: int) -> list[Any]:
    """The last `most` items."""
    return list(items[-most:])
