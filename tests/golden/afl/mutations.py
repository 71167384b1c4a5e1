"""Mutants of right programs: one small mistake each, of a kind that people and models make.

Excluded by construction are changes of a value to another one of the right type, which are different right programs: another
literal of the same type, a value for Json, dropping what a default, an implicit, another block or a handler also supplies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec.structs import astuple

from treadle.lang import nodes
from treadle.lang.analysis import list_uses
from treadle.lang.check import check
from treadle.lang.declare import declare
from treadle.lang.diagnostics import Edit, Reporter, Source
from treadle.lang.names import Declared
from treadle.lang.nodes import ListType, NamedType, Span
from treadle.lang.parse import parse
from treadle.lang.types import UNKNOWN, Type, is_anything, misfit

_OTHER_TYPES = {"Long": ("String", "[Long]"), "Int": ("String",), "String": ("Long", "[String]"), "Double": ("String",)}
_SCRIPT_KEYS = re.compile(r"""(?:params|result)\[["'](\w+)["']\]""")
_PLACEHOLDERS = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Mutant:
    kind: str
    edits: tuple[Edit, ...]
    text: str


@dataclass(frozen=True)
class _Block:
    """A block with the declaration it belongs to; `step` is the step whose body or catch it is part of."""

    node: nodes.Block
    facet: nodes.Facet
    step: nodes.Step | None


class Mutator:
    """Makes all mutants of one program."""

    def __init__(self, text: str) -> None:
        self.source = Source("x.afl", text)
        reporter = Reporter()
        file = parse(self.source, reporter).file
        assert file is not None
        self.file = file
        self.context = check(declare([(self.source, file)], reporter), reporter)
        self.tables, self.symbols = self.context.tables, self.context.symbols
        self.nodes = list(_walk(file))
        self.facets = [node for node in self.nodes if isinstance(node, nodes.Facet)]
        self.declared: dict[int, Declared] = {id(each.node): each for each in self.symbols.taken.values()}
        self.blocks = [block for facet in self.facets for block in _blocks(facet)]

    def mutants(self) -> Iterator[Mutant]:
        """Yield the mutants; their texts differ from each other and from the program."""
        seen = {self.source.text}
        for make in (
            self.dropped_arguments, self.renamed, self.changed_types, self.changed_literals, self.swapped_arguments,
            self.other_references, self.dropped_yields, self.removed_steps, self.unwrapped_lists, self.other_targets,
            self.dollars, self.dropped_defaults, self.dropped_mixins, self.dropped_cases, self.scripts,
        ):  # fmt: skip
            for edits in make():
                text = self.source.apply(edits)
                if text not in seen:
                    seen.add(text)
                    yield Mutant(make.__name__, edits, text)

    def of(self, kind: type[Any]) -> list[Any]:
        return [node for node in self.nodes if isinstance(node, kind)]

    # --- arguments

    def calls(self) -> Iterator[tuple[nodes.Call | nodes.Mixin, Declared]]:
        """Calls of steps and implicits, and mixins, with their callees; no yields."""
        yields = {id(node.call) for node in self.of(nodes.Yield)}
        for node in self.nodes:
            if isinstance(node, nodes.Call | nodes.Mixin) and id(node) not in yields:
                callee = self.callee(node)
                if callee is not None:
                    yield node, callee

    def dropped_arguments(self) -> Iterator[tuple[Edit, ...]]:
        implied = self.context.implied
        for call, callee in self.calls():
            if isinstance(call, nodes.Mixin):
                continue
            if isinstance(callee.node, nodes.Schema):
                required = [field.name.text for field in callee.node.fields if field.is_needed]
            else:
                required = self.tables.required(callee)
            mixed = {arg.name.text for mixin in call.mixins for arg in mixin.args} | implied.get(callee.qualified_name, set())
            for arg in call.args:
                if arg.name.text in required and arg.name.text not in mixed:
                    yield _without(call.args, arg)
        for block, statement in self.yields():
            for arg in statement.call.args:
                if self.needed(block, arg.name.text):
                    yield _without(statement.call.args, arg)

    def yields(self) -> Iterator[tuple[_Block, nodes.Yield]]:
        for block in self.blocks:
            for statement in block.node.statements:
                if isinstance(statement, nodes.Yield):
                    yield block, statement

    def needed(self, block: _Block, name: str) -> bool:
        """Whether nothing else gives this return a value: no default, no handler, no other block."""
        facet = block.facet
        if block.step is not None:
            callee = self.callee(block.step.call)
            if callee is None or not isinstance(callee.node, nodes.Facet):
                return False
            facet = callee.node
            is_catch = block.step.catch is not None
            if facet.kind is nodes.FacetKind.EVENT and not is_catch:
                return False
        elif facet.kind is nodes.FacetKind.EVENT:
            return False
        if not any(each.name.text == name and each.is_needed for each in facet.returns):
            return False
        return block.step is not None or sum(name in _yielded(each) for each in facet.blocks) < 2

    def swapped_arguments(self) -> Iterator[tuple[Edit, ...]]:
        for call, callee in self.calls():
            params = self.tables.params(callee)
            for n, one in enumerate(call.args):
                for other in call.args[n + 1 :]:
                    if one.name.text in params and other.name.text in params:
                        first, second = params[one.name.text].type, params[other.name.text].type
                        if self.wrong(one.value, second) or self.wrong(other.value, first):
                            yield Edit(one.name.span, other.name.text), Edit(other.name.span, one.name.text)

    def type_of(self, expr: nodes.Expr) -> Type:
        return self.context.bindings.types.get(id(expr), UNKNOWN)

    def callee(self, node: nodes.Call | nodes.Mixin) -> Declared | None:
        return self.symbols.taken.get(self.context.bindings.callees.get(id(node), ""))

    def wrong(self, expr: nodes.Expr, wanted: Type) -> bool:
        return misfit(self.type_of(expr), wanted, self.tables.fields) is not None

    # --- names

    def renamed(self) -> Iterator[tuple[Edit, ...]]:
        """Misspell every name that has a meaning in the program, at one place."""
        for use in list_uses(self.context)["x.afl"]:
            yield (Edit(use.span.end, "x"),)
        for node in self.nodes:
            if isinstance(node, nodes.Call | nodes.Mixin) and node.target.text != nodes.WRITTEN_VALUE:
                yield (Edit(node.target.span.end, "x"),)
            elif isinstance(node, nodes.FunctionCall):
                yield (Edit(node.name.span.end, "x"),)
            elif isinstance(node, nodes.Ref | nodes.InputRef):
                yield (Edit(node.parts[0].span.end, "x"),)
            elif isinstance(node, nodes.Index) and isinstance(node.index, nodes.Literal) and isinstance(node.index.value, str):
                yield (Edit(node.index.span, f'"{node.index.value}x"'),)

    def scripts(self) -> Iterator[tuple[Edit, ...]]:
        """Misspell the keys of scripts and the placeholders of prompts."""
        for node in self.nodes:
            if isinstance(node, nodes.Script | nodes.Directive):
                pattern = _SCRIPT_KEYS if isinstance(node, nodes.Script) else _PLACEHOLDERS
                start = self.source.offset(node.span.line, node.span.column)
                for match in pattern.finditer(self.source.part(node.span)):
                    yield (Edit(self.span(start + match.start(1), start + match.end(1)), f"{match[1]}x"),)

    def span(self, start: int, end: int) -> Span:
        places = []
        for offset in (start, end):
            before = self.source.text[:offset]
            places += [before.count("\n") + 1, len(before) - before.rfind("\n")]
        return Span(*places)

    def other_references(self) -> Iterator[tuple[Edit, ...]]:
        """Replace a reference with another one of the same block that has the wrong type."""
        for block in self.blocks:
            values = [node for statement in block.node.statements for node in _arg_values(statement)]
            refs = [value for value in values if isinstance(value, nodes.Ref | nodes.InputRef) and len(value.path) > 1]
            refs += [value for value in values if isinstance(value, nodes.InputRef) and len(value.path) == 1]
            for arg, wanted in self.typed_args():
                if arg.value in refs and isinstance(arg.value, nodes.Ref | nodes.InputRef):
                    for other in refs:
                        if other is not arg.value and self.wrong(other, wanted):
                            yield (Edit(arg.value.span, self.source.part(other.span)),)

    def typed_args(self) -> Iterator[tuple[nodes.Arg, Type]]:
        """Arguments for parameters, returns and fields whose type is not Json."""
        for call, callee in self.calls():
            for arg in call.args:
                found = self.tables.params(callee).get(arg.name.text)
                if found is not None and not is_anything(found.type):
                    yield arg, found.type
        for _, statement in self.yields():
            callee = self.callee(statement.call)
            for arg in statement.call.args:
                found = None if callee is None else self.tables.returns(callee).get(arg.name.text)
                if found is not None and not is_anything(found.type):
                    yield arg, found.type

    # --- types and values

    def changed_types(self) -> Iterator[tuple[Edit, ...]]:
        for param in self.of(nodes.Param):
            if isinstance(param.type, nodes.ListType):
                yield (Edit(param.type.span, self.source.part(param.type.element.span)),)
                yield (Edit(param.type.span, "String"),)
            elif isinstance(param.type, nodes.OptionalType):
                yield (Edit(param.type.span, self.source.part(param.type.element.span)),)
                yield (Edit(param.type.span, "[Boolean]?"),)
            elif isinstance(param.type, nodes.NamedType):
                for other in _OTHER_TYPES.get(param.type.name.text, ("Long",)):
                    yield (Edit(param.type.span, other),)

    def changed_literals(self) -> Iterator[tuple[Edit, ...]]:
        for literal in self.typed_literals():
            if isinstance(literal.value, str):
                yield (Edit(literal.span, "7"),)
            elif literal.value is not None:
                yield (Edit(literal.span, '"seven"'),)
                if isinstance(literal.value, bool):
                    yield (Edit(literal.span, "7"),)

    def typed_literals(self) -> Iterator[nodes.Literal]:
        """Literals where only one type is right; not operands of `++`, nor values for Json."""
        places: list[tuple[nodes.Expr, Type]] = [(arg.value, wanted) for arg, wanted in self.typed_args()]
        for facet in self.facets:
            declared = self.declared[id(facet)]
            for params, known in ((facet.params, self.tables.params(declared)), (facet.returns, self.tables.returns(declared))):
                places += [(param.default, known[param.name.text].type) for param in params if param.default is not None]
        while places:
            expr, wanted = places.pop()
            if is_anything(wanted):
                continue
            if isinstance(expr, nodes.Literal):
                yield expr
            elif isinstance(expr, nodes.ArrayLiteral) and isinstance(wanted, ListType):
                places += [(element, wanted.element) for element in expr.elements]
            elif isinstance(expr, nodes.MapLiteral) and isinstance(wanted, NamedType):
                known = self.tables.fields(wanted.name) or {}
                places += [(entry.value, known[entry.name.text]) for entry in expr.entries if entry.name.text in known]
        for node in self.of(nodes.Binary):
            if node.operator in ("in", "not in", "contains"):
                continue
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if isinstance(one, nodes.Literal) and not is_anything(self.type_of(other)):
                    yield one

    def unwrapped_lists(self) -> Iterator[tuple[Edit, ...]]:
        """Yield an element in place of a list of one, pass a list of one in place of a value."""
        for arg, wanted in self.typed_args():
            value = arg.value
            if isinstance(value, nodes.ArrayLiteral) and len(value.elements) == 1 and isinstance(wanted, ListType):
                element = value.elements[0]
                if not is_anything(self.type_of(element)):
                    yield (Edit(value.span, self.source.part(element.span)),)
            elif not isinstance(wanted, ListType) and wanted.__class__ is NamedType:
                yield (Edit(value.span, f"[{self.source.part(value.span)}]"),)

    def dropped_defaults(self) -> Iterator[tuple[Edit, ...]]:
        for param in self.of(nodes.Param):
            if param.default is not None and not isinstance(param.type, nodes.OptionalType):
                yield (Edit(Span(*param.type.span.end[:2], *param.default.span.end[:2]), ""),)

    # --- statements

    def dropped_yields(self) -> Iterator[tuple[Edit, ...]]:
        for block, statement in self.yields():
            if any(self.needed(block, arg.name.text) for arg in statement.call.args):
                yield (Edit(statement.span, ""),)

    def removed_steps(self) -> Iterator[tuple[Edit, ...]]:
        for step in self.of(nodes.Step):
            yield (Edit(step.span, ""),)

    def other_targets(self) -> Iterator[tuple[Edit, ...]]:
        for block, statement in self.yields():
            for name in {block.facet.name.text, *(each.name.text for each in self.facets)}:
                yield (Edit(statement.call.target.span, name),)

    def dollars(self) -> Iterator[tuple[Edit, ...]]:
        loops = {node.variable.text for node in self.of(nodes.Foreach)}
        for node in self.nodes:
            if isinstance(node, nodes.InputRef) and node.path[0] not in loops:
                yield (Edit(node.span.part(0, 2), ""),)
            elif isinstance(node, nodes.Ref) and node.path[0] not in loops:
                yield (Edit(node.span.part(0, 0), "$."),)

    def dropped_mixins(self) -> Iterator[tuple[Edit, ...]]:
        for mixin in self.of(nodes.Mixin):
            if mixin.target.text != "Timeout":
                yield (Edit(mixin.span, ""),)
                if mixin.alias is not None:
                    yield (Edit(Span(*mixin.parens.end[:2], *mixin.alias.span.end[:2]), ""),)

    def dropped_cases(self) -> Iterator[tuple[Edit, ...]]:
        for case in self.of(nodes.Case):
            if case.condition is None:
                yield (Edit(case.span, ""),)


def _without(args: tuple[nodes.Arg, ...], arg: nodes.Arg) -> tuple[Edit, ...]:
    """The edits that remove an argument and one comma."""
    index = args.index(arg)
    if index + 1 < len(args):
        return (Edit(Span(*arg.span[:2], *args[index + 1].span[:2]), ""),)
    start = args[index - 1].span.end if index else arg.span
    return (Edit(Span(*start[:2], *arg.span.end[:2]), ""),)


def _walk(node: Any) -> Iterator[Any]:
    if isinstance(node, tuple) and not isinstance(node, Span):
        for each in node:
            yield from _walk(each)
    elif isinstance(node, nodes.Node):
        yield node
        for each in astuple(node):
            yield from _walk(each)


def _blocks(facet: nodes.Facet) -> Iterator[_Block]:
    left: list[tuple[Any, nodes.Step | None]] = [(block, None) for block in (*facet.blocks, facet.catch)]
    while left:
        block, step = left.pop()
        if not isinstance(block, nodes.Block):
            continue
        yield _Block(block, facet, step)
        left += [(case.block, step) for case in block.cases or ()]
        for statement in block.statements:
            if isinstance(statement, nodes.Step):
                left += [(statement.body, statement), (statement.catch, statement)]


def _yielded(block: nodes.Block | nodes.TooDeep) -> set[str]:
    names: set[str] = set()
    left: list[Any] = [block]
    while left:
        each = left.pop()
        left += [case.block for case in each.cases or ()]
        if each.script is not None:
            names |= set(_SCRIPT_KEYS.findall(each.script.code))
        for statement in each.statements:
            if isinstance(statement, nodes.Yield):
                names |= {arg.name.text for arg in statement.call.args}
    return names


def _arg_values(statement: Any) -> Iterator[nodes.Expr]:
    if isinstance(statement, nodes.Step | nodes.Yield):
        yield from (arg.value for arg in statement.call.args)
