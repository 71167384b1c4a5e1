"""The names visible inside a block, and the results of the checks.

Visible are `$.` inputs, loop variables, and steps of this and the enclosing blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from treadle.lang import nodes
from treadle.lang.attributes import Attributes, AttributeTables
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.names import Declared, Definition, Opening, Symbols
from treadle.lang.types import Type


@dataclass(slots=True, unsafe_hash=True)
class Inputs:
    """Layers of names for `$.`, the nearest first. An open layer may have undeclared names."""

    layers: tuple[tuple[Attributes, bool], ...] = ()

    def inside(self, attributes: Attributes, *, may_have_more: bool) -> Inputs:
        return Inputs(((attributes, may_have_more), *self.layers))

    def below(self, attributes: Attributes, *, may_have_more: bool) -> Inputs:
        return Inputs((*self.layers, (attributes, may_have_more)))

    def find(self, name: str) -> tuple[Definition | None, bool]:
        """Return the definition of a name, and whether another value may hide or replace it."""
        unsure = False
        for attributes, may_have_more in self.layers:
            definition = attributes.find(name)
            if definition is not None:
                return definition, unsure
            unsure = unsure or may_have_more
        return None, unsure

    def __iter__(self) -> Iterator[str]:
        for attributes, _ in self.layers:
            yield from attributes


@dataclass(frozen=True, slots=True)
class YieldTarget:
    """A valid target of a yield. `returns` are its returns; None: any name is allowed, or it declares none."""

    key: str
    declared: Declared | None = None
    returns: Mapping[str, Definition] | None = None
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """Valid targets by the short name or alias that a yield may use; several under one name are ambiguous. `own`: the owner.

    Within the body of the step `owner`, `outer` has the targets of the enclosing blocks.
    """

    own: YieldTarget
    by_name: Mapping[str, tuple[YieldTarget, ...]] = field(default_factory=dict)
    outer: Mapping[str, tuple[YieldTarget, ...]] = field(default_factory=dict)
    owner: str | None = None


_NO_INPUTS, _NO_TARGETS = Inputs(), Targets(YieldTarget(""))


@dataclass(slots=True, eq=False)
class StepInfo:
    """A step. Its `attributes` are complete when its call was checked, before any expression can read them."""

    node: nodes.Step
    index: int
    declared: Declared | None
    definition: Definition
    facets: frozenset[str]  # qualified names of its facet and of everything mixed in
    attributes: Attributes = field(default_factory=Attributes)
    absent: dict[str, str] = field(default_factory=dict)  # returns that may have no value, with the reason


# --- results for the emitter and for queries, by the identity of the tree node ---------------------------------------


@dataclass(slots=True)
class Bindings:
    """`callees`: qualified names of calls and mixins; `loops` and `values`: references to loop variables and values; `optional`:
    parts of references that are optional fields of schemas; `depends`: per statement; `into`: the alias that a yield, or a mixin of
    a yield, writes to; `types`: of expressions; `uses`: each name with its meaning (of a reference, the number of the part of its
    path); `scopes`: of blocks, with the place of the block."""

    callees: dict[int, str] = field(default_factory=dict)
    loops: set[int] = field(default_factory=set)
    values: set[int] = field(default_factory=set)
    optional: dict[int, set[int]] = field(default_factory=dict)
    depends: dict[int, tuple[str, ...]] = field(default_factory=dict)
    into: dict[int, str] = field(default_factory=dict)
    types: dict[int, Type] = field(default_factory=dict)
    uses: list[tuple[Source, nodes.Name | nodes.Ref | nodes.InputRef, int, Definition]] = field(default_factory=list)
    scopes: list[tuple[nodes.Span, CheckScope]] = field(default_factory=list)


@dataclass(slots=True)
class CheckContext:
    """The state shared by all checks."""

    symbols: Symbols
    reporter: Reporter
    tables: AttributeTables
    bindings: Bindings = field(default_factory=Bindings)
    implied: dict[str, set[str]] = field(default_factory=dict)  # facet -> parameters that implicits supply
    keys_read: dict[int, set[str] | None] = field(default_factory=dict)  # pre-script -> its keys in other scripts; None: any
    misyielded: dict[int, set[str] | None] = field(default_factory=dict)  # facet -> returns in wrong yields; None: any
    extensions: list[tuple[str, Source, nodes.Span]] = field(default_factory=list)  # uses of extensions to the reference


# --- one block during its check -----------------------------------------------------------------------------------------

Known = tuple[int, tuple[str, ...]]
"""A reference: the identity of the owner of its first name, and its path."""


@dataclass(slots=True, eq=False)
class CheckScope:
    """One block during its check, or what surrounds it. `label` names the current statement; `current` is set if that is a step."""

    context: CheckContext
    opening: Opening
    inputs: Inputs = _NO_INPUTS
    targets: Targets = _NO_TARGETS
    parent: CheckScope | None = None
    loop: Definition | None = None
    steps: dict[str, StepInfo] = field(default_factory=dict)
    everywhere: frozenset[str] = frozenset()  # all step names of the declaration, to distinguish "unknown" from "elsewhere"
    label: str = "this"
    current: StepInfo | None = None
    inside: bool = False  # within the body or catch of the current step
    depends: dict[str, None] = field(default_factory=dict)
    known: frozenset[Known] = frozenset()  # references that are not null here
    filled: frozenset[str] | None = None  # within a statement: the names that the callee may replace in templates

    def nested(self, inputs: Inputs | None = None, targets: Targets | None = None, label: str = "this") -> CheckScope:
        """Return a scope within this one, which has no steps yet."""
        return CheckScope(
            self.context, self.opening, inputs or self.inputs, targets or self.targets, self, everywhere=self.everywhere,
            label=label, known=self.known,
        )  # fmt: skip

    def report(self, key: str, span: nodes.Span, **values: Any) -> None:
        """Report an error in the source of this scope; see `Reporter.report`."""
        self.context.reporter.report(key, self.opening.source, span, **values)

    def warn(self, key: str, span: nodes.Span, **values: Any) -> None:
        """Report a warning."""
        self.context.reporter.warn(key, self.opening.source, span, **values)

    def use(self, name: nodes.Name | nodes.Ref | nodes.InputRef, definition: Definition, part: int = 0) -> None:
        """Record the meaning of a name, or of one part of a reference."""
        self.context.bindings.uses.append((self.opening.source, name, part, definition))

    def extend(self, extension: str, span: nodes.Span) -> None:
        """Record the use of an extension to the reference implementation."""
        self.context.extensions.append((extension, self.opening.source, span))

    def begin(self, label: str, current: StepInfo | None = None) -> None:
        """Begin a statement, with no known dependencies."""
        self.label, self.current, self.inside = label, current, False
        self.depends = {}
        self.filled = frozenset()

    def find_loop_or_step(self, name: str) -> tuple[CheckScope, StepInfo | None] | None:
        """Return the nearest scope that has a step (with the step) or a loop variable of this name."""
        scope: CheckScope | None = self
        while scope is not None:
            if name in scope.steps:
                return scope, scope.steps[name]
            if scope.loop is not None and scope.loop.name.text == name:
                return scope, None
            scope = scope.parent
        return None

    def visible(self) -> Iterator[str]:
        """Yield the names that are usable here: earlier steps, the owner, loop variables."""
        scope: CheckScope | None = self
        while scope is not None:
            for name, info in scope.steps.items():
                limit = scope.current
                if limit is None or info.index < limit.index or (info is limit and scope.inside):
                    yield name
            if scope.loop is not None:
                yield scope.loop.name.text
            scope = scope.parent
