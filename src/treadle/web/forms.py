"""Values of forms and queries, converted for calls; invalid ones raise `InvalidInput`."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.datastructures import FormData, QueryParams

from treadle.model.errors import Forbidden, InvalidInput

T = TypeVar("T")
Fields = FormData | QueryParams


def parse_object(text: object) -> dict[str, Any] | None:
    """A JSON object; None if the field is empty."""
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"This is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidInput("This is JSON, but not an object: it must look like {...}.")
    return value


def text(fields: Fields, name: str) -> str | None:
    """The text of a field; None if it is empty."""
    return str(fields.get(name) or "").strip() or None


def number(fields: Fields, name: str) -> float | None:
    """The number in a field; None if it is empty."""
    typed = text(fields, name)
    try:
        return None if typed is None else float(typed)
    except ValueError:
        raise InvalidInput(f"{name} must be a number, not {typed!r}.") from None


def whole(fields: Fields, name: str) -> int | None:
    """The whole number in a field; None if it is empty."""
    typed = text(fields, name)
    try:
        return None if typed is None else int(typed)
    except ValueError:
        raise InvalidInput(f"{name} must be a whole number, not {typed!r}.") from None


def instant(fields: Fields, name: str) -> datetime | None:
    """The date and time in a field, in UTC unless it names a zone; None if it is empty."""
    typed = text(fields, name)
    try:
        at = None if typed is None else datetime.fromisoformat(typed)
    except ValueError:
        raise InvalidInput(f"{name} must be a date and a time, such as 2030-01-31T12:00, not {typed!r}.") from None
    return at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)


async def if_allowed(call: Awaitable[T]) -> T | None:
    """The result, or None if the caller may not see it, so that the rest of the page is still shown."""
    try:
        return await call
    except Forbidden:
        return None


def parse_typed(name: str, kind: str, text: str) -> Any:
    """The value of an input of an AFL type; anything but text, numbers and booleans is entered as JSON."""
    try:
        match kind:
            case "String":
                return text
            case "Int" | "Long":
                return int(text)
            case "Double":
                return float(text)
            case "Boolean":
                return {"true": True, "false": False}[text.strip().lower()]
            case _:
                return json.loads(text)
    except (ValueError, KeyError, RecursionError):
        raise InvalidInput(f"{name} must be of type {kind}; {text!r} is not.") from None
