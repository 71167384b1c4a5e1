"""Walks the trees of a file and notes the declaration that each name means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from treadle.lang import program, tree
from treadle.lang.mixins import BUILTIN_MIXINS
from treadle.lang.names import Declared, Opening
from treadle.lang.program import BUILTIN_TYPES
from treadle.lang.tree import Name, Span
from treadle.lsp.document import Document
from treadle.lsp.index import Index, Kind, Occurrence, Symbol

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PARAMS = re.compile(r"""\bparams(?:\[|\.get\()\s*["'](\w+)["']""")
_RESULT = re.compile(r"""\bresult\[\s*["'](\w+)["']\s*\]""")


@dataclass(frozen=True, slots=True)
class _Scope:
    """The names usable in a block: `$.` names and steps with loop variables, inner ones over outer ones."""

    opening: Opening
    inputs: dict[str, Symbol]
    names: dict[str, Symbol]
    targets: dict[str, Symbol]  # aliases that a yield may name

    def inside(self, inputs: dict[str, Symbol], names: dict[str, Symbol]) -> _Scope:
        return _Scope(self.opening, self.inputs | inputs, self.names | names, self.targets)


def walk(index: Index, openings: list[Opening], document: Document) -> list[Occurrence]:
    """Return the names of a file's sections whose meaning is known."""
    walker = _Walker(index, document)
    for opening in openings:
        walker.opening(opening)
    return walker.found


class _Walker:
    def __init__(self, index: Index, document: Document) -> None:
        self.index = index
        self.document = document
        self.found: list[Occurrence] = []

    def note(self, span: Span, symbol: Symbol | None, *, is_declaration: bool = False) -> None:
        if symbol is not None:
            self.found.append(Occurrence(*self.document.offsets(span), symbol, is_declaration))

    # --- declarations

    def opening(self, opening: Opening) -> None:
        if opening.node is not None:
            self.namespace(opening.node.name, is_declaration=True)
        for item in opening.items:
            match item:
                case tree.Use(name):
                    self.namespace(name)
                case tree.Facet():
                    self.facet(item, Declared(item, opening))
                case tree.Schema():
                    declared = Declared(item, opening)
                    self.note(item.name.span, self.index.declaration(declared), is_declaration=True)
                    self.params(item.fields, Kind.FIELD, declared)
                case tree.Implicit(name, call):
                    symbol = Symbol(Kind.IMPLICIT, name.text, opening.source.name, name.span, None, item)
                    self.note(name.span, symbol, is_declaration=True)
                    self.call(call, _Scope(opening, {}, {}, {}))

    def namespace(self, name: Name, *, is_declaration: bool = False) -> None:
        self.note(name.span, self.index.namespace(name.text), is_declaration=is_declaration)

    def facet(self, facet: tree.Facet, declared: Declared) -> None:
        index, opening = self.index, declared.opening
        self.note(facet.name.span, index.declaration(declared), is_declaration=True)
        inputs = index.inputs(declared)
        aliases = {name: symbol for name, symbol in inputs.items() if symbol.kind is Kind.ALIAS}
        scope = _Scope(opening, inputs, {}, aliases)
        self.params(facet.params, Kind.PARAMETER, declared, scope)
        self.params(facet.returns, Kind.RETURN, declared, scope)
        for mixin in facet.mixins:
            self.mixin(mixin, scope)
            if mixin.alias is not None:
                self.note(mixin.alias.span, inputs.get(mixin.alias.text), is_declaration=True)
        if facet.pre_script is not None:
            self.matches(_PARAMS, facet.pre_script.span, inputs)
            self.matches(_RESULT, facet.pre_script.span, index.returns(declared) | inputs)
        if facet.prompt is not None:
            self.matches(_PLACEHOLDER, facet.prompt.span, inputs)
        for block in facet.blocks:
            self.block(block, scope)
            if isinstance(block, tree.Block) and block.script is not None:
                self.matches(_RESULT, block.script.span, index.returns(declared))
        self.block(facet.catch, scope)

    def params(self, params: tuple[tree.Param, ...], kind: Kind, declared: Declared, scope: _Scope | None = None) -> None:
        for param in params:
            self.note(param.name.span, self.index.param(param, kind, declared), is_declaration=True)
            self.type(param.type, declared.opening)
            if param.default is not None and scope is not None:
                self.expr(param.default, scope)

    def type(self, type_: Any, opening: Opening) -> None:
        if isinstance(type_, tree.NamedType):
            if type_.name.text in BUILTIN_TYPES:
                self.note(type_.span, Symbol(Kind.TYPE, type_.name.text, type=program.NamedType(type_.name.text)))
            else:
                self.qualified(type_.name, self.index.symbols.resolve_type(type_.name, opening).found)
        else:
            for part in _parts(type_):
                self.type(part, opening)

    def qualified(self, name: Name, declared: Declared | None) -> None:
        """Note a facet or schema under its name, which may be qualified."""
        if declared is None:
            if name.text in BUILTIN_MIXINS:
                self.note(name.span, Symbol(Kind.MIXIN, name.text))
            return
        span, start = name.span, len(name.text) - len(name.short)
        if start:
            self.note(_part(span, 0, start - 1), self.index.namespace(name.text[: start - 1]))
        self.note(_part(span, start, len(name.short)), self.index.declaration(declared))

    # --- blocks

    def block(self, block: tree.Block | tree.TooDeep | None, scope: _Scope) -> None:
        if not isinstance(block, tree.Block):
            return
        if block.foreach is not None:
            foreach, here = block.foreach, scope.opening.source.name
            over = self.path(foreach.iterable, scope)
            element = over.type.element if over is not None and isinstance(over.type, program.ListType) else None
            variable = Symbol(Kind.VARIABLE, foreach.variable.text, here, foreach.variable.span, type=element)
            self.note(foreach.variable.span, variable, is_declaration=True)
            scope = scope.inside({variable.name: variable}, {variable.name: variable})
        if block.script is not None:
            self.matches(_PARAMS, block.script.span, scope.inputs)
        for case in block.cases or ():
            self.expr(case.condition, scope)
            self.block(case.block, scope)
        names: dict[str, Symbol] = {}
        for statement in block.statements:
            if isinstance(statement, tree.Step):
                names.setdefault(statement.name.text, self.step(statement, scope.opening))
        inner = scope.inside({}, names)
        for statement in block.statements:
            self.statement(statement, inner, names)

    def step(self, step: tree.Step, opening: Opening) -> Symbol:
        call = getattr(step, "call", None)
        declared = None if call is None else self.index.symbols.resolve_callee(call.target, opening).found
        return Symbol(Kind.STEP, step.name.text, opening.source.name, step.name.span, declared, step)

    def statement(self, statement: tree.Statement, scope: _Scope, names: dict[str, Symbol]) -> None:
        match statement:
            case tree.Step(name):
                symbol = names[name.text]
                self.note(name.span, symbol, is_declaration=True)
                self.call(statement.call, scope)
                body = scope.inside(self.index.members(symbol), {})
                self.block(statement.body, body)
                self.block(statement.catch, body)
            case tree.Yield(call):
                self.call(call, scope, is_yield=True)
            case _:
                for part in _parts(statement):
                    self.expr(part, scope)

    def call(self, call: tree.Call, scope: _Scope, *, is_yield: bool = False) -> None:
        alias = scope.targets.get(call.target.text) if is_yield else None
        if alias is not None:
            self.note(call.target.span, alias)
        declared = alias.declared if alias is not None else self.index.symbols.resolve_callee(call.target, scope.opening).found
        if alias is None:
            self.qualified(call.target, declared)
        self.args(call.args, declared, scope, is_yield=is_yield)
        for mixin in call.mixins:
            self.mixin(mixin, scope, is_yield=is_yield)

    def mixin(self, mixin: tree.Mixin, scope: _Scope, *, is_yield: bool = False) -> None:
        declared = self.index.symbols.resolve_facet(mixin.target, scope.opening).found
        self.qualified(mixin.target, declared)
        self.args(mixin.args, declared, scope, is_yield=is_yield)

    def args(self, args: tuple[tree.Arg, ...], declared: Declared | None, scope: _Scope, *, is_yield: bool) -> None:
        known: dict[str, Symbol] = {}
        if declared is not None:
            known = self.index.returns(declared) if is_yield else self.index.inputs(declared)
        for arg in args:
            self.note(arg.name.span, known.get(arg.name.text))
            self.expr(arg.value, scope)

    # --- expressions

    def expr(self, expr: Any, scope: _Scope) -> None:
        if isinstance(expr, tree.InputRef | tree.Ref):
            self.path(expr, scope)
        elif isinstance(expr, tree.Call):
            self.call(expr, scope)
        else:
            for part in _parts(expr):
                self.expr(part, scope)

    def path(self, ref: tree.InputRef | tree.Ref, scope: _Scope) -> Symbol | None:
        """Note each name of a path; return the last, if its meaning is known."""
        known = scope.inputs if isinstance(ref, tree.InputRef) else scope.names
        offset = 2 if isinstance(ref, tree.InputRef) else 0
        symbol: Symbol | None = None
        for name in ref.path:
            symbol = known.get(name)
            self.note(_part(ref.span, offset, len(name)), symbol)
            if symbol is None:
                return None
            offset += len(name) + 1
            known = self.index.members(symbol)
        return symbol

    # --- names within texts

    def matches(self, pattern: re.Pattern[str], span: Span, known: dict[str, Symbol]) -> None:
        """Note the names that a prompt or a script mentions."""
        start, end = self.document.offsets(span)
        for match in pattern.finditer(self.document.text, start, end):
            if match[1] in known:
                self.found.append(Occurrence(match.start(1), match.end(1), known[match[1]], False))


def _part(span: Span, offset: int, length: int) -> Span:
    column = span.column + offset
    return Span(span.line, column, span.line, column + length)


def _parts(node: Any) -> Iterator[Any]:
    """Yield the nodes directly below a node, of whatever sort."""
    if is_dataclass(node) and not isinstance(node, type | Name | Span):
        for each in fields(node):
            value = getattr(node, each.name)
            yield from value if isinstance(value, tuple) else (value,)
