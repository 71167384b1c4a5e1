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
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple

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
    def start(self) -> Span:
        """The empty span at the start of this one."""
        return Span(self.line, self.column, self.line, self.column)

    @property
    def end(self) -> Span:
        """The empty span at the end of this one."""
        return Span(self.end_line, self.end_column, self.end_line, self.end_column)

    def part(self, offset: int, length: int) -> Span:
        """Return a part of a span of one line."""
        column = self.column + offset
        return Span(self.line, column, self.line, column + length)


NOWHERE = Span(1, 1, 1, 1)


class Node(msgspec.Struct, eq=False, gc=False):
    """A node is equal to one of the same kind with equal parts, wherever both stand.

    Nodes are never changed, and have no cycles. As a dataclass, each kind would take 0.3 ms of every start.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and type(self) is type(other) and self._parts() == other._parts()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((type(self), *self._parts()))

    def _parts(self) -> list[Any]:
        return [getattr(self, name) for name in self.__struct_fields__ if name not in _PLACES]


_PLACES = frozenset(["span", "parens", "depth", "too_deep", "code_line"])


class Location(msgspec.Struct, gc=False):
    """The place of a node of a program. `code_line` is the line of a script's first line of code."""

    line: int
    column: int
    end_line: int
    end_column: int
    source: str | None = None
    code_line: int | None = None


def walk(root: object, skip: Callable[[Node], bool] = lambda _: False) -> Iterator[Node]:
    """Yield all nodes at or below a node, or a tuple of nodes; of those to skip, nothing."""
    pending = [root]
    while pending:
        part = pending.pop()
        if isinstance(part, Node) and not skip(part):
            yield part
            pending += astuple(part)
        elif type(part) is tuple:
            pending += part


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
        return _split(self.text.split("."), self.span, 0)


def _split(path: Iterable[str], span: Span, offset: int) -> tuple[Name, ...]:
    """Return the identifiers of a path, which stands on one line without blanks."""
    names = []
    for text in path:
        names.append(Name(text, span.part(offset, len(text))))
        offset += len(text) + 1
    return tuple(names)


# --- expressions ---------------------------------------------------------------------------------------------------


class Placed(Node, kw_only=True):
    """A node with its place in the source."""

    span: Span = NOWHERE


class Expression(Placed, kw_only=True):
    """An expression or a type."""

    depth: int = 1


class Literal(Expression):
    """A text, a number, a Boolean or null. Values of different types are different, as `1` and `true`."""

    value: str | int | float | bool | None

    def _parts(self) -> list[Any]:
        return [type(self.value), self.value]


class Reference(Expression):
    path: tuple[str, ...]

    @property
    def parts(self) -> tuple[Name, ...]:
        return _split(self.path, self.span, 0)


class InputRef(Reference):
    """`$.a.b`: attribute `a` of the nearest scope that has it, then `b` within the value."""

    @property
    def parts(self) -> tuple[Name, ...]:
        return _split(self.path, self.span, 2)


class Ref(Reference):
    """`a`, `a.b` as written: a step, or a loop variable."""


class StepRef(Reference):
    """`s.a.b`: attribute `a` of step `s`; a path of length one is the step itself (a step reference argument)."""


class LoopRef(Reference):
    """`x` or `x.a` inside `foreach x`: the current element of the nearest loop over `path[0]`."""


class Concat(Expression):
    operands: tuple[Expr, ...]


class Binary(Expression):
    """Operators: `+ - * / % == != < > <= >= && || in`, `not in`, `contains`, `startsWith`, `endsWith`."""

    operator: str
    left: Expr
    right: Expr


class Chain(Expression):
    """A long run of binary operators of one level, from the left: `operators[n]` stands before `operands[n + 1]`."""

    operands: tuple[Expr, ...]
    operators: tuple[str, ...]


class Unary(Expression):
    """Operators: `-` and `!`."""

    operator: str
    operand: Expr


class ArrayLiteral(Expression):
    elements: tuple[Expr, ...]


