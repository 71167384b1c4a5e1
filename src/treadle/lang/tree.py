"""The syntax tree of AFL: the source as written, with spans, before name resolution.

Spans and depths do not take part in equality, so two trees are equal when they mean the same. Expressions, types and blocks
know their depth; the builder replaces nodes beyond `MAX_DEPTH` or `MAX_BLOCKS` with `TooDeep`, so that no later recursive
pass can overflow the stack.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from enum import StrEnum
from typing import NamedTuple

from treadle.lang.nodes import node

MAX_DEPTH = 100
MAX_BLOCKS = 50


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
class Name:
    """An identifier or a dotted name."""

    text: str
    span: Span = field(compare=False, repr=False)

    @property
    def short(self) -> str:
        return self.text.rpartition(".")[2]

    @property
    def parts(self) -> tuple[Name, ...]:
        """The identifiers of a dotted name, each with its own span."""
        return _parts(self.text.split("."), self.span, 0)


def _parts(path: Iterable[str], span: Span, offset: int) -> tuple[Name, ...]:
    """Return the identifiers of a path, which stands on one line without blanks."""
    found = []
    for text in path:
        found.append(Name(text, span.part(offset, len(text))))
        offset += len(text) + 1
    return tuple(found)


# --- expressions ---------------------------------------------------------------------------------------------------


class LiteralKind(StrEnum):
    STRING = "String"
    INT = "Int"
    DOUBLE = "Double"
    BOOLEAN = "Boolean"
    NULL = "Null"


@node
class Literal:
    kind: LiteralKind
    value: str | int | float | bool | None
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


@node
class InputRef:
    """`$.a.b`"""

    path: tuple[str, ...]
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)

    @property
    def parts(self) -> tuple[Name, ...]:
        return _parts(self.path, self.span, 2)


@node
class Ref:
    """`a`, `a.b`: a step, or a loop variable."""

    path: tuple[str, ...]
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)

    @property
    def parts(self) -> tuple[Name, ...]:
        return _parts(self.path, self.span, 0)


@node
class Concat:
    operands: tuple[Expr, ...]
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


@node
class Binary:
    operator: str
    left: Expr
    right: Expr
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


@node
class Chain:
    """A long run of binary operators of one level, from the left: `operators[n]` stands before `operands[n + 1]`."""

    operands: tuple[Expr, ...]
    operators: tuple[str, ...]
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


@node
class Unary:
    operator: str
    operand: Expr
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


@node
class ArrayLiteral:
    elements: tuple[Expr, ...]
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


@node
class Entry:
    key: Name
    value: Expr

    @property
    def span(self) -> Span:
        return self.key.span.to(self.value.span)


@node
class MapLiteral:
    entries: tuple[Entry, ...]
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


@node
class Index:
    target: Expr
    index: Expr
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


@node
class Function:
    """`name(args)`; the functions are in `builtins.py`."""

    name: Name
    args: tuple[Expr, ...]
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


@node
class TooDeep:
    """A placeholder for an expression, type or block that was nested too deeply."""

    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


Expr = Literal | InputRef | Ref | Concat | Binary | Chain | Unary | ArrayLiteral | MapLiteral | Index | Function | TooDeep

# --- types, parameters, calls --------------------------------------------------------------------------------------


@node
class NamedType:
    name: Name
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


@node
class ListType:
    element: Type
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


@node
class OptionalType:
    """`T?`: null fits."""

    element: Type
    span: Span = field(compare=False, repr=False)
    depth: int = field(compare=False, repr=False, default=1)


Type = NamedType | ListType | OptionalType | TooDeep
WRAPPERS = (ListType, OptionalType)


def named_type(type_: Type) -> NamedType | TooDeep:
    """Return the name in a type, without lists and marks around it."""
    while isinstance(type_, WRAPPERS):
        type_ = type_.element
    return type_


@node
class Param:
    """A parameter, a return or a schema field."""

    name: Name
    type: Type
    default: Expr | None = None

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
    """`with target(args) as alias`; `parens` is the span from `(` to `)`."""

    target: Name
    args: tuple[Arg, ...]
    alias: Name | None
    span: Span = field(compare=False, repr=False)
    parens: Span = field(compare=False, repr=False, default=NOWHERE)


@node
class Call:
    """`target(args) with ...`; `parens` is the span from `(` to `)`."""

    target: Name
    args: tuple[Arg, ...]
    mixins: tuple[Mixin, ...]
    span: Span = field(compare=False, repr=False)
    parens: Span = field(compare=False, repr=False, default=NOWHERE)


# --- blocks --------------------------------------------------------------------------------------------------------


@node
class Script:
    """`code` is dedented; `code_line` is the line of the source where it begins."""

    language: Name | None
    code: str
    code_line: int = field(compare=False, repr=False)
    span: Span = field(compare=False, repr=False)


@node
class Directive:
    """One of `system`, `template`, `model`."""

    kind: Name
    text: str
    span: Span = field(compare=False, repr=False, default=NOWHERE)


@node
class Prompt:
    directives: tuple[Directive, ...]
    span: Span = field(compare=False, repr=False)


@node
class Foreach:
    """`foreach variable in iterable`, then `failFast`, or `collectErrors(failed)`."""

    variable: Name
    iterable: InputRef | Ref
    span: Span = field(compare=False, repr=False)
    mode: Name | None = None
    failed: Name | None = None


@node
class Case:
    """`case condition => block`; the condition `_` is the default."""

    condition: Expr
    block: Block | TooDeep
    span: Span = field(compare=False, repr=False)

    @property
    def is_default(self) -> bool:
        return isinstance(self.condition, Ref) and self.condition.path == ("_",)


@node
class Block:
    """A script, or cases, or statements; only statements can have a foreach."""

    statements: tuple[Statement, ...] = ()
    foreach: Foreach | None = None
    script: Script | None = None
    cases: tuple[Case, ...] | None = None
    span: Span = field(compare=False, repr=False, kw_only=True)
    depth: int = field(compare=False, repr=False, default=1)


VALUE = "="
"""The target of the call in a step that computes a value; no name can be written like that."""


@node
class Step:
    """`name = call`; of a value, `name = expr`, the call has the target `VALUE` and the expression as its only argument."""

    name: Name
    call: Call
    body: Block | TooDeep | None
    catch: Block | TooDeep | None
    span: Span = field(compare=False, repr=False)
    after: tuple[Ref, ...] = ()

    @property
    def value(self) -> Expr | None:
        """The expression of a value; None for a call."""
        return self.call.args[0].value if self.call.target.text == VALUE else None


@node
class Yield:
    call: Call
    span: Span = field(compare=False, repr=False)


@node
class SysLog:
    args: tuple[Arg, ...]
    span: Span = field(compare=False, repr=False)
    after: tuple[Ref, ...] = ()


@node
class SysAssert:
    condition: Expr
    span: Span = field(compare=False, repr=False)
    after: tuple[Ref, ...] = ()


Statement = Step | Yield | SysLog | SysAssert

# --- declarations --------------------------------------------------------------------------------------------------


class FacetKind(StrEnum):
    FACET = "facet"
    EVENT = "event facet"
    WORKFLOW = "workflow"


@node
class Facet:
    kind: FacetKind
    name: Name
    params: tuple[Param, ...]
    returns: tuple[Param, ...]
    mixins: tuple[Mixin, ...]
    pre_script: Script | None
    blocks: tuple[Block | TooDeep, ...]
    prompt: Prompt | None
    catch: Block | TooDeep | None
    doc: str | None
    span: Span = field(compare=False, repr=False)
    parens: Span = field(compare=False, repr=False, default=NOWHERE)  # of the parameters


@node
class Schema:
    name: Name
    fields: tuple[Param, ...]
    doc: str | None
    span: Span = field(compare=False, repr=False)


@node
class Implicit:
    name: Name
    call: Call
    span: Span = field(compare=False, repr=False)


@node
class Use:
    name: Name
    span: Span = field(compare=False, repr=False)


@node
class Namespace:
    """With braces it has its items; a file-scoped one includes the rest of the file, which `File.openings` determines."""

    name: Name
    items: tuple[Item, ...]
    file_scoped: bool
    doc: str | None
    span: Span = field(compare=False, repr=False)


Item = Use | Facet | Implicit | Schema


@node
class File:
    """One source, in source order."""

    name: str = field(compare=False)
    items: tuple[Namespace | Item, ...]
