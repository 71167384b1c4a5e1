"""The compiled form of AFL as frozen records, the input of the evaluator.

`Program.load(json)` and `Program.dump()` (`decode.py`, `encode.py`) are lossless inverses of each other.
All names are resolved: `Call.name` is the qualified name of the callee, `Step.depends` the steps of the same block that
must be complete first (found in every expression of the step, its body and its catch), `LoopRef` a loop variable that was
written without `$.`. Lookups by qualified name and by statement id cost O(1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from treadle.lang.nodes import node

# --- expressions ---------------------------------------------------------------------------------------------------


@node
class String:
    value: str


@node
class Int:
    value: int


@node
class Double:
    value: float


@node
class Boolean:
    value: bool


@node
class Null:
    pass


@node
class InputRef:
    """`$.a.b`: attribute `a` of the nearest scope that has it, then `b` within the value."""

    path: tuple[str, ...]


VALUE = "sys.value"
"""The callee of a step that computes a value, `name = expr`: a record with the attribute `value`."""


@node
class StepRef:
    """`s.a.b`: attribute `a` of step `s`; a path of length one is the step itself (a step reference argument)."""

    path: tuple[str, ...]


@node
class LoopRef:
    """`x` or `x.a` inside `foreach x`: the current element of the nearest loop over `path[0]`."""

    path: tuple[str, ...]


@node
class Concat:
    operands: tuple[Expr, ...]


@node
class Binary:
    """Operators: `+ - * / % == != < > <= >= && || in`, `not in`, `contains`, `startsWith`, `endsWith`."""

    operator: str
    left: Expr
    right: Expr


@node
class Chain:
    """A long run of binary operators of one level, from the left: `operators[n]` stands before `operands[n + 1]`."""

    operands: tuple[Expr, ...]
    operators: tuple[str, ...]


@node
class Unary:
    """Operators: `-` and `!`."""

    operator: str
    operand: Expr


@node
class ArrayLiteral:
    elements: tuple[Expr, ...]


@node
class MapLiteral:
    entries: tuple[tuple[str, Expr], ...]


@node
class Index:
    """`optional`: the index is the name of an optional field, which reads as null if the value does not have it."""

    target: Expr
    index: Expr
    optional: bool = False


@node
class Function:
    """`count`, `sum`, `first`, `join` or `flatten`, with arguments by position."""

    name: str
    args: tuple[Expr, ...]


Expr = (
    String | Int | Double | Boolean | Null | InputRef | StepRef | LoopRef | Concat | Binary | Chain | Unary | ArrayLiteral
    | MapLiteral | Index | Function
)  # fmt: skip

# --- parts ---------------------------------------------------------------------------------------------------------


@node
class Location:
    """The place of a node; lines and columns count from 1. `code_line` is the line of a script's first line of code."""

    line: int
    column: int
    end_line: int
    end_column: int
    source: str | None = None
    code_line: int | None = None


BUILTIN_TYPES = ("Boolean", "Double", "Int", "Json", "Long", "String")


@node
class NamedType:
    """A built-in type, or the qualified name of a schema or (for a step reference) of a facet."""

    name: str


@node
class ListType:
    element: Type


@node
class OptionalType:
    """`T?`: null fits. A parameter, return or field of such a type has the default null."""

    element: Type


Type = NamedType | ListType | OptionalType


def named_type(type_: Type) -> NamedType:
    """Return the name in a type, without lists and marks around it."""
    while not isinstance(type_, NamedType):
        type_ = type_.element
    return type_


@node
class Doc:
    description: str = ""
    params: tuple[tuple[str, str], ...] = ()
    returns: tuple[tuple[str, str], ...] = ()


@node
class Param:
    """A parameter, return or schema field. `reference`: the type is a facet, the value a step."""

    name: str
    type: Type
    default: Expr | None = None
    reference: bool = False


@node
class Arg:
    name: str
    value: Expr


@node
class Mixin:
    """`with Target(args) as alias`. In a yield, `into` is the signature alias that receives the values."""

    id: str
    target: str
    resolved: str | None = None
    args: tuple[Arg, ...] = ()
    alias: str | None = None
    into: str | None = None
    location: Location | None = None

    @property
    def name(self) -> str:
        """The qualified name if the target is declared, else the name as written."""
        return self.resolved or self.target


@node
class Call:
    """`Target(args) with ...`; `resolved` is None for an external facet."""

    id: str
    target: str
    resolved: str | None = None
    args: tuple[Arg, ...] = ()
    mixins: tuple[Mixin, ...] = ()
    location: Location | None = None

    @property
    def name(self) -> str:
        """The qualified name if the target is declared, else the name as written."""
        return self.resolved or self.target

    @property
    def is_value(self) -> bool:
        """Whether the step computes a value; a declared facet of that name is called like any other."""
        return self.target == VALUE and self.resolved is None


@node
class Script:
    id: str
    code: str
    language: str = "python"
    location: Location | None = None


@node
class Prompt:
    id: str
    template: str | None = None
    system: str | None = None
    model: str | None = None
    location: Location | None = None


