"""Flows: AFL sources that are compiled together, and published under names, version by version."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.api.contract import Shape


@dataclass(frozen=True, slots=True)
class SourceText(Shape):
    """One AFL source."""

    name: str
    """What diagnostics call it; usually a file's name."""
    text: str
