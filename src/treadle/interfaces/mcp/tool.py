"""A tool: name, arguments and result of a function, with the schemas derived from its signature."""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import mcp_types as wire
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from treadle.api.contract import ApiRecord, Doc, Parameter, parameters_of
from treadle.api.wire import json_schema, to_builtins
from treadle.interfaces.mcp.advice import Advisor
from treadle.interfaces.mcp.answers import Fields, Shape, record_type, text_of
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.model.access import Scope
from treadle.model.errors import Forbidden, TreadleError
from treadle.model.text import safe_logger
from treadle.model.values import Json

_LOG = safe_logger("treadle.mcp")

SHARED = frozenset(
    [
        "limit",
        "before",
        "after",
        "whole",
        "wait_for",
        "idempotency_key",
        "task_list",
        "task_id",
        "run_id",
        "step_id",
        "approval_id",
        "checksum",
        "entrypoint",
        "metadata",
        "requirements",
        "timeout_ms",
        "job_id",
        "objective_id",
    ]
)
"""Arguments that mean the same in every tool, which the server's instructions describe once, or that their names explain."""

Perform = Callable[..., Awaitable[ApiRecord | Fields]]


@dataclass(frozen=True)
class Tool:
    """A tool for models."""

    name: str
    doc: str
    """Its description."""
    parameters: tuple[Parameter, ...]
    shape: type | Shape
    """The record that it returns, or the fields of its answer."""
    perform: Perform
    """Takes the request's context and the arguments by name."""
    scope: Scope
    """The minimum scope; the contract may require more."""
    changes: bool
    ends: bool
    """Whether it ends or removes something irreversibly."""
    repeatable: bool
    """Whether it is idempotent."""

    @cached_property
    def arguments(self) -> type[BaseModel]:
        """Model of its arguments; unknown ones are refused."""
        fields: dict[str, Any] = {}
        for parameter in self.parameters:
            default = list(parameter.default) if parameter.default == () else parameter.default
            fields[parameter.name] = (
                _bare(parameter.hint),
                Field(... if parameter.required else default, **_described(parameter.doc)),
            )
        return create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of its arguments."""
        return _schema(self.arguments.model_json_schema())

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        """JSON Schema of its result."""
        returned = self.shape if isinstance(self.shape, type) else record_type(self.name, self.shape)
        return _schema(json_schema(returned))

    @property
    def description(self) -> str:
        """Its description for models."""
        return f"{self.doc}\n\nNeeds the scope `{self.scope}`."

    def listed(self) -> wire.Tool:
        """Its description for clients: as short as models can use it, and without its result, which structured content shows."""
        hints = wire.ToolAnnotations(
            read_only_hint=not self.changes,
            destructive_hint=self.ends,
            idempotent_hint=self.repeatable or not self.changes,
            open_world_hint=False,
        )
        return wire.Tool(
            name=self.name,
            description=" ".join(self.doc.split()),
            input_schema=_brief(self.input_schema),
            annotations=hints,
        )

    async def call(self, context: RequestContext, arguments: Mapping[str, Any]) -> ApiRecord | Fields:
        """Call it; raises `Forbidden` without its scope, and pydantic's `ValidationError` for invalid arguments."""
        if not context.may(self.scope):
            raise Forbidden(self.scope)
        try:
            fitting = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            error.add_note(", ".join(self.arguments.model_fields) or "(none)")
            raise
        return await self.perform(context, **{name: getattr(fitting, name) for name in fitting.model_fields_set})


def tool(
    scope: Scope = Scope.READ,
    *,
    answers: Shape | None = None,
    changes: bool | None = None,
    ends: bool = False,
    repeatable: bool = False,
) -> Callable[[Perform], Tool]:
    """Make a tool of a function that returns a record or the fields that it `answers`.

    Tools that need more than `read` change something, unless `changes` is given.
    """

    def decorate(function: Perform) -> Tool:
        return Tool(
            function.__name__,
            inspect.getdoc(function) or "",
            tuple(parameters_of(function)),
            get_type_hints(function)["return"] if answers is None else answers,
            function,
            scope,
            scope is not Scope.READ if changes is None else changes,
            ends,
            repeatable,
        )

    return decorate


