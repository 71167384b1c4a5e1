"""How a tool is described: its name, arguments and answer are those of a function, its schemas are made from them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import mcp_types as wire
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from treadle.api.contract import ApiRecord, Doc, parameters_of
from treadle.mcp.request_context import RequestContext
from treadle.model.access import Scope

Body = Callable[..., Awaitable[ApiRecord]]


@dataclass(frozen=True)
class Tool:
    """Something that a model can do."""

    name: str
    body: Body
    scope: Scope
    """The least that it needs; the contract decides."""
    changes: bool
    ends: bool
    """Whether something is ended or removed that is not brought back."""
    repeatable: bool
    """Whether the same call twice is as once."""

    @cached_property
    def arguments(self) -> type[BaseModel]:
        """What it takes; more is refused."""
        fields: dict[str, Any] = {}
        for each in parameters_of(self.body):
            default = ... if each.required else list(each.default) if each.default == () else each.default
            fields[each.name] = (_bare(each.hint), Field(default, **_said(each.doc)))
        return create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of what it takes."""
        return _schema(self.arguments.model_json_schema())

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        """The JSON Schema of what it answers with."""
        return _schema(TypeAdapter(self.returns).json_schema(mode="serialization"))

    @property
    def returns(self) -> type[ApiRecord]:
        """The record that it answers with."""
        found = get_type_hints(self.body)["return"]
        assert isinstance(found, type)
        return found

    @property
    def description(self) -> str:
        """What a model is told of it."""
        return f"{inspect.getdoc(self.body)}\n\nNeeds the scope `{self.scope}`."

    def listed(self) -> wire.Tool:
        """As clients are told of it."""
        hints = wire.ToolAnnotations(
            read_only_hint=not self.changes,
            destructive_hint=self.ends,
            idempotent_hint=self.repeatable or not self.changes,
            open_world_hint=False,
        )
        return wire.Tool(
            name=self.name,
            description=self.description,
            input_schema=self.input_schema,
            output_schema=self.output_schema,
            annotations=hints,
        )

    async def call(self, desk: RequestContext, given: Mapping[str, Any]) -> ApiRecord:
        """What it comes to; raises pydantic's `ValidationError` for arguments that do not fit."""
        fitting = self.arguments.model_validate(dict(given))
        return await self.body(desk, **{name: getattr(fitting, name) for name in fitting.model_fields_set})


def tool(
    scope: Scope = Scope.READ, *, changes: bool | None = None, ends: bool = False, repeatable: bool = False
) -> Callable[[Body], Tool]:
    """A tool that is called as its function; what needs more than `read` changes something, unless said otherwise."""

    def made(body: Body) -> Tool:
        return Tool(body.__name__, body, scope, scope is not Scope.READ if changes is None else changes, ends, repeatable)

    return made


def _bare(hint: Any) -> Any:
    """The type alone; sequences as lists, which is what they are in JSON."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) is Sequence:
        return list[get_args(hint)[0]]  # type: ignore[misc]
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(_bare(each) for each in get_args(hint))]  # noqa: UP007
    return hint


def _said(doc: Doc) -> dict[str, Any]:
    return {"description": doc.text} | ({} if doc.example is None else {"examples": [doc.example]})


def _schema(made: dict[str, Any]) -> dict[str, Any]:
    """The schema without titles, which say what names say: schemas are read by models, and cost."""
    return {name: _untitled(value) for name, value in made.items() if name != "title"}


def _untitled(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if not (name == "title" and isinstance(value, str))}
    return {name: _untitled(value) for name, value in kept.items()}
