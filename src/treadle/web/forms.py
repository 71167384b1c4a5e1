"""What was typed into a form or a query, as what a call takes; what cannot be that is refused in words."""

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
    """A JSON object that was typed; None where nothing was."""
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"That is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidInput("That is JSON, but no object: it must look like {...}.")
    return value


def text(fields: Fields, name: str) -> str | None:
    """What was typed there; None: nothing."""
    return str(fields.get(name) or "").strip() or None


def number(fields: Fields, name: str) -> float | None:
    """The number typed there; None: nothing."""
    typed = text(fields, name)
    try:
        return None if typed is None else float(typed)
    except ValueError:
        raise InvalidInput(f"{name} must be a number, not {typed!r}.") from None


def whole(fields: Fields, name: str) -> int | None:
    """The whole number typed there; None: nothing."""
    typed = text(fields, name)
    try:
        return None if typed is None else int(typed)
    except ValueError:
        raise InvalidInput(f"{name} must be a whole number, not {typed!r}.") from None


def instant(fields: Fields, name: str) -> datetime | None:
    """The date and time typed there, in UTC where it names no zone; None: nothing."""
    typed = text(fields, name)
    try:
        at = None if typed is None else datetime.fromisoformat(typed)
    except ValueError:
        raise InvalidInput(f"{name} is a date and a time, such as 2030-01-31T12:00, not {typed!r}.") from None
    return at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)


async def if_allowed(asking: Awaitable[T]) -> T | None:
    """What is asked for; None if whoever looks may not see it: the rest of the page is for them all the same."""
    try:
        return await asking
    except Forbidden:
        return None


def parse_typed(name: str, kind: str, text: str) -> Any:
    """What was typed for an input of that type of AFL; what is no text, number or truth is typed as JSON."""
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
        raise InvalidInput(f"{name} is a {kind}; {text!r} is none.") from None
