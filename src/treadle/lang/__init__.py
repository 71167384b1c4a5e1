"""AFL, the workflow language: text to a compiled program and diagnostics, and nothing else.

Pure: no IO, no clock, no randomness. `compile_sources` is the way in, `Program.load` what an evaluator reads.
"""

from treadle.lang.compiler import Compiled, compile_sources, digest_of
from treadle.lang.decode import InvalidProgram
from treadle.lang.diagnostics import Diagnostic, Severity
from treadle.lang.formatter import CannotFormat, format_source
from treadle.lang.graph import Graph, graph
from treadle.lang.program import Program
from treadle.lang.rules import RULES, Rule

__all__ = [
    "RULES",
    "CannotFormat",
    "Compiled",
    "Diagnostic",
    "Graph",
    "InvalidProgram",
    "Program",
    "Rule",
    "Severity",
    "compile_sources",
    "digest_of",
    "format_source",
    "graph",
]
