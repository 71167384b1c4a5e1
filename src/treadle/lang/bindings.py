"""Results of the checks for the emitter, keyed by the identity of the tree node."""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.lang import tree
from treadle.lang.attributes import AttributeTables
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.names import Symbols


@dataclass(slots=True)
class Bindings:
    """`callees`: qualified names of calls and mixins; `loops`: references to loop variables; `depends`: per statement;
    `into`: the alias that a yield, or a mixin of a yield, writes to."""

    callees: dict[int, str] = field(default_factory=dict)
    loops: set[int] = field(default_factory=set)
    depends: dict[int, tuple[str, ...]] = field(default_factory=dict)
    into: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Context:
    """The state shared by all checks."""

    symbols: Symbols
    reporter: Reporter
    tables: AttributeTables
    bindings: Bindings = field(default_factory=Bindings)
    implied: dict[str, set[str]] = field(default_factory=dict)  # facet -> parameters that implicits supply

    def report_too_deep(self, node: tree.TooDeep, source: Source, limit: int, what: str) -> None:
        """Report nesting beyond the limit."""
        message = f"{what} is nested more than {limit} levels deep"
        self.reporter.report("too-deep", source, node.span, message, hint="split it over several steps or facets")
