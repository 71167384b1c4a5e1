"""The command `treadle`: one module per command group, written against the API contract, without rules or SQL of its own."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

_COLLECT_AT = 200_000
"""New objects before a garbage collection: more than loading the modules of a command makes, almost none of them garbage."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(_COLLECT_AT)
    from treadle.interfaces.cli.execution import execute  # imports Click, without collections meanwhile

    code = execute(list(sys.argv[1:] if arguments is None else arguments))
    gc.freeze()  # the interpreter would look for garbage among all loaded modules before it ends
    sys.exit(code)
