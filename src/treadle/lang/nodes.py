"""The nodes of AFL: one set for parsed sources and for compiled programs.

The parser makes nodes with places in the source (`span`, `parens`), and with names as written. The checks keep what they find
beside the nodes, by identity, and `emit` encodes both as a program. Its nodes have ids, all names resolved, and a `location` for
the reports of runs. Programs have neither `Ref`, `TooDeep` nor `Use`, sources neither `StepRef` nor `LoopRef`.

Spans and depths do not take part in equality, so two nodes are equal when they mean the same. Expressions, types and blocks
know their depth; the parser replaces those beyond `MAX_DEPTH` or `MAX_BLOCKS`, so that no later recursive pass can overflow the
stack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeVar, dataclass_transform

_T = TypeVar("_T")
MAX_DEPTH = 100
MAX_BLOCKS = 50


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def node(cls: type[_T]) -> type[_T]:
    """Make a dataclass that only type checkers treat as frozen: instances of a frozen one take three times as long to create."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


class Span(NamedTuple):
    """Lines and columns count from 1, in characters; the end is exclusive. `Source.offset` converts to offsets."""

    line: int
    column: int
    end_line: int
    end_column: int

    def to(self, other: Span) -> Span:
        """Return the span from the start of this one to the end of the other."""
        return tuple.__new__(Span, (self[0], self[1], other[2], other[3]))

    def until(self, other: Span) -> Span:
        """Return the span from the start of this one to the start of the other."""
        return Span(self.line, self.column, other.line, other.column)

    @property
    def end(self) -> Span:
        """The empty span at the end of this one."""
        return Span(self.end_line, self.end_column, self.end_line, self.end_column)

    def part(self, offset: int, length: int) -> Span:
        """Return a part of a span of one line."""
        column = self.column + offset
        return Span(self.line, column, self.line, column + length)


NOWHERE = Span(1, 1, 1, 1)


@node
class Location:
    """The place of a node of a program. `code_line` is the line of a script's first line of code."""

    line: int
    column: int
    end_line: int
    end_column: int
    source: str | None = None
    code_line: int | None = None


class Name(str):
    """An identifier or a dotted name, with its place. In a program that was loaded from JSON, names are plain strings.

    `text` is the same as a plain string, which is faster as a key and which JSON encoders take.
    """

    __slots__ = ("span", "text")
    text: str
    span: Span

    def __new__(cls, text: str, span: Span = NOWHERE) -> Name:
        name = str.__new__(cls, text)
        name.text = text
        name.span = span
        return name

    @property
    def short(self) -> str:
        return self.text.rpartition(".")[2]

    @property
    def parts(self) -> tuple[Name, ...]:
        """The identifiers of a dotted name, each with its own span."""
        return _parts(self.text.split("."), self.span, 0)


def _parts(path: Iterable[str], span: Span, offset: int) -> tuple[Name, ...]:
    """Return the identifiers of a path, which stands on one line without blanks."""
    names = []
    for text in path:
        names.append(Name(text, span.part(offset, len(text))))
        offset += len(text) + 1
    return tuple(names)


# --- expressions ---------------------------------------------------------------------------------------------------


@node
class Literal:
    value: str | int | float | bool | None
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


@node
class String(Literal):
    value: str


@node
class Int(Literal):
    value: int


@node
class Double(Literal):
    value: float


@node
class Boolean(Literal):
    value: bool


@node
class Null(Literal):
    value: None = None


@node
class InputRef:
    """`$.a.b`: attribute `a` of the nearest scope that has it, then `b` within the value."""

    path: tuple[str, ...]
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)

    @property
    def parts(self) -> tuple[Name, ...]:
        return _parts(self.path, self.span, 2)


@node
class Ref:
    """`a`, `a.b` as written: a step, or a loop variable."""

    path: tuple[str, ...]
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)

    @property
    def parts(self) -> tuple[Name, ...]:
        return _parts(self.path, self.span, 0)


@node
class StepRef:
    """`s.a.b`: attribute `a` of step `s`; a path of length one is the step itself (a step reference argument)."""

    path: tuple[str, ...]
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


@node
class LoopRef:
    """`x` or `x.a` inside `foreach x`: the current element of the nearest loop over `path[0]`."""

    path: tuple[str, ...]
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


@node
class Concat:
    operands: tuple[Expr, ...]
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


@node
class Binary:
    """Operators: `+ - * / % == != < > <= >= && || in`, `not in`, `contains`, `startsWith`, `endsWith`."""

    operator: str
    left: Expr
    right: Expr
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


@node
class Chain:
    """A long run of binary operators of one level, from the left: `operators[n]` stands before `operands[n + 1]`."""

    operands: tuple[Expr, ...]
    operators: tuple[str, ...]
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


@node
class Unary:
    """Operators: `-` and `!`."""

    operator: str
    operand: Expr
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


@node
class ArrayLiteral:
    elements: tuple[Expr, ...]
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


class Entry(NamedTuple):
    key: Name
    value: Expr

    @property
    def span(self) -> Span:
        return self.key.span.to(self.value.span)


