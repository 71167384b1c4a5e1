"""A compiled program with the indexes that an evaluator needs: lookups by qualified name and by statement id cost O(1).

`Program.load(json)` and `Program.dump()` are lossless inverses of each other. All names are resolved: `Call.name` is the qualified
name of the callee, `Step.depends` the steps of the same block that must be complete first (found in every expression of the
step, its body and its catch), `LoopRef` a loop variable that was written without `$.`.

Also values of parameters as texts, for forms, and whether a JSON value fits a type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from treadle.lang.nodes import (
    ArrayLiteral,
    Block,
    Call,
    Declaration,
    Expr,
    Facet,
    Implicit,
    ListType,
    Literal,
    Location,
    MapLiteral,
    Mixin,
    Namespace,
    OptionalType,
    PromptBlock,
    Schema,
    Script,
    Step,
    Sys,
    Type,
    Unary,
    Yield,
    named_type,
)
from treadle.lang.types import describe
from treadle.model.values import BlobRef, Json

ProgramNode = Namespace | Facet | Implicit | Schema | Block | Step | Sys | Yield | Call | Mixin | Script | PromptBlock


@dataclass(slots=True, unsafe_hash=True)
class Program:
    """A whole compiled program."""

    id: str
    declarations: tuple[Declaration, ...] = ()
    location: Location | None = None
    strict: bool = False
    """Whether it was compiled strictly: a handler's result that does not fit the declared returns fails its step."""
    facets: Mapping[str, Facet] = field(default_factory=dict, compare=False, repr=False)
    schemas: Mapping[str, Schema] = field(default_factory=dict, compare=False, repr=False)
    nodes: Mapping[str, ProgramNode] = field(default_factory=dict, compare=False, repr=False)
    _implicits: Mapping[str, tuple[Implicit, ...]] = field(default_factory=dict, compare=False, repr=False)
    _short: Mapping[str, tuple[Facet, ...]] = field(default_factory=dict, compare=False, repr=False)
    _namespaces: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(cls, program: Mapping[str, Any]) -> Program:
        """Decode the output of `compile_sources`; raise `InvalidProgram` for anything else."""
        from treadle.lang.codec import decode_program

        return decode_program(program)

    def dump(self) -> dict[str, Any]:
        """Return the JSON that `load` was given."""
        from treadle.lang.emit import encode_program

        return encode_program(self)

    @property
    def workflows(self) -> tuple[Facet, ...]:
        """All workflows, in program order."""
        return tuple(facet for facet in self.facets.values() if facet.is_workflow)

    @property
    def event_facets(self) -> tuple[Facet, ...]:
        """All event facets, in program order."""
        return tuple(facet for facet in self.facets.values() if facet.is_event)

    def find_facet(self, name: str) -> Facet | None:
        """Return the facet of any kind with this qualified name, declared or built in."""
        if name in self.facets or not name.startswith("sys."):
            return self.facets.get(name)
        from treadle.lang.declare import built_in_facets

        return built_in_facets().get(name)

    def find_schema(self, name: str) -> Schema | None:
        """Return the schema with this qualified name."""
        return self.schemas.get(name)

    def find_workflow(self, name: str) -> Facet | None:
        """Return the workflow with this qualified name, or with this short name if only one workflow has it."""
        exact = self.facets.get(name)
        if exact is not None and exact.is_workflow:
            return exact
        same = [facet for facet in self._short.get(name, ()) if facet.is_workflow]
        return same[0] if len(same) == 1 else None

    def find_node(self, node_id: str) -> ProgramNode | None:
        """Return the declaration, block, statement, call, mixin or script with this id."""
        return self.nodes.get(node_id)

    def namespace_of(self, node_id: str) -> str | None:
        """Return the namespace of the node with this id."""
        return self._namespaces.get(node_id)

    def list_implicits(self, facet: str, namespace: str | None) -> tuple[Implicit, ...]:
        """Return the implicits of the facet with this qualified name; those of the namespace first, then source order."""
        every = self._implicits.get(facet, ())
        if len(every) < 2:
            return every
        return tuple(sorted(every, key=lambda implicit: implicit.namespace != namespace))