@node
class Foreach:
    """`mode` is `failFast` or `collectErrors`; `failed` the return that collects the errors."""

    variable: str
    iterable: Expr
    mode: str | None = None
    failed: str | None = None


@node
class Case:
    """One case of `when`; no condition means the default."""

    condition: Expr | None
    block: Block


@node
class Step:
    """`name = Target(...)`. `depends` names steps of the same block, in order of first mention, never itself.

    `after` are the steps that it was written to follow; those of the same block are in `depends`, too.
    """

    id: str
    name: str
    call: Call
    body: Block | None = None
    catch: Block | None = None
    depends: tuple[str, ...] = ()
    location: Location | None = None
    after: tuple[str, ...] = ()


@node
class Yield:
    """`into` is the signature alias that receives the values; None means the owner of the block."""

    id: str
    call: Call
    into: str | None = None
    depends: tuple[str, ...] = ()
    location: Location | None = None


class SysKind(StrEnum):
    LOG = "log"
    ASSERT = "assert"


@node
class Sys:
    """`sys.log(name = expr, ...)` has args, `sys.assert(expr)` a condition and its text."""

    id: str
    kind: SysKind
    args: tuple[Arg, ...] = ()
    condition: Expr | None = None
    text: str | None = None
    depends: tuple[str, ...] = ()
    location: Location | None = None
    after: tuple[str, ...] = ()


@node
class Block:
    """One `andThen`, `catch` or case. It holds a script, or cases, or statements; only statements can have a `foreach`."""

    id: str
    foreach: Foreach | None = None
    script: Script | None = None
    when: tuple[Case, ...] = ()
    steps: tuple[Step, ...] = ()
    sys: tuple[Sys, ...] = ()
    yields: tuple[Yield, ...] = ()
    location: Location | None = None

    @property
    def statements(self) -> Iterator[Step | Sys | Yield]:
        """Yield steps, then `sys` statements, then yields, each in source order."""
        yield from self.steps
        yield from self.sys
        yield from self.yields


# --- declarations --------------------------------------------------------------------------------------------------


class FacetKind(StrEnum):
    FACET = "FacetDecl"
    EVENT = "EventFacetDecl"
    WORKFLOW = "WorkflowDecl"


@node
class Facet:
    """A facet of any kind. `blocks` is its body, empty when it has none or a prompt."""

    id: str
    kind: FacetKind
    name: str
    namespace: str | None = None
    params: tuple[Param, ...] = ()
    returns: tuple[Param, ...] = ()
    mixins: tuple[Mixin, ...] = ()
    pre_script: Script | None = None
    blocks: tuple[Block, ...] = ()
    prompt: Prompt | None = None
    catch: Block | None = None
    doc: Doc | None = None
    location: Location | None = None

    @property
    def qualified_name(self) -> str:
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @property
    def is_event(self) -> bool:
        return self.kind is FacetKind.EVENT

    @property
    def is_workflow(self) -> bool:
        return self.kind is FacetKind.WORKFLOW


@node
class Schema:
    id: str
    name: str
    namespace: str | None = None
    fields: tuple[Param, ...] = ()
    doc: Doc | None = None
    location: Location | None = None

    @property
    def qualified_name(self) -> str:
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


@node
class Implicit:
    id: str
    name: str
    call: Call
    namespace: str | None = None
    location: Location | None = None


@node
class Namespace:
    """One opening of a namespace; the same namespace may be opened several times."""

    id: str
    name: str
    uses: tuple[str, ...] = ()
    declarations: tuple[Facet | Implicit | Schema, ...] = ()
    doc: Doc | None = None
    location: Location | None = None


Declaration = Namespace | Facet | Implicit | Schema
Statement = Step | Sys | Yield
Node = Namespace | Facet | Implicit | Schema | Block | Step | Sys | Yield | Call | Mixin | Script | Prompt


@node
class Program:
    """A whole compiled program, with the indexes that an evaluator needs."""

    id: str
    declarations: tuple[Declaration, ...] = ()
    location: Location | None = None
    facets: Mapping[str, Facet] = field(default_factory=dict, compare=False, repr=False)
    schemas: Mapping[str, Schema] = field(default_factory=dict, compare=False, repr=False)
    nodes: Mapping[str, Node] = field(default_factory=dict, compare=False, repr=False)
    _implicits: Mapping[str, tuple[Implicit, ...]] = field(default_factory=dict, compare=False, repr=False)
    _short: Mapping[str, tuple[Facet, ...]] = field(default_factory=dict, compare=False, repr=False)
    _namespaces: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(cls, program: Mapping[str, Any]) -> Program:
        """Decode the output of `compile_sources`; raise `InvalidProgram` for anything else."""
        from treadle.lang.decode import decode_program

        return decode_program(program)

    def dump(self) -> dict[str, Any]:
        """Return the JSON that `load` was given."""
        from treadle.lang.encode import encode_program

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
        return self.facets.get(name) or (_built_in(name) if name.startswith("sys.") else None)

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

    def find_node(self, node_id: str) -> Node | None:
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


def _built_in(name: str) -> Facet | None:
    from treadle.lang.declare import built_in_facets

    return built_in_facets().get(name)