@node
class MapLiteral:
    entries: tuple[Entry, ...]
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


@node
class Index:
    """`optional`: the index is the name of an optional field, which reads as null if the value does not have it."""

    target: Expr
    index: Expr
    optional: bool = False
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


@node
class Function:
    """`name(args)`, with arguments by position; the functions are in `builtins.py`."""

    name: Name
    args: tuple[Expr, ...]
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


@node
class TooDeep:
    """A placeholder for an expression that was nested too deeply."""

    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


Expr = (
    String | Int | Double | Boolean | Null | InputRef | Ref | StepRef | LoopRef | Concat | Binary | Chain | Unary | ArrayLiteral
    | MapLiteral | Index | Function | TooDeep
)  # fmt: skip

# --- types, parameters, calls --------------------------------------------------------------------------------------

BUILTIN_TYPES = ("Boolean", "Double", "Int", "Json", "Long", "String")


@node
class NamedType:
    """A built-in type, a schema, or (for a step reference) a facet. `too_deep`: a placeholder for a type nested too deeply."""

    name: str
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)
    too_deep: bool = field(compare=False, repr=False, default=False)


@node
class ListType:
    element: Type
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


@node
class OptionalType:
    """`T?`: null fits. In a program, a parameter, return or field of such a type has the default null."""

    element: Type
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)


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
    """A parameter, a return or a schema field. `reference`: the type is a facet, the value a step."""

    name: Name
    type: Type
    default: Expr | None = None
    reference: bool = False

    @property
    def span(self) -> Span:
        return self.name.span.to((self.default or self.type).span)

    @property
    def is_needed(self) -> bool:
        """Whether it has neither a default nor an optional type."""
        return self.default is None and not isinstance(self.type, OptionalType)


@node
class Arg:
    name: Name
    value: Expr

    @property
    def span(self) -> Span:
        return self.name.span.to(self.value.span)


@node
class Mixin:
    """`with target(args) as alias`; `parens` is the span from `(` to `)`.

    `resolved` is None for an external facet. In a yield, `into` is the signature alias that receives the values.
    """

    target: Name
    args: tuple[Arg, ...] = ()
    alias: Name | None = None
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    parens: Span = field(compare=False, repr=False, default=NOWHERE)
    id: str = ""
    resolved: str | None = None
    into: str | None = None
    location: Location | None = None

    @property
    def name(self) -> str:
        """The qualified name if the target is declared, else the name as written."""
        return self.resolved or self.target


WRITTEN_VALUE = "="
"""The target of the call in a step that computes a value, in a source; no name can be written like that."""
VALUE = "sys.value"
"""The same in a program: a record with the attribute `value`."""


@node
class Call:
    """`target(args) with ...`; `parens` is the span from `(` to `)`, `resolved` is None for an external facet."""

    target: Name
    args: tuple[Arg, ...] = ()
    mixins: tuple[Mixin, ...] = ()
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    parens: Span = field(compare=False, repr=False, default=NOWHERE)
    id: str = ""
    resolved: str | None = None
    location: Location | None = None

    @property
    def name(self) -> str:
        """The qualified name if the target is declared, else the name as written."""
        return self.resolved or self.target

    @property
    def is_value(self) -> bool:
        """Whether a step of a program computes a value; a declared facet of that name is called like any other."""
        return self.target == VALUE and self.resolved is None


# --- blocks --------------------------------------------------------------------------------------------------------


PYTHON = Name("python")
"""The language of scripts that name none."""


@node
class Script:
    """`code` is dedented; `code_line` is the line of the source where it begins."""

    code: str
    language: Name = PYTHON
    code_line: int = field(compare=False, repr=False, default=1)
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    id: str = ""
    location: Location | None = None


@node
class Directive:
    """One of `system`, `template`, `model`."""

    kind: Name
    text: str
    span: Span = field(compare=False, repr=False, default=NOWHERE)


@node
class Prompt:
    directives: tuple[Directive, ...] = ()
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    id: str = ""
    location: Location | None = None

    @property
    def system(self) -> str | None:
        return self._text("system")

    @property
    def template(self) -> str | None:
        return self._text("template")

    @property
    def model(self) -> str | None:
        return self._text("model")

    def _text(self, kind: str) -> str | None:
        return next((directive.text for directive in reversed(self.directives) if directive.kind == kind), None)


@node
class Foreach:
    """`foreach variable in iterable`, then `failFast`, or `collectErrors(failed)`, the return that collects the errors."""

    variable: Name
    iterable: Expr
    mode: Name | None = None
    failed: Name | None = None
    span: Span = field(compare=False, repr=False, default=NOWHERE)


@node
class Case:
    """`case condition => block`; no condition means the default, `case _`."""

    condition: Expr | None
    block: Block
    span: Span = field(compare=False, repr=False, default=NOWHERE)


