"""The names that can be read at the cursor."""

from __future__ import annotations

from treadle.interfaces.lsp.context import Context
from treadle.interfaces.lsp.index import Index, Symbol
from treadle.lang.definitions import Kind
from treadle.lang.names import Opening
from treadle.lang.types import UNKNOWN, ListType, Type, required


def steps_at(index: Index, opening: Opening, context: Context) -> dict[str, Symbol]:
    """Return the steps and loop variables that are visible, inner ones over outer ones."""
    found: dict[str, Symbol] = {}
    for number, bracket in enumerate(context.brackets):
        if bracket.kind != "block":
            continue
        if bracket.loop is not None:
            name, over = bracket.loop
            found[name] = Symbol(Kind.LOOP, name, type=_element(index, opening, context, number, over, found))
        current = next(reversed(bracket.steps), "") if _in_step(context, number) else ""
        for name, callee in bracket.steps.items():
            if name != current:
                value = None if callee else index.value(opening.source.name, name)
                found[name] = value or Symbol(Kind.STEP, name, declared=index.resolve_callee(callee, opening))
    return found


def _in_step(context: Context, number: int) -> bool:
    """Return whether the cursor is in the last step that a block has so far, outside of its body."""
    if number == len(context.brackets) - 1:
        return not context.starts_line
    inner = context.brackets[number + 1]
    return inner.kind not in ("block", "cases", "yield") and not inner.name.startswith("sys.")


def inputs_at(index: Index, opening: Opening, context: Context) -> dict[str, Symbol]:
    """Return the names that `$.` reads: those of the facet, of the steps whose bodies are open, and loop variables."""
    facet = index.resolve_callee(context.facet, opening) if context.facet else None
    found = {} if facet is None else index.inputs(facet)
    steps = steps_at(index, opening, context)
    for bracket in context.brackets:
        owner = steps.get(bracket.owner)
        if owner is not None and owner.declared is not None:
            found = found | index.members(owner)
        if bracket.loop is not None and bracket.loop[0] in steps:
            found = found | {bracket.loop[0]: steps[bracket.loop[0]]}
    return found


def _element(index: Index, opening: Opening, context: Context, number: int, over: str, steps: dict[str, Symbol]) -> Type:
    """Return the type of the elements of what a loop runs over."""
    first, *rest = over.split(".")
    known = steps
    if first == "$":
        outer = context.brackets[:number]
        facet = index.resolve_callee(context.facet, opening)
        known = {} if facet is None else index.inputs(facet)
        for bracket in outer:
            if bracket.owner in steps:
                known = known | index.members(steps[bracket.owner])
            if bracket.loop is not None and bracket.loop[0] in steps:
                known = known | {bracket.loop[0]: steps[bracket.loop[0]]}
    else:
        rest = [first, *rest]
    symbol: Symbol | None = None
    for name in rest:
        symbol = known.get(name)
        if symbol is None:
            return UNKNOWN
        known = index.members(symbol)
    type_ = UNKNOWN if symbol is None else required(symbol.type)
    return type_.element if isinstance(type_, ListType) else UNKNOWN
