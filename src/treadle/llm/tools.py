"""The tools offered to a model: the facet's own, by which it answers, and those of a registry, which are called."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from treadle.lang.nodes import DocComment, Facet, ListType, OptionalType, Param, Type
from treadle.lang.program import BUILT_IN, Program
from treadle.lang.types import words as type_words
from treadle.model.names import short_name
from treadle.model.values import Json, error_text, type_name
from treadle.workers.call import Raised, caught, origin, result_of, stops_caller

_TOOL_NAME_LIMIT = 64
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


def tool_names(names: Iterable[str]) -> dict[str, str]:
    """Return the tool names of qualified names: without collisions, deterministic for the same names."""
    tools: dict[str, str] = {}
    for name in dict.fromkeys(names):
        tool = _ILLEGAL.sub("_", name.replace(".", "__")) or "_"
        if len(tool) > _TOOL_NAME_LIMIT or tool in tools.values():
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            tool = f"{tool[: _TOOL_NAME_LIMIT - 9]}_{digest}"
        tools[name] = tool
    return tools


_SCHEMAS: dict[str, dict[str, Json]] = {
    "String": {"type": "string"},
    "Long": {"type": "integer"},
    "Int": {"type": "integer"},
    "Double": {"type": "number"},
    "Boolean": {"type": "boolean"},
    "Json": {},
}
_SHOWN = 5
"""Problems listed in one message."""


def object_schema(program: Program, members: Sequence[Param], described: Sequence[tuple[str, str]] = ()) -> dict[str, Json]:
    """Return the JSON schema of an object with these members, all required but the optional ones; without members, of any object.

    Schemas of the program are in `$defs`, so that they may be recursive.
    """
    if not members:
        return {"type": "object", "properties": {}}
    definitions: dict[str, Json] = {}
    schema = _members_schema(program, members, described, definitions)
    return schema | ({"$defs": definitions} if definitions else {})


def _members_schema(
    program: Program, members: Sequence[Param], described: Iterable[tuple[str, str]], definitions: dict[str, Json]
) -> dict[str, Json]:
    texts = dict(described)
    properties: dict[str, Json] = {}
    for member in members:
        schema = _schema(program, member.type, definitions)
        properties[member.name] = schema | {"description": texts[member.name]} if texts.get(member.name) else schema
    required = [member.name for member in members if not isinstance(member.type, OptionalType)]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _schema(program: Program, kind: Type, definitions: dict[str, Json]) -> dict[str, Json]:
    if isinstance(kind, ListType):
        return {"type": "array", "items": _schema(program, kind.element, definitions)}
    if isinstance(kind, OptionalType):
        return {"anyOf": [_schema(program, kind.element, definitions), {"type": "null"}]}
    if kind.name in _SCHEMAS:
        return dict(_SCHEMAS[kind.name])
    schema = program.find_schema(kind.name)
    if schema is None:
        return {}  # a reference to a step, or a type that only an outer flow defines
    key = kind.name.replace(".", "__")
    if key not in definitions:
        definitions[key] = {}  # it may contain itself
        definition = _members_schema(program, schema.fields, (schema.doc or DocComment()).params, definitions)
        if schema.doc is not None and schema.doc.description:
            definition["description"] = schema.doc.description
        definitions[key] = definition
    return {"$ref": f"#/$defs/{key}"}


def check_object(program: Program, members: Sequence[Param], value: Json, at: str = "") -> tuple[dict[str, Json], list[str]]:
    """Return the object converted to the members (3.0 is 3 for a Long), and its problems, as text for the model."""
    if not isinstance(value, dict):
        return {}, [f"{at or 'the answer'} must be an object, not {_kind(value)}"]
    if not members and not at:
        return value, []
    problems = [f"{_path(at, name)} is not declared" for name in value if name not in {member.name for member in members}]
    result: dict[str, Json] = {}
    for member in members:
        if member.name not in value:
            if not isinstance(member.type, OptionalType):
                problems.append(f"{_path(at, member.name)} is missing")
            continue
        result[member.name], member_problems = _check(program, member.type, value[member.name], _path(at, member.name))
        problems += member_problems
    return result, problems


def summary(problems: Sequence[str]) -> str:
    """Return the first problems in one line."""
    more = len(problems) - _SHOWN
    return "; ".join(problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _path(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _check(program: Program, kind: Type, value: Json, at: str) -> tuple[Json, list[str]]:
    if isinstance(kind, OptionalType):
        return (None, []) if value is None else _check(program, kind.element, value, at)
    if isinstance(kind, ListType):
        if not isinstance(value, list):
            return value, [f"{at} must be a list, not {_kind(value)}"]
        checked = [_check(program, kind.element, element, f"{at}[{number}]") for number, element in enumerate(value)]
        return [element for element, _ in checked], [problem for _, problems in checked for problem in problems]
    if kind.name in ("Long", "Int") and isinstance(value, float) and value.is_integer():
        value = int(value)
    if (fits := BUILT_IN.get(kind.name)) is not None:
        is_finite = not isinstance(value, float) or math.isfinite(value)
        return value, [] if fits(value) and is_finite else [f"{at} must be a {kind.name}, not {_kind(value)}"]
    schema = program.find_schema(kind.name)
    return (value, []) if schema is None else check_object(program, schema.fields, value, at)


_KINDS = {type(None): "null", bool: "a Boolean", str: "a String", list: "a list", dict: "an object"}


def _kind(value: Json) -> str:
    return _KINDS.get(type(value)) or f"the number {value}"


_RESULT_LIMIT = 100_000
"""Maximum number of characters of a tool's result that the model sees."""


