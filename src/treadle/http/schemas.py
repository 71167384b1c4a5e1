"""Schemas of the contract's records for the OpenAPI document, made once for a process and not for each application."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter

from treadle.api.contract import ApiRecord

REF = "#/components/schemas/{model}"

_used: dict[str, type] = {}


def content_of(kind: Any) -> dict[str, Any]:
    """What the documentation says of an answer that is such a record; `components` has its schema."""
    assert isinstance(kind, type)
    assert issubclass(kind, ApiRecord)
    if _used.setdefault(kind.__name__, kind) is not kind:
        raise TypeError(f"Two records of the contract are called {kind.__name__}.")
    return {"content": {"application/json": {"schema": {"$ref": REF.format(model=kind.__name__)}}}}


def components() -> dict[str, Any]:
    """The schemas of all records that were mentioned, and of those in them."""
    return dict(_components(tuple(_used.values())))


@cache
def _components(kinds: tuple[type, ...]) -> dict[str, Any]:
    _, made = TypeAdapter.json_schemas([(kind, "serialization", TypeAdapter(kind)) for kind in kinds], ref_template=REF)
    schemas: dict[str, Any] = made["$defs"]
    for schema in schemas.values():
        schema.pop("additionalProperties", None)  # what is answered may have more fields one day
    return schemas