# --- values of parameters, for forms -------------------------------------------------------------------------


def literal_of(expr: Expr) -> tuple[bool, Any]:
    """Return whether the expression is a constant, and its value."""
    match expr:
        case Literal(value):
            return True, value
        case Unary("-", Literal(int() | float() as value)):
            return True, -value
        case ArrayLiteral(elements):
            parts = [literal_of(element) for element in elements]
            all_literal = all(literal for literal, _ in parts)
            return all_literal, [value for _, value in parts] if all_literal else None
        case MapLiteral(entries):
            named = [(entry.name, *literal_of(entry.value)) for entry in entries]
            all_literal = all(literal for _, literal, _ in named)
            return all_literal, {name: value for name, _, value in named} if all_literal else None
        case _:
            return False, None


def schemas_of(program: Program, facet: Facet) -> list[str]:
    """Return the names of all schemas used by its parameters, in order of first use."""
    seen: dict[str, None] = {}
    pending = [param.type for param in facet.params]
    while pending:
        wanted = named_type(pending.pop(0))
        schema = program.find_schema(wanted.name)
        if schema is not None and wanted.name not in seen:
            seen[wanted.name] = None
            pending += [field.type for field in schema.fields]
    return list(seen)


# --- JSON values against types ---------------------------------------------------------------------------------------

_SHOWN = 5
"""Limit on the mismatches reported for one list."""


def misfits(program: Program, place: str, wanted: Type, value: Json) -> list[str]:
    """The mismatches, each with its place in the value. A value that is stored elsewhere fits, except in place of a list."""
    if isinstance(value, BlobRef):
        is_other = isinstance(wanted, ListType) and value.is_list is False
        return [f"{place} must be a list"] if is_other else []
    if isinstance(wanted, OptionalType):
        return [] if value is None else misfits(program, place, wanted.element, value)
    if isinstance(wanted, ListType):
        if not isinstance(value, list):
            return [f"{place} must be a list, not {_kind(value)}"]
        messages = (
            message for index, item in enumerate(value) for message in misfits(program, f"{place}[{index}]", wanted.element, item)
        )
        return list(islice(messages, _SHOWN))
    schema = program.find_schema(wanted.name)
    if schema is not None:
        if not isinstance(value, dict):
            return [f"{place} must be a {schema.name} (an object), not {_kind(value)}"]
        problems = [
            f"{place}.{field.name} is missing" for field in schema.fields if field.default is None and field.name not in value
        ]
        for field in schema.fields:
            if field.name in value:
                problems += misfits(program, f"{place}.{field.name}", field.type, value[field.name])
        return problems
    fits = BUILT_IN.get(wanted.name)
    if fits is None or fits(value):
        return []
    return [f"{place} must be {describe(wanted)}, not {_kind(value)}"]


_INTEGERS = 2.0**63
"""Whole numbers are smaller."""


def with_integers(program: Program, wanted: Type, value: Json) -> Json:
    """Return the value with integral floats as integers where whole numbers are wanted."""
    if isinstance(wanted, OptionalType):
        return with_integers(program, wanted.element, value)
    if isinstance(value, list) and isinstance(wanted, ListType):
        return [with_integers(program, wanted.element, item) for item in value]
    if isinstance(wanted, ListType):
        return value
    if isinstance(value, float) and wanted.name in ("Long", "Int") and value.is_integer() and abs(value) < _INTEGERS:
        return int(value)
    schema = program.find_schema(wanted.name)
    if schema is None or not isinstance(value, dict):
        return value
    fields = {field.name: field.type for field in schema.fields}
    return {name: with_integers(program, fields[name], part) if name in fields else part for name, part in value.items()}


def _number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


BUILT_IN: dict[str, Callable[[Json], bool]] = {
    "String": lambda value: isinstance(value, str),
    "Long": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "Int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "Double": _number,
    "Boolean": lambda value: isinstance(value, bool),
}
"""Whether a JSON value is one of a built-in type."""


def _kind(value: Json) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
