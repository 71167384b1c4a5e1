"""Values of forms and queries, converted for calls; invalid ones raise `InvalidInput`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Container, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.datastructures import FormData, QueryParams

from treadle.api.contract import OptionField, option_fields
from treadle.interfaces.web.rejected import InvalidForm
from treadle.model.errors import Forbidden

T = TypeVar("T")
Fields = FormData | QueryParams


def parse_object(fields: Fields, name: str) -> dict[str, Any] | None:
    """The JSON object in a field; None if it is empty."""
    typed = text(fields, name)
    if typed is None:
        return None
    try:
        value = json.loads(typed)
    except (ValueError, RecursionError) as error:
        raise InvalidForm({name: f"This is not JSON: {error}."}) from None
    if not isinstance(value, dict):
        raise InvalidForm({name: "This is JSON, but not an object: it must look like {...}."})
    return value


def _wrong(name: str, message: str) -> InvalidForm:
    return InvalidForm({name: message})


def text(fields: Fields, name: str) -> str | None:
    """The text of a field; None if it is empty."""
    return str(fields.get(name) or "").strip() or None


def number(fields: Fields, name: str) -> float | None:
    """The number in a field; None if it is empty."""
    typed = text(fields, name)
    try:
        return None if typed is None else float(typed)
    except ValueError:
        raise _wrong(name, f"{name} must be a number, not {typed!r}.") from None


def whole(fields: Fields, name: str) -> int | None:
    """The whole number in a field; None if it is empty."""
    typed = text(fields, name)
    try:
        return None if typed is None else int(typed)
    except ValueError:
        raise _wrong(name, f"{name} must be a whole number, not {typed!r}.") from None


def instant(fields: Fields, name: str) -> datetime | None:
    """The date and time in a field, in UTC unless it names a zone; None if it is empty."""
    typed = text(fields, name)
    try:
        at = None if typed is None else datetime.fromisoformat(typed)
    except ValueError:
        raise _wrong(name, f"{name} must be a date and a time, such as 2030-01-31T12:00, not {typed!r}.") from None
    return at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)


TARGETS = ("task", "workflow", "function")
"""Options that name the started work; forms have a selection of the kind (`kind`) and one name (`target`) for them."""


def described(options: type, without: Container[str] = TARGETS) -> list[OptionField]:
    """The fields of an options class that a form shows, for `parts.options`."""
    return [each for each in option_fields(options) if each.name not in without]


def options_of(form: Fields, options: type) -> dict[str, Any]:
    """The options that are filled in, converted by their descriptions."""
    given: dict[str, Any] = {}
    with each_field() as check:
        for each in option_fields(options):
            with check:
                given[each.name] = _option(form, each)
    if (target := text(form, "target")) is not None:
        kind = text(form, "kind") or TARGETS[0]
        given[kind if kind in TARGETS else TARGETS[0]] = target
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def each_field() -> Iterator[_Collector]:
    """Collect the errors of fields that are parsed in `with check:` blocks, and raise all of them together."""
    collector = _Collector()
    yield collector
    if collector.fields:
        raise InvalidForm(collector.fields)


class _Collector:
    def __init__(self) -> None:
        self.fields: dict[str, str] = {}

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, InvalidForm):
            self.fields |= error.fields
            return True
        return False


def _option(form: Fields, option: OptionField) -> Any:
    name = option.name
    match option.kind:
        case "integer":
            return whole(form, name)
        case "number" | "duration":
            return number(form, name)
        case "boolean":
            return {"true": True, "false": False}.get(text(form, name) or "")
        case "instant":
            return instant(form, name)
        case "choices":
            return [str(each) for each in form.getlist(name)] or None
        case "object":
            return parse_object(form, name)
        case "text" | "choice":
            return text(form, name)


async def if_allowed(call: Awaitable[T]) -> T | None:
    """The result, or None if the caller may not see it, so that the rest of the page is still shown."""
    try:
        return await call
    except Forbidden:
        return None


def parse_typed(name: str, kind: str, text: str) -> Any:
    """The value of an input of an AFL type; anything but text, numbers and booleans is entered as JSON."""
    try:
        match kind.removesuffix("?"):
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
        raise _wrong(f"in-{name}", f"{name} must be of type {kind}; {text!r} is not.") from None
