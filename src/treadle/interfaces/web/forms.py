"""Values of forms and queries, converted for calls; a rejected form is shown again, with each error at its field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from html import escape, unescape
from types import NoneType
from typing import Any, TypeVar, get_args

from starlette.datastructures import FormData, QueryParams

from treadle.api.contract import Call, OptionField, call_of, field_of, option_fields
from treadle.api.facade import protocol_of
from treadle.model.errors import Forbidden, InvalidInput

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


def text(fields: Fields, name: str) -> str | None:
    """The text of a field; None if it is empty."""
    return str(fields.get(name) or "").strip() or None


def _parsed(fields: Fields, name: str, parse: Callable[[str], T], expected: str) -> T | None:
    """The value in a field; None if it is empty."""
    typed = text(fields, name)
    try:
        return None if typed is None else parse(typed)
    except ValueError:
        raise InvalidForm({name: f"{name} must be {expected}, not {typed!r}."}) from None


def number(fields: Fields, name: str) -> float | None:
    """The number in a field; None if it is empty."""
    return _parsed(fields, name, _finite, "a number")


def _finite(typed: str) -> float:
    if not math.isfinite(value := float(typed)):
        raise ValueError
    return value


def whole(fields: Fields, name: str) -> int | None:
    """The whole number in a field; None if it is empty."""
    return _parsed(fields, name, int, "a whole number")


def instant(fields: Fields, name: str) -> datetime | None:
    """The date and time in a field, in UTC unless it names a zone; None if it is empty."""
    at = _parsed(fields, name, datetime.fromisoformat, "a date and a time, such as 2030-01-31T12:00")
    return at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)


TARGETS = ("task", "workflow", "function")
"""Options that name the started work; forms have a selection of the kind (`kind`) and one name (`target`) for them."""


def described(options: type, without: Container[str] = TARGETS) -> list[OptionField]:
    """The fields of an options class that a form shows, for `parts.options`."""
    return [option for option in option_fields(options) if option.name not in without]


@cache
def find_call(operation: str) -> Call:
    """The declaration of an operation, such as `runs.cancel`."""
    group, name = operation.split(".")
    return call_of(group, getattr(protocol_of(group), name))


@cache
def parameters_of(operation: str) -> tuple[OptionField, ...]:
    """The parameters of an operation as fields of a form."""
    call = find_call(operation)
    return tuple(field_of(parameter.name, parameter.hint) for parameter in (*call.path, *call.others))


def complete(operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operation with None for absent ones that may be; raises `InvalidForm` with those that may not."""
    call = find_call(operation)
    absent = {
        parameter.name: NoneType in get_args(get_args(parameter.hint)[0])
        for parameter in (*call.path, *call.others)
        if parameter.required and parameter.name not in arguments
    }
    if missing := {name: f"Enter {name.replace('_', ' ')}." for name, is_nullable in absent.items() if not is_nullable}:
        raise InvalidForm(missing)
    return dict.fromkeys(absent) | dict(arguments)


def arguments_of(fields: Fields, parameters: Iterable[OptionField]) -> dict[str, Any]:
    """The parameters that are filled in, converted by their descriptions; raises `InvalidForm` with the errors of all fields."""
    filled: dict[str, Any] = {}
    with each_field() as check:
        for parameter in parameters:
            with check:
                filled[parameter.name] = _argument(fields, parameter)
    if (target := text(fields, "target")) is not None:
        kind = text(fields, "kind") or TARGETS[0]
        filled[kind if kind in TARGETS else TARGETS[0]] = target
    return {name: value for name, value in filled.items() if value is not None}


def filters_of(fields: Fields, operation: str) -> dict[str, Any]:
    """The filters of an operation that lists records; `every` counts with any value."""
    filters = [parameter for parameter in parameters_of(operation) if parameter.name not in ("every", "limit")]
    every = {"every": True} if "every" in fields else {}
    return arguments_of(fields, filters) | every


@contextmanager
def each_field() -> Iterator[_FormCollector]:
    """Collect the errors of fields that are parsed in `with check:` blocks, and raise all of them together."""
    collector = _FormCollector()
    yield collector
    if collector.fields:
        raise InvalidForm(collector.fields)


class _FormCollector:
    def __init__(self) -> None:
        self.fields: dict[str, str] = {}

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, InvalidForm):
            self.fields |= error.fields
            return True
        return False


def _argument(fields: Fields, parameter: OptionField) -> Any:
    name = parameter.name
    match parameter.kind:
        case "integer":
            return whole(fields, name)
        case "number" | "duration":
            return number(fields, name)
        case "boolean":
            typed = text(fields, name)
            return None if typed is None else typed != "false"
        case "instant":
            return instant(fields, name)
        case "choices":
            lines = [line.strip() for typed in fields.getlist(name) for line in str(typed).splitlines()]
            return [line for line in lines if line] if name in fields else None
        case "object" | "json":
            return parse_object(fields, name)
        case "text" | "choice":
            return text(fields, name)


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
        raise InvalidForm({f"in-{name}": f"{name} must be of type {kind}; {text!r} is not."}) from None


_VOID = ("checkbox", "radio")