def _bare(hint: Any) -> Any:
    """The type without metadata; sequences as lists."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) is Sequence:
        return list[get_args(hint)[0]]  # type: ignore[misc]
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(_bare(member) for member in get_args(hint))]  # noqa: UP007
    return hint


def _described(doc: Doc) -> dict[str, Any]:
    return {"description": doc.text} | ({} if doc.example is None else {"examples": [doc.example]})


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without titles, which repeat names: models read schemas, and every token costs."""
    return {name: _untitled(value) for name, value in schema.items() if name != "title"}


def _untitled(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_untitled(subschema) for subschema in schema]
    if not isinstance(schema, dict):
        return schema
    fields = {name: value for name, value in schema.items() if not (name == "title" and isinstance(value, str))}
    return {name: _untitled(value) for name, value in fields.items()}


def _brief(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as listed: it does not repeat that null stands for an omitted argument, and that unknown ones are refused."""
    defined = {f"#/$defs/{name}": _brief_type(definition) for name, definition in schema.get("$defs", {}).items()}
    properties = {name: _brief_argument(name, _inlined(argument, defined)) for name, argument in schema["properties"].items()}
    brief: dict[str, Any] = {"type": "object", "properties": properties}
    return brief | ({"required": schema["required"]} if "required" in schema else {})


def _brief_type(schema: dict[str, Any]) -> dict[str, Any]:
    brief = {key: value for key, value in schema.items() if key not in ("description", "additionalProperties")}
    return brief if "enum" not in brief else {"enum": brief["enum"]}


def _inlined(schema: Any, defined: Mapping[str, Any]) -> Any:
    """The schema with the definitions in place of references to them."""
    if isinstance(schema, list):
        return [_inlined(subschema, defined) for subschema in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return defined[schema["$ref"]] | {key: value for key, value in schema.items() if key != "$ref"}
    return {key: _inlined(value, defined) for key, value in schema.items()}


def _brief_argument(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    brief = {key: value for key, value in schema.items() if not (key == "default" and value in (None, []))}
    if "anyOf" in brief:
        parts = [alternative for alternative in brief["anyOf"] if alternative != {"type": "null"}]
        brief = (parts[0] if len(parts) == 1 else {"anyOf": parts}) | {key: brief[key] for key in brief if key != "anyOf"}
    if brief.get("additionalProperties") is True:
        del brief["additionalProperties"]
    dropped = {"description", "examples", "default"} if name in SHARED else {"examples"} if brief.get("type") != "string" else set()
    return {key: value for key, value in brief.items() if key not in dropped and value != ""}


async def answer(tool: Tool, context: RequestContext, arguments: Mapping[str, Any], advisor: Advisor) -> wire.CallToolResult:
    """Call the tool; errors become results, so that the model sees them."""
    try:
        return _result(advisor.value(to_builtins(await tool.call(context, arguments))))
    except TreadleError as error:
        return _result(advisor.value(_error(error.code, str(error), **details(error))), is_error=True)
    except ValidationError as error:
        return _result(_misfit(error), is_error=True)
    except Exception as error:  # a loop's edge: the server goes on with other calls
        _LOG.error("tool %s failed", tool.name, exc_info=error)
        return _result(_error("internal_error", "This is a bug in Treadle; see the server's log."), is_error=True)


def details(error: TreadleError) -> dict[str, Json]:
    """Details of an error: AFL diagnostics and the missing scope."""
    problem: Mapping[str, Any] = getattr(error, "problem", {})
    own = [
        diagnostic.as_json() if hasattr(diagnostic, "as_json") else to_builtins(diagnostic)
        for diagnostic in getattr(error, "diagnostics", ())
    ]
    diagnostics: Sequence[Any] = problem.get("diagnostics") or own
    scope = problem.get("scope") or getattr(error, "scope", None)
    return ({"diagnostics": list(diagnostics)} if diagnostics else {}) | ({"scope": str(scope)} if scope else {})


def _misfit(error: ValidationError) -> dict[str, Json]:
    problems: list[Json] = [{"at": [str(part) for part in detail["loc"]], "message": detail["msg"]} for detail in error.errors()]
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    accepted = "".join(f" It has the arguments {note}." for note in getattr(error, "__notes__", ()))
    message = f"The arguments of {error.title} are invalid: {where}: {first['msg']}.{accepted}"
    return _error("invalid_request", message, problems=problems)


def _error(code: str, message: str, **more: Json) -> dict[str, Json]:
    return {"success": False, "code": code, "error": message, **more}


def _result(value: Json, *, is_error: bool = False) -> wire.CallToolResult:
    return wire.CallToolResult(content=[wire.TextContent(text=text_of(value))], structured_content=value, is_error=is_error)
