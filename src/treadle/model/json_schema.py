"""JSON Schemas of annotated types, for forms and for checks of entered values. Pure; `jsonschema` is loaded by the first check.

Programs are not checked against them: a newer worker may accept what the registered schemas refuse, and pydantic converts values.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from treadle.model.conversion import is_model
from treadle.model.values import Json

Schema = dict[str, Any]
ANY_OBJECT: Schema = {}
_DEFINITIONS = "$defs"


def schema_of(annotation: Any, signature: inspect.Signature | None = None) -> Schema:
    """Return the schema of an object type, with the defaults of a function's parameters; `ANY_OBJECT` if it has none."""
    try:
        (schema,), definitions = msgspec.json.schema_components([annotation], schema_hook=_custom, ref_template="#/$defs/{name}")
    except (TypeError, ValueError):
        return ANY_OBJECT
    whole: Schema = {_DEFINITIONS: definitions}
    _lift(definitions, definitions)
    _lift(schema, definitions)
    schema = {name: value for name, value in resolved(schema, whole).items() if name not in ("title", _DEFINITIONS)}
    if signature is not None:
        definitions.pop("Arguments", None)
        properties = schema["properties"] = dict(schema["properties"])
        for name, parameter in signature.parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                properties[name] = _with_default(properties[name], parameter.default)
    return schema | ({_DEFINITIONS: definitions} if definitions else {})


def _with_default(schema: Schema, default: Any) -> Schema:
    try:
        return schema | {"default": msgspec.to_builtins(default, str_keys=True)}
    except (TypeError, ValueError):
        return schema


def _custom(cls: type[Any]) -> Schema:
    if issubclass(cls, PurePath):
        return {"type": "string"}
    if is_model(cls):
        schema: Schema = cls.model_json_schema()
        return schema
    raise NotImplementedError


def _lift(schema: Any, definitions: Schema) -> None:
    """Move nested definitions to the top, where references look for them, and let decimals be numbers, as when they are read."""
    if isinstance(schema, dict) and schema.get("format") == "decimal":
        schema["type"] = ["string", "number"]
    for part in list(schema.values()) if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        if isinstance(part, dict) and isinstance(inner := part.pop(_DEFINITIONS, None), dict):
            _lift(inner, definitions)
            for name, definition in inner.items():
                definitions.setdefault(name, definition)
        _lift(part, definitions)


def resolved(schema: Schema, whole: Schema) -> Schema:
    """Return the schema that a reference names, with the keywords beside it; any other schema as it is."""
    while isinstance(reference := schema.get("$ref"), str):
        definition = whole.get(_DEFINITIONS, {}).get(reference.rpartition("/")[2])
        if not isinstance(definition, dict):
            return ANY_OBJECT
        schema = definition | {name: value for name, value in schema.items() if name != "$ref"}
    return schema


def mismatches(schemas: Sequence[Schema], value: Json) -> dict[str, str]:
    """Return the mistakes by path (`items.0.price`), as the first schema sees them; empty if the value matches any of them."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    problems: dict[str, str] = {}
    for number, schema in enumerate(schemas):
        validator = Draft202012Validator(schema, registry=Registry())  # it fetches no remote references
        errors = sorted(validator.iter_errors(value), key=lambda error: [str(part) for part in error.path])
        if not errors:
            return {}
        for error in errors if number == 0 else ():
            problems = _explained(error) | problems
    return problems


def _explained(error: Any) -> dict[str, str]:
    path = ".".join(str(part) for part in error.absolute_path)
    match error.validator:
        case "required":
            return {f"{path}.{name}".lstrip("."): "is missing" for name in error.validator_value if name not in error.instance}
        case "additionalProperties":
            names = error.schema.get("properties", {})
            message = f"is unknown; there are: {', '.join(names)}" if names else "is unknown: there are no parameters"
            return {f"{path}.{name}".lstrip("."): message for name in error.instance if name not in names}
        case "enum":
            return {path: f"must be one of {', '.join(map(str, error.validator_value))}"}
        case "type":
            kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
            return {path: f"must be {' or '.join(_KINDS.get(kind, str(kind)) for kind in kinds)}"}
        case "anyOf" | "oneOf":
            options = [option for option in error.context if option.validator != "type"] or list(error.context)
            return _explained(max(options, key=lambda option: len(option.absolute_path)))
    return {path: error.message[:_MESSAGE_LIMIT]}


_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_MESSAGE_LIMIT = 200