@node
class Block:
    """One `andThen`, `catch` or case: a script, or cases, or statements; only statements can have a foreach.

    A program has the steps first, then `sys` statements, then yields, each in source order. `too_deep`: a placeholder for a block
    that was nested too deeply.
    """

    statements: tuple[Statement, ...] = ()
    foreach: Foreach | None = None
    script: Script | None = None
    cases: tuple[Case, ...] | None = None
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    depth: int = field(compare=False, repr=False, default=1)
    too_deep: bool = field(compare=False, repr=False, default=False)
    id: str = ""
    location: Location | None = None

    @property
    def when(self) -> tuple[Case, ...]:
        return self.cases or ()

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple([statement for statement in self.statements if isinstance(statement, Step)])

    @property
    def sys(self) -> tuple[Sys, ...]:
        return tuple([statement for statement in self.statements if isinstance(statement, Sys)])

    @property
    def yields(self) -> tuple[Yield, ...]:
        return tuple([statement for statement in self.statements if isinstance(statement, Yield)])


@node
class Step:
    """`name = call`; of a value, `name = expr`, the call has the expression as its only argument.

    `after` are the steps that it was written to follow. In a program, `depends` names the steps of the same block that must be
    complete first, in order of first mention, never itself; those of `after` are among them.
    """

    name: Name
    call: Call
    body: Block | None = None
    catch: Block | None = None
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    after: tuple[Name, ...] = ()
    id: str = ""
    depends: tuple[str, ...] = ()
    location: Location | None = None

    @property
    def value(self) -> Expr | None:
        """The expression of a value in a source; None for a call."""
        return self.call.args[0].value if self.call.target == WRITTEN_VALUE else None


@node
class Yield:
    """`into` is the signature alias that receives the values; None means the owner of the block."""

    call: Call
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    id: str = ""
    into: str | None = None
    depends: tuple[str, ...] = ()
    location: Location | None = None


class SysKind(StrEnum):
    LOG = "log"
    ASSERT = "assert"


@node
class Sys:
    """`sys.log(name = expr, ...)` has args, `sys.assert(expr)` a condition and, in a program, its text."""

    kind: SysKind
    args: tuple[Arg, ...] = ()
    condition: Expr | None = None
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    after: tuple[Name, ...] = ()
    id: str = ""
    text: str | None = None
    depends: tuple[str, ...] = ()
    location: Location | None = None


Statement = Step | Yield | Sys

# --- declarations --------------------------------------------------------------------------------------------------


class FacetKind(StrEnum):
    FACET = "facet"
    EVENT = "event facet"
    WORKFLOW = "workflow"


@node
class Facet:
    """A facet of any kind. `blocks` is its body, empty when it has none or a prompt; `parens` is the span of the parameters."""

    kind: FacetKind
    name: Name
    params: tuple[Param, ...] = ()
    returns: tuple[Param, ...] = ()
    mixins: tuple[Mixin, ...] = ()
    pre_script: Script | None = None
    blocks: tuple[Block, ...] = ()
    prompt: Prompt | None = None
    catch: Block | None = None
    doc: Doc | None = None
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    parens: Span = field(compare=False, repr=False, default=NOWHERE)
    id: str = ""
    namespace: str | None = None
    location: Location | None = None

    @property
    def qualified_name(self) -> str:
        return f"{self.namespace}.{self.name}" if self.namespace else str(self.name)

    @property
    def is_event(self) -> bool:
        return self.kind is FacetKind.EVENT

    @property
    def is_workflow(self) -> bool:
        return self.kind is FacetKind.WORKFLOW

    def all_blocks(self) -> Iterator[Block]:
        """Yield all blocks of the declaration, the outer ones first."""
        left: deque[Block | None] = deque([*self.blocks, self.catch])
        while left:
            block = left.popleft()
            if block is not None:
                yield block
                left.extend(case.block for case in block.when)
                for step in block.steps:
                    left += (step.body, step.catch)


@node
class Schema:
    name: Name
    fields: tuple[Param, ...] = ()
    doc: Doc | None = None
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    id: str = ""
    namespace: str | None = None
    location: Location | None = None

    @property
    def qualified_name(self) -> str:
        return f"{self.namespace}.{self.name}" if self.namespace else str(self.name)


@node
class Implicit:
    name: Name
    call: Call
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    id: str = ""
    namespace: str | None = None
    location: Location | None = None


@node
class Use:
    name: Name
    span: Span = field(compare=False, repr=False)


@node
class Namespace:
    """One opening of a namespace; the same namespace may be opened several times.

    With braces it has its items; in a source, a file-scoped one includes the rest of the file, which `File.openings` determines.
    In a program, `uses` are the imports.
    """

    name: Name
    items: tuple[Item, ...]
    file_scoped: bool = False
    doc: Doc | None = None
    span: Span = field(compare=False, repr=False, default=NOWHERE)
    id: str = ""
    uses: tuple[str, ...] = ()
    location: Location | None = None


Item = Use | Facet | Implicit | Schema
Declaration = Namespace | Facet | Implicit | Schema


@node
class File:
    """One source, in source order."""

    name: str = field(compare=False)
    items: tuple[Namespace | Item, ...]
