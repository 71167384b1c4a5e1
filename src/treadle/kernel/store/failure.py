"""The end of a process whose store failed: a command that runs for long registers how; elsewhere callers get `StoreFailed`."""

from __future__ import annotations

from collections.abc import Callable

from treadle.model.errors import StoreFailed

_end: Callable[[StoreFailed], None] | None = None


def end_with(end: Callable[[StoreFailed], None] | None) -> None:
    """Call `end` from any thread when a store of this process fails; it should not return. None removes it."""
    global _end
    _end = end


def report_failure(error: StoreFailed) -> None:
    """End the process, if it has registered how."""
    if _end is not None:
        _end(error)