class MapLiteral(Expression):
    entries: tuple[Arg, ...]


class Index(Expression):
    """`optional`: the index is the name of an optional field, which reads as null if the value does not have it."""

    target: Expr
    index: Expr
    optional: bool = False


class FunctionCall(Expression):
    """`name(args)`, with arguments by position; the functions are in `builtins.py`."""

    name: Name
    args: tuple[Expr, ...]


class TooDeep(Expression):
    """A placeholder for an expression that was nested too deeply."""


Expr = (
    Literal | InputRef | Ref | StepRef | LoopRef | Concat | Binary | Chain | Unary | ArrayLiteral
    | MapLiteral | Index | FunctionCall | TooDeep
)  # fmt: skip

# --- types, parameters, calls --------------------------------------------------------------------------------------

BUILTIN_TYPES = ("Boolean", "Double", "Int", "Json", "Long", "String")


class NamedType(Expression):
    """A built-in type, a schema, or (for a step reference) a facet. `too_deep`: a placeholder for a type nested too deeply."""

    name: str
    too_deep: bool = False


class ListType(Expression):
    element: Type


class OptionalType(Expression):
    """`T?`: null fits. In a program, a parameter, return or field of such a type has the default null."""

    element: Type


Type = NamedType | ListType | OptionalType


def named_type(type_: Type) -> NamedType:
    """Return the name in a type, without lists and marks around it."""
    while not isinstance(type_, NamedType):
        type_ = type_.element
    return type_


class DocComment(Node):
    description: str = ""
    params: tuple[tuple[str, str], ...] = ()
    returns: tuple[tuple[str, str], ...] = ()


class Part(Placed, kw_only=True):
    """A part of a program that runs and reports refer to: its id, and in a loaded program its place."""

    id: str = ""
    location: Location | None = None


class Param(Node):
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


class Arg(Node):
    """An argument of a call, or an entry of a map."""

    name: Name
    value: Expr

    @property
    def span(self) -> Span:
        return self.name.span.to(self.value.span)


class Mixin(Part):
    """`with target(args) as alias`; `parens` is the span from `(` to `)`.

    `resolved` is None for an external facet. In a yield, `into` is the signature alias that receives the values.
    """

    target: Name
    args: tuple[Arg, ...] = ()
    alias: Name | None = None
    parens: Span = NOWHERE
    resolved: str | None = None
    into: str | None = None

    @property
    def name(self) -> str:
        """The qualified name if the target is declared, else the name as written."""
        return self.resolved or self.target


WRITTEN_VALUE = "="
"""The target of the call in a step that computes a value, in a source; no name can be written like that."""
VALUE = "sys.value"
"""The same in a program: a record with the attribute `value`."""


class Call(Part):
    """`target(args) with ...`; `parens` is the span from `(` to `)`, `resolved` is None for an external facet."""

    target: Name
    args: tuple[Arg, ...] = ()
    mixins: tuple[Mixin, ...] = ()
    parens: Span = NOWHERE
    resolved: str | None = None

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


class Script(Part):
    """`code` is dedented; `code_line` is the line of the source where it begins."""

    code: str
    language: Name = PYTHON
    code_line: int = 1


class Directive(Placed):
    """`kind` is one of `DIRECTIVES`."""

    kind: Name
    text: str


DIRECTIVES = ("system", "template", "model")


class PromptBlock(Part):
    directives: tuple[Directive, ...] = ()

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


class Foreach(Placed):
    """`foreach variable in iterable`, then `failFast`, or `collectErrors(failed)`, the return that collects the errors."""

    variable: Name
    iterable: Expr
    mode: Name | None = None
    failed: Name | None = None


class Case(Placed):
    """`case condition => block`; no condition means the default, `case _`."""

    condition: Expr | None
    block: Block


class Block(Part):
    """One `andThen`, `catch` or case: a script, or cases, or statements; only statements can have a foreach.

    A program has the steps first, then `sys` statements, then yields, each in source order. `too_deep`: a placeholder for a block
    that was nested too deeply.
    """

    statements: tuple[Statement, ...] = ()
    foreach: Foreach | None = None
    script: Script | None = None
    cases: tuple[Case, ...] | None = None
    depth: int = 1
    too_deep: bool = False

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


