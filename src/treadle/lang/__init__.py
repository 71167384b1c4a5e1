"""AFL, the workflow language: compiles text to a program and diagnostics, and does nothing else.

Pure: no IO, no clock, no randomness. `compile_sources` is the entry point; an evaluator reads `Program.load`. Names are
imported lazily, so that processes that only run compiled programs do not load the parser.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.lang.codec import InvalidProgram
    from treadle.lang.compiler import Compiled, Fixed, compile_sources, digest_of, fix_sources
    from treadle.lang.diagnostics import Diagnostic, Severity
    from treadle.lang.formatter import CannotFormat, format_source
    from treadle.lang.graphs import Graph, graph
    from treadle.lang.program import Program
    from treadle.lang.rules import RULES, Rule

__all__ = [
    "RULES",
    "CannotFormat",
    "Compiled",
    "Diagnostic",
    "Fixed",
    "Graph",
    "InvalidProgram",
    "Program",
    "Rule",
    "Severity",
    "compile_sources",
    "digest_of",
    "fix_sources",
    "format_source",
    "graph",
]

_HOMES = {
    "RULES": "rules",
    "CannotFormat": "formatter",
    "Compiled": "compiler",
    "Diagnostic": "diagnostics",
    "Fixed": "compiler",
    "Graph": "graphs",
    "InvalidProgram": "codec",
    "Program": "program",
    "Rule": "rules",
    "Severity": "diagnostics",
    "compile_sources": "compiler",
    "digest_of": "compiler",
    "fix_sources": "compiler",
    "format_source": "formatter",
    "graph": "graphs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(f"treadle.lang.{_HOMES[name]}"), name)
