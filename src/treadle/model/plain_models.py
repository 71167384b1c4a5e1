"""Pydantic models that can be checked without reading back the text that was written.

The fields of a plain model are numbers, text, times and lists of them, with or without constraints: its validator checks them in
strict mode as they are, in half the time that reading the text takes. A field that another model, a validator or a serializer
of the user's takes part in is not plain. Schemas are compared with those known here; all others count as not plain. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

_LEAVES = frozenset({"bool", "date", "datetime", "decimal", "float", "int", "str", "uuid"})
_LISTS = frozenset({"frozenset", "list", "set"})
_WRAPPERS = frozenset({"default", "nullable"})
_MODEL = frozenset({"cls", "config", "custom_init", "metadata", "ref", "root_model", "schema", "type"})
_FIELDS = frozenset({"computed_fields", "fields", "model_name", "type"})
_FIELD = frozenset({"metadata", "schema", "type"})
_LONGEST = 4000
"""Bytes up to which every number that is written can be read: Python bounds the digits of an int."""
_CONFIG = frozenset({"frozen", "title", "validate_assignment"})


def find_plain_writer(cls: Any) -> Callable[[Any], str | None] | None:
    """Return a function for a plain model that returns its JSON text; None for a value that may not match.

    Returns None for models that are not plain.
    """
    schema = getattr(cls, "__pydantic_core_schema__", None)
    if not isinstance(schema, dict) or schema.get("type") != "model" or schema["cls"] is not cls or schema.keys() - _MODEL:
        return None
    if schema.get("custom_init") or schema.get("root_model") or schema.get("config", {}).keys() - _CONFIG:
        return None
    inner = schema["schema"]
    if inner.get("type") != "model-fields" or inner.keys() - _FIELDS or inner.get("computed_fields"):
        return None
    kinds: set[str | None] = set()
    for field in inner["fields"].values():
        if field.keys() - _FIELD:  # an alias, for example
            return None
        kinds.update(_kinds(field["schema"]))
    if kinds - _LEAVES:
        return None
    to_json, validate = cls.__pydantic_serializer__.to_json, cls.__pydantic_validator__.validate_python
    has_floats = "float" in kinds

    def write(value: Any) -> str | None:
        if type(value) is not cls:
            return None
        try:
            text: bytes = to_json(value, warnings=False)
            if len(text) > _LONGEST or (has_floats and b"null" in text):  # written for numbers that JSON does not have
                return None
            validate(value.__dict__, strict=True)
            return text.decode()
        except Exception:
            return None

    return write


def _kinds(schema: Any) -> Iterator[str | None]:
    """Yield the types of a field's leaves; None for one that is not known."""
    kind = schema.get("type")
    if "serialization" in schema:
        yield None
    elif kind in _WRAPPERS:
        yield from _kinds(schema["schema"])
    elif kind in _LISTS:
        yield from _kinds(schema.get("items_schema", {}))
    else:
        yield kind