class InvalidForm(InvalidInput):
    """Fields of a form have invalid values; `fields` has the message of each."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(" ".join(fields.values()))
        self.fields = fields


@dataclass(frozen=True)
class Rejected:
    """A form that was rejected."""

    action: str
    form: Fields
    error: Exception
    method: str = "post"

    def put_into(self, page: str) -> str | None:
        """Return the page with the form filled in and marked; None if the page does not have the form."""
        errors = self.errors([name for name in self.form if name != "csrf"])
        forms = [form for form in _FORM.finditer(page) if self._is_sent_by(form)]
        form = next((form for form in forms if any(f'name="{name}"' in form["body"] for name in errors)), next(iter(forms), None))
        if form is None or all(_attributes(field[0]).get("type") == "hidden" for field in _FIELD.finditer(form["body"])):
            return None
        general = f'<p class="field-error" role="alert">{escape(errors[""])}</p>' if "" in errors else ""
        filled = _FIELD.sub(lambda field: self._fill(field, errors), form["body"])
        whole = f"{page[: form.start('body')]}{general}{filled}{page[form.end('body') :]}"
        return whole.replace("<body data-live=", '<body data-live="" data-was-live=', 1)

    def _is_sent_by(self, form: re.Match[str]) -> bool:
        attributes = _attributes(form["start"])
        by_button = self.method == "get" and f'formaction="{self.action}"' in form["body"]
        return by_button or (attributes.get("action"), attributes.get("method")) == (self.action, self.method)

    def _fill(self, field: re.Match[str], errors: dict[str, str]) -> str:
        """The field as it was filled in, with its error; the error of several fields with one name is at the first."""
        start, body, end = field["start"] or field["input"], field["body"] or "", field["end"] or ""
        attributes = _attributes(start)
        values = [str(value) for value in self.form.getlist(attributes.get("name", ""))]
        if attributes.get("type") == "hidden":
            return field[0]
        if attributes.get("type") in _VOID:
            return _chosen(start, attributes.get("value", "on"), "checked", values)
        if field["tag"] == "select":
            body = _OPTION.sub(lambda option: _marked_option(option, values), body)
        elif field["tag"] == "textarea":
            body = escape(values[0] if values else "", quote=False)
        else:
            value = f' value="{escape(values[0])}"' if values else ""
            start = re.sub(r'\svalue="[^"]*"', "", start[:-1].rstrip("/")) + f"{value}>"
        if (message := errors.pop(attributes.get("name", ""), None)) is None:
            return f"{start}{body}{end}"
        mark = f"error-{escape(attributes['name'])}"
        marked = f'{start[:-1]} aria-invalid="true" aria-describedby="{mark}">'
        return f'{marked}{body}{end}<span class="field-error" id="{mark}" role="alert">{escape(message)}</span>'

    def errors(self, names: Sequence[str]) -> dict[str, str]:
        """Return the message of each field among `names`; under an empty name, one that concerns none of them alone."""
        if isinstance(self.error, InvalidForm):
            messages = {name: message for name, message in self.error.fields.items() if name in names}
            return messages or {"": str(self.error)}
        reason = str(self.error)
        quoted = [name for name in names if _is_quoted(str(self.form[name]).strip(), reason)]
        words = re.sub(r"'[^']*'", "", reason)
        named = [(match.start(), -len(name), name) for name in names if (match := _word(name).search(words))]
        return {next(iter(quoted + [name for _, _, name in sorted(named)]), ""): reason}


_FORM = re.compile(r"(?P<start><form\b[^>]*>)(?P<body>.*?)</form>", re.DOTALL)
_FIELD = re.compile(
    r"(?P<start><(?P<tag>select|textarea)\b[^>]*>)(?P<body>.*?)(?P<end></(?P=tag)>)|(?P<input><input\b[^>]*>)", re.DOTALL
)
_OPTION = re.compile(r"(?P<start><option\b[^>]*>)(?P<text>[^<]*)")
"""Elements of our own pages: templates escape `<` and `>` in values."""


def _attributes(tag: str) -> dict[str, str]:
    """The attributes of an element, by name."""
    return {name: unescape(value) for name, value in re.findall(r'\s([\w-]+)="([^"]*)"', tag)}


def _marked_option(option: re.Match[str], values: Sequence[str]) -> str:
    value = _attributes(option["start"]).get("value", unescape(option["text"]).strip())
    return _chosen(option["start"], value, "selected", values) + option["text"]


_QUOTED = 40
"""Characters by which a value is recognised in a message, which may cut long ones."""


def _is_quoted(typed: str, reason: str) -> bool:
    """Whether the message quotes the value, of which it may show the beginning only."""
    return bool(typed) and any(words[:_QUOTED] in reason for words in (repr(typed), f"not {typed}"))


def _word(name: str) -> re.Pattern[str]:
    """A field's name as a message would write it; lists in the singular too."""
    return re.compile(rf"\b{re.escape(name.removeprefix('in-').removesuffix('s')).replace('_', '[ _-]')}s?\b", re.IGNORECASE)


def _chosen(text: str, value: str, mark: str, values: Sequence[str]) -> str:
    """The tag of an option or box, marked as it was sent."""
    bare = re.sub(rf"\s{mark}(=\"[^\"]*\")?", "", text)
    return f"{bare[:-1]} {mark}>" if value in values else bare
