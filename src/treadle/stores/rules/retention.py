"""The cursor of a retention scan: finished tasks by seq first, then runs without tasks by id."""

from __future__ import annotations

RUNS = "run:"
"""The prefix of a cursor in the second half of the scan."""


def first_id(at: int) -> str:
    """Return an id that sorts before all ids created at that instant or later."""
    text = f"{max(at, 0):012x}"
    return f"{text[:8]}-{text[8:]}-0000-0000-000000000000"