class Step(Part):
    """`name = call`; of a value, `name = expr`, the call has the expression as its only argument.

    `after` are the steps that it was written to follow. In a program, `depends` names the steps of the same block that must be
    complete first, in order of first mention, never itself; those of `after` are among them.
    """

    name: Name
    call: Call
    body: Block | None = None
    catch: Block | None = None
    after: tuple[Name, ...] = ()
    depends: tuple[str, ...] = ()

    @property
    def value(self) -> Expr | None:
        """The expression of a value in a source; None for a call."""
        return self.call.args[0].value if self.call.target == WRITTEN_VALUE else None


class Yield(Part):
    """`into` is the signature alias that receives the values; None means the owner of the block."""

    call: Call
    into: str | None = None
    depends: tuple[str, ...] = ()


class SysKind(StrEnum):
    LOG = "log"
    ASSERT = "assert"


class Sys(Part):
    """`sys.log(name = expr, ...)` has args, `sys.assert(expr)` a condition and, in a program, its text."""

    kind: SysKind
    args: tuple[Arg, ...] = ()
    condition: Expr | None = None
    after: tuple[Name, ...] = ()
    text: str | None = None
    depends: tuple[str, ...] = ()


Statement = Step | Yield | Sys

# --- declarations --------------------------------------------------------------------------------------------------


class FacetKind(StrEnum):
    FACET = "facet"
    EVENT = "event facet"
    WORKFLOW = "workflow"


class Member(Part, kw_only=True):
    """A declaration, in a namespace or at the top level."""

    name: Name
    namespace: str | None = None

    @property
    def qualified_name(self) -> str:
        return f"{self.namespace}.{self.name}" if self.namespace else str(self.name)


class Facet(Member):
    """A facet of any kind. `blocks` is its body, empty when it has none or a prompt; `parens` is the span of the parameters."""

    name: Name
    kind: FacetKind
    params: tuple[Param, ...] = ()
    returns: tuple[Param, ...] = ()
    mixins: tuple[Mixin, ...] = ()
    pre_script: Script | None = None
    blocks: tuple[Block, ...] = ()
    prompt: PromptBlock | None = None
    catch: Block | None = None
    doc: DocComment | None = None
    parens: Span = NOWHERE

    @property
    def is_event(self) -> bool:
        return self.kind is FacetKind.EVENT

    @property
    def is_workflow(self) -> bool:
        return self.kind is FacetKind.WORKFLOW

    def all_blocks(self) -> Iterator[Block]:
        """Yield all blocks of the declaration, the outer ones first."""
        pending: deque[Block | None] = deque([*self.blocks, self.catch])
        while pending:
            block = pending.popleft()
            if block is not None:
                yield block
                pending.extend(case.block for case in block.when)
                for step in block.steps:
                    pending += (step.body, step.catch)


class Schema(Member):
    name: Name
    fields: tuple[Param, ...] = ()
    doc: DocComment | None = None

    @property
    def params(self) -> tuple[Param, ...]:
        """The fields: what a call gives."""
        return self.fields


class Implicit(Member):
    name: Name
    call: Call


class Use(Placed):
    name: Name


class Namespace(Part):
    """One opening of a namespace; the same namespace may be opened several times.

    With braces it has its items; in a source, a file-scoped one includes the rest of the file, which `File.openings` determines.
    In a program, `uses` are the imports.
    """

    name: Name
    items: tuple[Item, ...]
    file_scoped: bool = False
    doc: DocComment | None = None
    uses: tuple[str, ...] = ()


Item = Use | Facet | Implicit | Schema
Declaration = Namespace | Facet | Implicit | Schema


class File(Node):
    """One source, in source order."""

    name: str
    items: tuple[Namespace | Item, ...]

    def _parts(self) -> list[Any]:
        return [self.items]  # a copy under another name is equal
