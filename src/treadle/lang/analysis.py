"""Queries about a checked program: types of expressions, and meanings of names.

`analyse` accepts trees of any quality: names that mean nothing have no use, and their types are `UNKNOWN`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from treadle.lang import nodes
from treadle.lang.check import check
from treadle.lang.declare import declare
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.names import Declared, Definition, Kind, Use
from treadle.lang.scope import Context
from treadle.lang.types import UNKNOWN, Type

__all__ = ["Analysis", "Definition", "Kind", "Use", "analyse"]


def analyse(files: Iterable[tuple[Source, nodes.File]], reporter: Reporter | None = None) -> Analysis:
    """Check parsed sources; the diagnostics are in the reporter."""
    reporter = reporter or Reporter()
    return Analysis(check(declare(list(files), reporter), reporter))


@dataclass(slots=True)
class Analysis:
    """The answers; lines and columns count from 1."""

    context: Context
    _uses: dict[str, list[Use]] = field(default_factory=dict)
    _places: dict[int, list[Use]] = field(default_factory=dict)

    def type_of(self, expr: nodes.Expr) -> Type:
        """Return the type of an expression of the program."""
        return self.context.bindings.types.get(id(expr), UNKNOWN)

    def callee(self, node: nodes.Call | nodes.Mixin) -> Declared | None:
        """Return the facet or schema that a call, mixin or yield names."""
        name = self.context.bindings.callees.get(id(node))
        return None if name is None else self.context.symbols.taken.get(name)

    def params(self, declared: Declared) -> Mapping[str, Definition]:
        """Return the parameters of a facet, or the fields of a schema."""
        return self.context.tables.params(declared)

    def returns(self, declared: Declared) -> Mapping[str, Definition]:
        """Return the returns of a facet, or the fields of a schema."""
        return self.context.tables.returns(declared)

    def uses(self, source: str) -> list[Use]:
        """Return every name of a source that means something, in order of place; declarations are their own first use."""
        if not self._uses:
            self._collect()
        return self._uses.get(source, [])

    def at(self, source: str, line: int, column: int) -> Use | None:
        """Return the use at a place, or directly before it."""
        uses = self.uses(source)
        index = bisect_right(uses, (line, column), key=lambda use: (use.span.line, use.span.column)) - 1
        if index < 0:
            return None
        span = uses[index].span
        return uses[index] if span.line == line and column <= span.end_column else None

    def references(self, definition: Definition) -> list[Use]:
        """Return all uses of a definition, including its own place, in order of source and place."""
        if not self._uses:
            self._collect()
        return self._places.get(_key(definition), [])

    def _collect(self) -> None:
        bindings, symbols = self.context.bindings, self.context.symbols
        found = [
            Use(source, name.span if isinstance(name, nodes.Name) else name.parts[part].span, meaning)
            for source, name, part, meaning in bindings.uses
        ]
        own: dict[int, Definition] = {}
        for definition in [*self._defined(), *(use.definition for use in found)]:
            own.setdefault(_key(definition), definition)
        own_places = [Use(each.source, each.name.span, each) for each in own.values() if each.kind not in _ELSEWHERE]
        order = {opening.source.name: number for number, opening in reversed(list(enumerate(symbols.openings)))}
        every = sorted([*own_places, *found], key=lambda use: (order.get(use.source.name, 0), use.span))
        seen: set[tuple[str, nodes.Span]] = set()
        for use in every:
            place = (use.source.name, use.span)
            if place not in seen:
                seen.add(place)
                self._uses.setdefault(use.source.name, []).append(use)
                self._places.setdefault(_key(use.definition), []).append(use)

    def _defined(self) -> Iterator[Definition]:
        """Yield the definitions of declarations, parameters, steps and loop variables, used or not."""
        for declared in self.context.symbols.taken.values():
            yield self.context.symbols.definition(declared)
            yield from self.params(declared).values()
            yield from self.returns(declared).values()
        for _, scope in self.context.bindings.scopes:
            if scope.loop is not None:
                yield scope.loop
            yield from (info.definition for info in scope.steps.values())


_ELSEWHERE = frozenset([Kind.SCRIPT, Kind.ERROR])
"""Kinds without a place of their own in the source."""


def _key(definition: Definition) -> int:
    return id(definition.node)
