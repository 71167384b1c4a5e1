"""The public import paths of the AFL reference implementation, so that its agents run unedited on Treadle.

Everything here is `treadle.agents` under other names; see docs/how-to/reference-agents.md. Internals are not provided.
"""

from __future__ import annotations

from typing import Any

from treadle.lang import compile_sources


def parse(source: str, filename: str = "<string>") -> dict[str, Any]:
    """Compile AFL text to a program; raise `ValueError` with all problems."""
    compiled = compile_sources([(filename, source)])
    if not compiled.ok:
        raise ValueError(compiled.render())
    return compiled.program


def emit_dict(ast: dict[str, Any]) -> dict[str, Any]:
    """Return a program as JSON objects."""
    return ast
