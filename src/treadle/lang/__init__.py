"""AFL, the workflow language: text to a compiled program and diagnostics, and nothing else.

Pure: no IO, no clock, no randomness. `compile_sources` is the way in, `Program.load` what an evaluator reads.
"""

from treadle.lang.compiler import Compiled, compile_sources, digest_of
from treadle.lang.decode import InvalidProgram
from treadle.lang.diagnostics import Diagnostic, Severity
from treadle.lang.program import Program

__all__ = ["Compiled", "Diagnostic", "InvalidProgram", "Program", "Severity", "compile_sources", "digest_of"]
