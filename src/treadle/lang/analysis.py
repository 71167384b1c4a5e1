"""The meanings of all names in a checked program, by place.

Trees may be of any quality: names that mean nothing have no use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from treadle.lang import nodes
from treadle.lang.diagnostics import Source
from treadle.lang.names import Definition, Kind
from treadle.lang.scope import CheckContext

_ELSEWHERE = frozenset([Kind.SCRIPT, Kind.ERROR])
"""Kinds without a place of their own in the source."""


class NameUse(NamedTuple):
    """A place that names a definition; the definition's own place is one of its uses."""

    source: Source
    span: nodes.Span
    definition: Definition


def list_uses(context: CheckContext) -> dict[str, list[NameUse]]:
    """Return every name of each source that means something, in order of place; declarations are their own first use."""
    uses = [
        NameUse(source, name.span if isinstance(name, nodes.Name) else name.parts[part].span, meaning)
        for source, name, part, meaning in context.bindings.uses
    ]
    definitions: dict[int, Definition] = {}
    for definition in (*_list_definitions(context), *(use.definition for use in uses)):
        definitions.setdefault(id(definition.node), definition)
    own = [
        NameUse(definition.source, definition.name.span, definition)
        for definition in definitions.values()
        if definition.kind not in _ELSEWHERE
    ]
    places: dict[str, dict[nodes.Span, NameUse]] = {}
    for use in sorted([*own, *uses], key=lambda use: use.span):
        places.setdefault(use.source.name, {}).setdefault(use.span, use)
    return {source: list(uses.values()) for source, uses in places.items()}


def _list_definitions(context: CheckContext) -> Iterator[Definition]:
    """Yield the definitions of declarations, parameters, steps and loop variables, used or not."""
    for declared in context.symbols.taken.values():
        yield context.symbols.definition(declared)
        yield from context.tables.params(declared).values()
        yield from context.tables.returns(declared).values()
    for _, scope in context.bindings.scopes:
        if scope.loop is not None:
            yield scope.loop
        yield from (info.definition for info in scope.steps.values())
