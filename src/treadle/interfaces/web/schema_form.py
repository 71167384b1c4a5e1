"""Forms from JSON Schemas: their fields, and the value that was entered. Works without scripts.

A field of a nested object has a dotted name (`in.order.sku`). Lists of simple values are entered one per line; what has no
simple field, such as a list of objects, is entered as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.datastructures import FormData

from treadle.interfaces.typed_inputs import MismatchedInputs, check_inputs, find_parameters, start_of
from treadle.interfaces.web.forms import InvalidForm, each_field
from treadle.model.json_schema import Schema, resolved

if TYPE_CHECKING:
    from treadle.api.facade import Api

_DEPTH = 4
_PREFIX = "in"
_INPUTS = {"date": "date", "time": "time", "email": "email", "uri": "url"}
_ABSENT: Any = object()


class FormField(NamedTuple):
    """One field of a form; `kind` is `group`, `choice`, `boolean`, `integer`, `number`, `text`, `lines` or `json`."""

    name: str
    label: str
    kind: str
    schema: Schema
    required: bool
    default: str = ""
    """As it is entered."""
    fields: tuple[FormField, ...] = ()
    """Those of a group."""

    @property
    def input(self) -> str:
        """The type of the input element for text."""
        return _INPUTS.get(self.schema.get("format", ""), "text")

    @property
    def choices(self) -> list[str]:
        """The values of a choice, as they are entered."""
        return [_entered(choice) for choice in self.schema["enum"]]


def schema_fields(schema: Schema, prefix: str = _PREFIX) -> tuple[FormField, ...]:
    """Return the fields for an object; none if its schema does not name any."""
    return tuple(_fields(schema, schema, prefix, 0))


def _fields(schema: Schema, whole: Schema, prefix: str, depth: int) -> Iterator[FormField]:
    required = schema.get("required", ())
    for name, declared in schema.get("properties", {}).items():
        part = _plain(declared, whole)
        kind = _kind(part, whole, depth)
        inner = tuple(_fields(part, whole, f"{prefix}.{name}", depth + 1)) if kind == "group" else ()
        default = "" if part.get("default") is None else _lines(part["default"]) if kind == "lines" else _entered(part["default"])
        yield FormField(f"{prefix}.{name}", name, kind, part, name in required, default, inner)


def _plain(schema: Schema, whole: Schema) -> Schema:
    """Return the schema without references, and of an optional value the schema of the value."""
    schema = resolved(schema, whole)
    options = [resolved(option, whole) for option in schema.get("anyOf", ())]
    present = [option for option in options if option.get("type") != "null"]
    if len(present) == 1 and len(present) < len(options):
        return present[0] | {name: value for name, value in schema.items() if name != "anyOf"}
    return schema


def _kind(schema: Schema, whole: Schema, depth: int) -> str:
    if "enum" in schema:
        return "choice"
    match schema.get("type"):
        case "object" if schema.get("properties") and depth < _DEPTH:
            return "group"
        case "array" if _kind(_plain(schema.get("items") or {}, whole), whole, _DEPTH) in ("text", "integer", "number"):
            return "lines"
        case "boolean" | "integer" | "number" as kind:
            return str(kind)
        case "string" | ["string", "number"]:
            return "text"
    return "json"


def _entered(value: Any) -> str:
    return str(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _lines(values: list[Any]) -> str:
    return "\n".join(map(_entered, values))


def entered_object(form: FormData, schema: Schema, prefix: str = _PREFIX) -> dict[str, Any]:
    """Return the object that was entered, without empty fields; raises `InvalidForm` with the errors of all fields."""
    with each_field() as check:
        return _object(form, schema_fields(schema, prefix), schema, check)


def _object(form: FormData, fields: tuple[FormField, ...], whole: Schema, check: Any) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for field in fields:
        with check:
            if field.kind == "group":
                inner = _object(form, field.fields, whole, check)
                entered = inner if inner or field.required else _ABSENT
            else:
                entered = _value(field, str(form.get(field.name) or "").replace("\r\n", "\n"), whole)
            if entered is not _ABSENT:
                value[field.label] = entered
    return value


def _value(field: FormField, typed: str, whole: Schema) -> Any:
    """The value of a field; absent if it is empty."""
    text = typed.strip()
    if not text:
        return _ABSENT
    match field.kind:
        case "text":
            return typed if field.schema.get("type") == "string" else text
        case "lines":
            items = _plain(field.schema["items"], whole)
            kind = _kind(items, whole, _DEPTH)
            return [_scalar(kind, line.strip(), field.name) for line in typed.split("\n") if line.strip()]
        case "choice":
            return next((choice for choice in field.schema["enum"] if _entered(choice) == text), text)
    return _scalar(field.kind, text, field.name)


def _scalar(kind: str, text: str, name: str) -> Any:
    if kind == "text":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
        if kind == "json":
            raise InvalidForm({name: "This is not JSON."}) from None
    return value


async def with_inputs(api: Api, operation: str, form: FormData, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operation with the object that was entered; raises `InvalidForm` if it does not match."""
    start = start_of(operation, arguments)
    if start is None:
        return arguments
    is_form = not arguments.get(start.inputs) and any(name.startswith(f"{_PREFIX}.") for name in form)
    if is_form and (parameters := await find_parameters(api, start)) is not None:
        arguments = arguments | {start.inputs: entered_object(form, parameters.schema)}
    try:
        await check_inputs(api, operation, arguments)
    except MismatchedInputs as error:
        if not is_form:
            raise InvalidForm({start.inputs: str(error)}) from None
        raise InvalidForm({f"{_PREFIX}.{path}": f"{text[:1].upper()}{text[1:]}." for path, text in error.fields.items()}) from None
    return arguments


async def input_fields(api: Api, operation: str, arguments: Mapping[str, Any]) -> tuple[FormField, ...]:
    """Return the fields for the inputs of the handler or function that an operation would start; none if they are unknown."""
    start = start_of(operation, arguments)
    parameters = None if start is None else await find_parameters(api, start)
    return () if parameters is None else schema_fields(parameters.schema)
