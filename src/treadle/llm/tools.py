"""The tools offered to a model: the facet's own, by which it answers, and those of a registry, which are called."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from treadle.lang.nodes import Doc, Facet
from treadle.lang.program import Program
from treadle.lang.signatures import type_words
from treadle.llm.schemas import object_schema
from treadle.llm.tool_names import ToolNames
from treadle.model.names import short_name
from treadle.model.values import Json, error_text, type_name
from treadle.workers.call import caught, origin, result_of, stops_caller

_LONGEST_RESULT = 100_000
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
    names: ToolNames
    definitions: list[dict[str, Any]]
    registry: Tools | None
    echoed: frozenset[str] = frozenset()
    """Tools defined by the caller: without a handler they return their input."""

    @property
    def target(self) -> str:
        """The tool by which the model answers."""
        return self.names.tool(self.facet.qualified_name)

    async def call(self, tool: str, given: dict[str, Json]) -> tuple[str, bool]:
        """Return the tool's result as text for the model, and whether it is an error; errors of the tool never propagate."""
        name = self.names.name(tool) or (tool if tool in self.echoed else None)
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
            return f"{type_name(error)}: {error_text(error)}"[:_LONGEST_RESULT], True


def make_toolbox(program: Program, facet: Facet, registry: Tools | None, defined: Sequence[Mapping[str, Any]] = ()) -> Toolbox:
    """Return the facet's tool, with the schema of its returns, a tool per handler, with its facet's parameters, and the given
    tools."""
    target = facet.qualified_name
    others = [] if registry is None else [name for name in sorted(registry.names()) if name not in (target, facet.name)]
    names = ToolNames([target, *others])
    definitions = [_target(program, facet, names.tool(target))]
    definitions += [_other(program, name, names.tool(name), registry) for name in others]
    taken = {each["name"] for each in definitions}
    more = [dict(each) for each in defined if each["name"] not in taken]
    return Toolbox(program, facet, names, [*definitions, *more], registry, frozenset(each["name"] for each in more))


def _target(program: Program, facet: Facet, tool: str) -> dict[str, Any]:
    doc = facet.doc or Doc()
    text = doc.description or f"Process {facet.name}. Parameters: {_signature(facet) or 'none'}."
    schema = object_schema(program, facet.returns, doc.returns)
    return {"name": tool, "description": f"{text}\nGive the final answer by calling this tool.", "input_schema": schema}


def _other(program: Program, name: str, tool: str, registry: Tools | None) -> dict[str, Any]:
    facet = _facet(program, name)
    if facet is not None:
        doc = facet.doc or Doc()
        described = doc.description or f"Run {facet.name}. Parameters: {_signature(facet) or 'none'}."
        return {"name": tool, "description": described, "input_schema": object_schema(program, facet.params, doc.params)}
    handler = None if registry is None else registry.find(name)
    written = inspect.getdoc(handler) if inspect.isroutine(handler) else None
    return {"name": tool, "description": written or f"Run {name}.", "input_schema": {"type": "object", "properties": {}}}


def _facet(program: Program, name: str) -> Facet | None:
    exact = program.find_facet(name)
    if exact is not None:
        return exact
    same = [each for each in program.facets.values() if short_name(each.qualified_name) == name]
    return same[0] if len(same) == 1 else None


def _signature(facet: Facet) -> str:
    return ", ".join(f"{param.name}: {type_words(param.type)}" for param in facet.params)


async def run_tool(handler: Callable[..., Any], given: dict[str, Json]) -> Any:
    """Call a handler or function with the input, in a thread unless it is async."""
    call = getattr(handler, "call", handler)
    if inspect.iscoroutinefunction(call):
        return await call(given)
    result = result_of(await asyncio.to_thread(caught, call, given))
    return await result if inspect.isawaitable(result) else result


def _shown(result: Any) -> str:
    text = result if isinstance(result, str) else json.dumps({} if result is None else result, ensure_ascii=False, default=str)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _LONGEST_RESULT else f"{text[:_LONGEST_RESULT]} ... (cut off)"