@runtime_checkable
class Tools(Protocol):
    """A registry of handlers by name, as far as this package needs it."""

    def names(self) -> Iterable[str]:
        """Return all names with their own handler."""

    def find(self, name: str) -> Callable[..., Any] | None:
        """Return the handler: by exact name, else by short name, else the default."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools for one facet."""

    program: Program
    facet: Facet
    names: dict[str, str]
    """The tool names of the qualified names."""
    definitions: list[dict[str, Any]]
    registry: Tools | None
    echoed: frozenset[str] = frozenset()
    """Tools defined by the caller: without a handler they return their input."""

    @property
    def target(self) -> str:
        """The tool by which the model answers."""
        return self.names[self.facet.qualified_name]

    async def call(self, tool: str, given: dict[str, Json]) -> tuple[str, bool]:
        """Return the tool's result as text for the model, and whether it is an error; errors of the tool never propagate."""
        name = next((name for name, alias in self.names.items() if alias == tool), tool if tool in self.echoed else None)
        handler = None if name is None or self.registry is None else self.registry.find(name)
        if handler is None and tool in self.echoed:
            return _shown(given), False
        if handler is None:
            return f"There is no tool {tool}.", True
        try:
            result = await run_tool(handler, given)
            return _shown(result), False
        except BaseException as error:
            if stops_caller(error):
                raise
            error = origin(error)
            return f"{type_name(error)}: {error_text(error)}"[:_RESULT_LIMIT], True


def make_toolbox(program: Program, facet: Facet, registry: Tools | None, defined: Sequence[Mapping[str, Any]] = ()) -> Toolbox:
    """Return the facet's tool, with the schema of its returns, a tool per handler, with its facet's parameters, and the given
    tools."""
    target = facet.qualified_name
    others = [] if registry is None else [name for name in sorted(registry.names()) if name not in (target, facet.name)]
    names = tool_names([target, *others])
    definitions = [_target(program, facet, names[target])]
    definitions += [_other(program, name, names[name], registry) for name in others]
    reserved = {definition["name"] for definition in definitions}
    more = [dict(definition) for definition in defined if definition["name"] not in reserved]
    return Toolbox(program, facet, names, [*definitions, *more], registry, frozenset(definition["name"] for definition in more))


def _target(program: Program, facet: Facet, tool: str) -> dict[str, Any]:
    doc = facet.doc or DocComment()
    text = doc.description or f"Process {facet.name}. Parameters: {_signature(facet) or 'none'}."
    schema = object_schema(program, facet.returns, doc.returns)
    return {"name": tool, "description": f"{text}\nGive the final answer by calling this tool.", "input_schema": schema}


def _other(program: Program, name: str, tool: str, registry: Tools | None) -> dict[str, Any]:
    facet = _facet(program, name)
    if facet is not None:
        doc = facet.doc or DocComment()
        described = doc.description or f"Run {facet.name}. Parameters: {_signature(facet) or 'none'}."
        return {"name": tool, "description": described, "input_schema": object_schema(program, facet.params, doc.params)}
    handler = None if registry is None else registry.find(name)
    written = inspect.getdoc(handler) if inspect.isroutine(handler) else None
    return {"name": tool, "description": written or f"Run {name}.", "input_schema": {"type": "object", "properties": {}}}


def _facet(program: Program, name: str) -> Facet | None:
    exact = program.find_facet(name)
    if exact is not None:
        return exact
    same = [facet for facet in program.facets.values() if short_name(facet.qualified_name) == name]
    return same[0] if len(same) == 1 else None


def _signature(facet: Facet) -> str:
    return ", ".join(f"{param.name}: {type_words(param.type)}" for param in facet.params)


async def run_tool(handler: Callable[..., Any], given: dict[str, Json]) -> Any:
    """Call a handler or function with the input, in a thread unless it is async."""
    call = getattr(handler, "call", handler)
    if inspect.iscoroutinefunction(call):
        # a task of its own: a tool that cancels itself cancels nothing else
        return result_of(await asyncio.ensure_future(_caught(call(given))))
    result = result_of(await asyncio.to_thread(caught, call, given))
    return await result if inspect.isawaitable(result) else result


async def _caught(code: Awaitable[Any]) -> Any:
    """Await user code in a task of its own; for `result_of`, as tasks do not transport each exception, e.g. not `GeneratorExit`."""
    try:
        return await code
    except BaseException as error:
        if stops_caller(error):
            raise
        return Raised(error)


def _shown(result: Any) -> str:
    text = result if isinstance(result, str) else json.dumps({} if result is None else result, ensure_ascii=False, default=str)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _RESULT_LIMIT else f"{text[:_RESULT_LIMIT]} ... (cut off)"
