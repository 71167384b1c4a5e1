"""The names visible inside a block: `$.` inputs, loop variables, and steps of this and the enclosing blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from treadle.lang import tree
from treadle.lang.attributes import Attributes, KnownType
from treadle.lang.names import Declared, Opening


@dataclass(frozen=True, slots=True)
class Inputs:
    """Layers of names for `$.`, the nearest first. An open layer may have undeclared names."""

    layers: tuple[tuple[Attributes, bool], ...] = ()

    def inside(self, attributes: Attributes, *, may_have_more: bool) -> Inputs:
        return Inputs(((attributes, may_have_more), *self.layers))

    def find(self, name: str) -> tuple[bool, KnownType]:
        """Return whether the name may be read, and its type if certain."""
        certain = True
        for attributes, may_have_more in self.layers:
            if name in attributes:
                return True, attributes.type_of(name) if certain else None
            certain = certain and not may_have_more
        return not certain, None

    def __iter__(self) -> Iterator[str]:
        for attributes, _ in self.layers:
            yield from attributes


@dataclass(slots=True, eq=False)
class StepInfo:
    node: tree.Step
    index: int
    declared: Declared | None
    attributes: Attributes
    facets: frozenset[str]  # qualified names of its facet and of everything mixed in


@dataclass(slots=True, eq=False)
class Scope:
    """One block during its check. `label` names the current statement; `current` is set if that is a step."""

    opening: Opening
    inputs: Inputs
    parent: Scope | None = None
    loop: tuple[str, KnownType] | None = None
    steps: dict[str, StepInfo] = field(default_factory=dict)
    everywhere: frozenset[str] = frozenset()  # all step names of the declaration, to distinguish "unknown" from "elsewhere"
    label: str = "this"
    current: StepInfo | None = None
    inside: bool = False  # within the body or catch of the current step
    depends: dict[str, None] = field(default_factory=dict)

    def begin(self, label: str, current: StepInfo | None = None) -> None:
        """Begin a statement, with no known dependencies."""
        self.label, self.current, self.inside = label, current, False
        self.depends = {}

    def find_loop_or_step(self, name: str) -> tuple[Scope, StepInfo | None] | None:
        """Return the nearest scope that has a step (with the step) or a loop variable of this name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.steps:
                return scope, scope.steps[name]
            if scope.loop is not None and scope.loop[0] == name:
                return scope, None
            scope = scope.parent
        return None

    def visible(self) -> Iterator[str]:
        """Yield the names that are usable here: earlier steps, the owner, loop variables."""
        scope: Scope | None = self
        while scope is not None:
            for name, info in scope.steps.items():
                limit = scope.current
                if limit is None or info.index < limit.index or (info is limit and scope.inside):
                    yield name
            if scope.loop is not None:
                yield scope.loop[0]
            scope = scope.parent
