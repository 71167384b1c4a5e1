"""Results of the checks for the emitter and for queries, keyed by the identity of the tree node."""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.lang import tree
from treadle.lang.attributes import AttributeTables
from treadle.lang.definitions import Definition
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.names import Symbols
from treadle.lang.scope import Scope
from treadle.lang.types import Type


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
    uses: list[tuple[Source, tree.Name | tree.Ref | tree.InputRef, int, Definition]] = field(default_factory=list)
    scopes: list[tuple[tree.Span, Scope]] = field(default_factory=list)


@dataclass(slots=True)
class Context:
    """The state shared by all checks."""

    symbols: Symbols
    reporter: Reporter
    tables: AttributeTables
    bindings: Bindings = field(default_factory=Bindings)
    implied: dict[str, set[str]] = field(default_factory=dict)  # facet -> parameters that implicits supply
    keys_read: dict[int, set[str] | None] = field(default_factory=dict)  # pre-script -> its keys in other scripts; None: any
    misyielded: dict[int, set[str] | None] = field(default_factory=dict)  # facet -> returns in wrong yields; None: any
    extensions: list[tuple[str, Source, tree.Span]] = field(default_factory=list)  # uses of extensions to the reference

    def use(self, source: Source, name: tree.Name | tree.Ref | tree.InputRef, definition: Definition, part: int = 0) -> None:
        """Record the meaning of a name, or of one part of a reference."""
        self.bindings.uses.append((source, name, part, definition))

    def report_too_deep(self, node: tree.TooDeep, source: Source, limit: int, what: str) -> None:
        """Report nesting beyond the limit."""
        message = f"{what} is nested more than {limit} levels deep"
        self.reporter.report("too-deep", source, node.span, message, hint="split it over several steps or facets")
