"""Completion: the names and words that fit at the cursor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lsprotocol import types

from treadle.interfaces.lsp import description
from treadle.interfaces.lsp.context import Bracket, CursorContext
from treadle.interfaces.lsp.index import ProgramIndex, built_in
from treadle.lang import nodes
from treadle.lang.builtins import BUILTIN_MIXINS, FUNCTIONS
from treadle.lang.names import Declared, Definition, Kind, Opening
from treadle.lang.statements import MODES
from treadle.lang.tokens import OPERATORS, TYPES
from treadle.lang.types import UNKNOWN, ListType, Type, required

Item = types.CompletionItem
_Kinds = types.CompletionItemKind
_ITEMS = {
    Kind.NAMESPACE: _Kinds.Module,
    Kind.FACET: _Kinds.Class,
    Kind.EVENT: _Kinds.Event,
    Kind.WORKFLOW: _Kinds.Function,
    Kind.SCHEMA: _Kinds.Struct,
    Kind.PARAMETER: _Kinds.Property,
    Kind.RETURN: _Kinds.Property,
    Kind.FIELD: _Kinds.Field,
    Kind.STEP: _Kinds.Variable,
    Kind.VALUE: _Kinds.Variable,
    Kind.LOOP: _Kinds.Variable,
    Kind.ALIAS: _Kinds.Variable,
    Kind.ARGUMENT: _Kinds.Property,
    Kind.SCRIPT: _Kinds.Value,
    Kind.ERROR: _Kinds.Value,
    Kind.TYPE: _Kinds.Class,
    Kind.MIXIN: _Kinds.Class,
    Kind.FUNCTION: _Kinds.Function,
}
_DECLARE = ("facet", "event facet", "workflow", "implicit")
_TAIL = ("andThen", "with", "catch", "script", "prompt")
_VALUES = ("true", "false", "null")
_WORDS = ("in", "not in", "contains", "startsWith", "endsWith")


def complete(index: ProgramIndex, path: str, context: CursorContext) -> list[Item]:
    """Return the completions at the cursor; none within comments, strings and scripts."""
    return [] if context.inert else list(_Completer(index, path, context).items())


class _Completer:
    def __init__(self, index: ProgramIndex, path: str, context: CursorContext) -> None:
        self.index, self.context = index, context
        self.opening = index.opening(path, context.namespace)

    def items(self) -> Iterator[Item]:
        context, inner = self.context, self.context.inner
        before = context.before.text if context.before is not None else ""
        if context.path:
            yield from self.members()
        elif before == "use" or before == "uses":
            yield from (_item(built_in(Kind.NAMESPACE, name)) for name in sorted(self.index.namespaces))
        elif before == "with":
            yield from self.callables(schemas=False)
            yield from (_item(built_in(Kind.MIXIN, name), call=True) for name in sorted(BUILTIN_MIXINS))
        elif before == "namespace" or before in ("facet", "workflow", "schema", "implicit", "as", "foreach"):
            return
        elif before == "event":
            yield _word("facet")
        elif (inner is None or inner.kind in ("items", "block")) and context.second is not None and context.second.text == "in":
            yield from map(_word, MODES)
        elif inner is not None and inner.kind == "block" and before in ("after", ","):
            own, steps = next(reversed(inner.steps), ""), steps_at(self.index, self.opening, context)
            yield from (_item(step) for step in steps.values() if step.kind is Kind.STEP and step.name != own)
        elif inner is None or inner.kind == "items":
            yield from self.declarations(inner)
        elif inner.kind in ("params", "returns", "fields") or (inner.kind == "list" and self.wants_type()):
            yield from self.params(before)
        elif context.names_argument:
            yield from self.arguments()
        elif inner.kind == "block":
            yield from self.statements(before)
        elif inner.kind == "prompt":
            yield from map(_word, ("system", "template", "model"))
        elif inner.kind == "cases" and before in ("{", "}", ";"):
            yield from map(_word, ("case", "case _"))
        else:
            yield from self.values(before)

    # --- after a dot

    def members(self) -> Iterator[Item]:
        first, *rest = self.context.path
        if first == "$":
            members = inputs_at(self.index, self.opening, self.context)
        else:
            members = steps_at(self.index, self.opening, self.context)
            if first not in members:
                yield from self.qualified()
                return
            members = self.index.members(members[first])
        for name in rest:
            members = self.index.members(members[name]) if name in members else {}
        yield from map(_item, members.values())

    def qualified(self) -> Iterator[Item]:
        """Complete the declarations of a namespace, and the rest of its name."""
        prefix = ".".join(self.context.path)
        for declared in (self.index.symbols.taken | self.index.symbols.facets.exact).values():
            if declared.opening.namespace == prefix:
                yield _item(self.index.symbols.definition(declared), call=not self.wants_type())
        if prefix == "sys" and self.context.before is not None and self.context.before.text != "=":
            yield from map(_word, ("log", "assert"))
        for name in sorted(self.index.namespaces):
            if name.startswith(prefix + "."):
                yield _item(built_in(Kind.NAMESPACE, name.removeprefix(prefix + ".").partition(".")[0]))

    def wants_type(self) -> bool:
        """Return whether a type comes next, directly or within `[`."""
        place = [bracket.kind for bracket in self.context.brackets if bracket.kind != "list"][-1:]
        before = self.context.before
        return place in (["params"], ["returns"], ["fields"]) and before is not None and before.text in (":", "[")

    # --- declarations

    def declarations(self, inner: Bracket | None) -> Iterator[Item]:
        before = self.context.before
        if before is not None and before.text == "=>":
            return
        if before is not None and before.text == "=":
            yield from self.callables()
            return
        if before is not None and before.text == "andThen":
            yield from map(_word, ("foreach", "when", "script"))
            return
        yield from map(_word, (*_DECLARE, "schema", "use") if inner or self.context.namespace else (*_DECLARE, "namespace"))
        if self.context.facet:
            yield from map(_word, _TAIL)

    def params(self, before: str) -> Iterator[Item]:
        if before in (":", "["):
            yield from (_item(built_in(Kind.TYPE, name)) for name in sorted(TYPES))
            yield from (_item(schema) for schema in self.visible(schemas=True) if schema.kind is Kind.SCHEMA)
        elif before == "=":
            yield from self.values(before)

    def arguments(self) -> Iterator[Item]:
        """Complete the names that a call accepts and does not have yet, the required ones first."""
        call = self.context.call
        if call is None:
            return
        if call.name == "collectErrors":
            block = next((bracket for bracket in reversed(self.context.brackets) if bracket.kind == "block"), None)
            callee = self.context.facet if block is None else next(reversed(block.steps.values()), "")
            owner = self.index.resolve_callee(callee, self.opening)
            names = {} if owner is None else self.index.returns(owner)
            yield from (_item(symbol) for symbol in names.values() if isinstance(symbol.type, ListType))
            return
        declared = self.callee(call)
        if declared is None:
            words = BUILTIN_MIXINS.get(call.name, {}) if call.kind == "mixin" else {}
            yield from (Item(word, kind=_Kinds.Property, insert_text=f"{word} = ") for word in words if word not in call.args)
            return
        names = self.index.returns(declared) if call.kind == "yield" else self.index.inputs(declared)
        for name, symbol in names.items():
            if name not in call.args and symbol.kind is not Kind.ALIAS:
                optional = isinstance(symbol.node, nodes.Param) and not symbol.node.is_needed
                item = _item(symbol)
                item.insert_text = f"{name} = "
                item.sort_text = f"{int(optional)}{name}"
                item.preselect = not optional or None
                yield item

    def callee(self, call: Bracket) -> Declared | None:
        aliases = inputs_at(self.index, self.opening, self.context)
        alias = aliases.get(call.name) if call.kind == "yield" else None
        if alias is not None and alias.kind is Kind.ALIAS:
            return alias.declared
        return self.index.resolve_callee(call.name, self.opening)

    # --- statements and values

    def statements(self, before: str) -> Iterator[Item]:
        if before == "=":
            yield from self.callables()
            yield from self.values(before)
        elif self.context.before is not None and before in OPERATORS:
            yield from self.values(before)
        elif before == "yield":
            yield from self.targets()
        elif before == "andThen":
            yield from map(_word, ("foreach", "when"))
        elif before == "catch":
            yield _word("when")
        else:
            yield from map(_word, ("yield", "sys.log", "sys.assert"))
            if before == ")" or before == "}":
                yield from map(_word, ("with", "after", "andThen", "catch"))

    def targets(self) -> Iterator[Item]:
        """Complete the targets of a yield: the owner of the block, and the aliases of its signature."""
        owners = [bracket.owner for bracket in self.context.brackets if bracket.kind == "block" and bracket.owner]
        steps = steps_at(self.index, self.opening, self.context)
        if owners and owners[-1] in steps:
            declared = steps[owners[-1]].declared
        else:
            declared = self.index.resolve_callee(self.context.facet, self.opening)
        if declared is not None:
            yield _item(self.index.symbols.definition(declared), call=True)
        for symbol in inputs_at(self.index, self.opening, self.context).values():
            if symbol.kind is Kind.ALIAS:
                yield _item(symbol, call=True)

    def values(self, before: str) -> Iterator[Item]:
        ends = self.context.before is not None and (
            self.context.before.kind in ("string", "float", "integer", "input") or before in (")", "]", "}")
        )
        if ends or (self.context.before is not None and self.context.before.kind == "word" and before not in _OPERATORS):
            yield from map(_word, _WORDS)
            return
        yield from map(_item, steps_at(self.index, self.opening, self.context).values())
        for name, symbol in inputs_at(self.index, self.opening, self.context).items():
            item = _item(symbol)
            item.label = f"$.{name}"
            item.filter_text = f"$.{name}"
            yield item
        yield from (_item(built_in(Kind.FUNCTION, name), call=True) for name in FUNCTIONS)
        yield from map(_word, _VALUES)

    # --- declared names

    def visible(self, *, schemas: bool) -> Iterator[Definition]:
        tables = [self.index.symbols.facets] + ([self.index.symbols.schemas] if schemas else [])
        for table in tables:
            for declared in table.exact.values():
                yield self.index.symbols.definition(declared)

    def callables(self, *, schemas: bool = True) -> Iterator[Item]:
        """Complete callable names, in the short form where that is enough."""
        for symbol in self.visible(schemas=schemas):
            assert symbol.declared is not None
            short = self.index.resolve_callee(symbol.name.text, self.opening)
            item = _item(symbol, call=True)
            if short is None or short.node is not symbol.declared.node:
                item.label = symbol.declared.qualified_name
                item.insert_text = f"{item.label}($0)"
            yield item


_OPERATORS = frozenset(["in", "not", "contains", "startsWith", "endsWith", "case"])


def _word(text: str) -> Item:
    return Item(text, kind=_Kinds.Keyword, sort_text=f"5{text}")


def _item(symbol: Definition, *, call: bool = False) -> Item:
    text = description.documentation(symbol)
    item = Item(
        symbol.name.text,
        kind=_ITEMS[symbol.kind],
        detail=description.heading(symbol),
        documentation=types.MarkupContent(types.MarkupKind.Markdown, text) if text else None,
    )
    if call:
        item.insert_text = f"{symbol.name.text}($0)"
        item.insert_text_format = types.InsertTextFormat.Snippet
    return item


# --- names that can be read at the cursor ----------------------------------------------------------------------------


def steps_at(index: ProgramIndex, opening: Opening, context: CursorContext) -> dict[str, Definition]:
    """Return the steps and loop variables that are visible, inner ones over outer ones."""
    steps: dict[str, Definition] = {}
    for number, bracket in enumerate(context.brackets):
        if bracket.kind != "block":
            continue
        if bracket.loop is not None:
            name, over = bracket.loop
            steps[name] = built_in(Kind.LOOP, name, _element(index, opening, context, number, over, steps))
        current = next(reversed(bracket.steps), "") if _in_step(context, number) else ""
        for name, callee in bracket.steps.items():
            if name != current:
                value = None if callee else index.value(opening.source.name, name)
                steps[name] = value or built_in(Kind.STEP, name, declared=index.resolve_callee(callee, opening))
    return steps


def _in_step(context: CursorContext, number: int) -> bool:
    """Return whether the cursor is in the last step that a block has so far, outside of its body."""
    if number == len(context.brackets) - 1:
        return not context.starts_line
    inner = context.brackets[number + 1]
    return inner.kind not in ("block", "cases", "yield") and not inner.name.startswith("sys.")


def inputs_at(index: ProgramIndex, opening: Opening, context: CursorContext) -> dict[str, Definition]:
    """Return the names that `$.` reads: those of the facet, of the steps whose bodies are open, and loop variables."""
    return _inputs(index, opening, context.facet, context.brackets, steps_at(index, opening, context))


def _inputs(
    index: ProgramIndex, opening: Opening, name: str, brackets: Iterable[Bracket], steps: dict[str, Definition]
) -> dict[str, Definition]:
    facet = index.resolve_callee(name, opening) if name else None
    inputs = {} if facet is None else index.inputs(facet)
    for bracket in brackets:
        if bracket.owner in steps and steps[bracket.owner].declared is not None:
            inputs = inputs | index.members(steps[bracket.owner])
        if bracket.loop is not None and bracket.loop[0] in steps:
            inputs = inputs | {bracket.loop[0]: steps[bracket.loop[0]]}
    return inputs


def _element(
    index: ProgramIndex, opening: Opening, context: CursorContext, number: int, over: str, steps: dict[str, Definition]
) -> Type:
    """Return the type of the elements of the list that a loop runs over."""
    path, names = over.split("."), steps
    if path[0] == "$":
        names = _inputs(index, opening, context.facet, context.brackets[:number], steps)
        del path[0]
    symbol: Definition | None = None
    for name in path:
        symbol = names.get(name)
        if symbol is None:
            return UNKNOWN
        names = index.members(symbol)
    type_ = UNKNOWN if symbol is None else required(symbol.type)
    return type_.element if isinstance(type_, ListType) else UNKNOWN
