"""The OpenAPI document in a form that pages are made from: what can be called, with what, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a field of a record."""

    name: str
    kind: str
    text: str
    where: str = "body"
    required: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """A call as readers see it."""

    method: str
    path: str
    group: str
    text: str
    scope: str | None
    fields: tuple[Field, ...]
    status: int
    answer: str
    """The record that it answers with, or the media type; empty: nothing."""
    example: Any = None
    """A body that makes sense."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the contract."""

    name: str
    text: str
    fields: tuple[Field, ...]


def operations(document: dict[str, Any]) -> list[Operation]:
    """All calls, group by group."""
    schemas = document["components"]["schemas"]
    found = [
        _operation(method.upper(), path, said, schemas)
        for path, methods in document["paths"].items()
        for method, said in methods.items()
    ]
    groups = list(dict.fromkeys(each.group for each in found))
    return sorted(found, key=lambda each: groups.index(each.group))


def records(document: dict[str, Any]) -> list[Record]:
    """All records that answers and bodies are made of, but for bodies themselves."""
    bodies = {
        _name(content["schema"])
        for methods in document["paths"].values()
        for said in methods.values()
        for content in said.get("requestBody", {}).get("content", {}).values()
    }
    schemas = document["components"]["schemas"]
    return [
        Record(name, schema.get("description", ""), _fields(schema))
        for name, schema in sorted(schemas.items())
        if name not in bodies and "properties" in schema
    ]


def kind_of(schema: dict[str, Any]) -> str:
    """A type in few words."""
    if "$ref" in schema:
        return _name(schema)
    if options := schema.get("anyOf"):
        return " | ".join(kind_of(each) for each in options)
    if values := schema.get("enum"):
        return " | ".join(f'"{each}"' for each in values)
    if "const" in schema:
        return f'"{schema["const"]}"'
    kind = schema.get("type", "any")
    if kind == "array":
        return f"[{kind_of(schema.get('items', {}))}]"
    return {"date-time": "instant"}.get(schema.get("format", ""), str(kind))


def _operation(method: str, path: str, said: dict[str, Any], schemas: dict[str, Any]) -> Operation:
    parameters = tuple(
        Field(each["name"], kind_of(each["schema"]), each.get("description", ""), each["in"], bool(each.get("required")))
        for each in said.get("parameters", ())
    )
    content: dict[str, dict[str, Any]] = said.get("requestBody", {}).get("content", {})
    body: dict[str, Any] = next((each["schema"] for each in content.values()), {})
    body = next((each for each in body.get("anyOf", ()) if "$ref" in each), body)
    schema = schemas.get(_name(body), body)
    status = next(int(each) for each in said["responses"] if each < "300")
    answers: dict[str, dict[str, Any]] = said["responses"][str(status)].get("content", {})
    media = next(iter(answers), "")
    answer: dict[str, Any] = answers.get(media, {})
    return Operation(
        method,
        path,
        said["tags"][0],
        said.get("description") or said.get("summary", ""),
        said.get("x-scope"),
        (*parameters, *_fields(schema)),
        status,
        _name(answer.get("schema", {})) or media,
        next(iter(schema.get("examples", ())), None),
    )


def _fields(schema: dict[str, Any]) -> tuple[Field, ...]:
    required = schema.get("required", ())
    return tuple(
        Field(name, kind_of(each), each.get("description", ""), "body", name in required)
        for name, each in schema.get("properties", {}).items()
    )


def _name(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]
