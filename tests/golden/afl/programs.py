"""Reads the wrong and the right programs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
_EXPECTED = re.compile(r"(?P<line>\d+) (?P<rule>[a-z-]+)(?P<error>!?): (?P<part>.+)")


@dataclass(frozen=True)
class Expected:
    """A diagnostic: its line and rule, whether it is an error without --strict too, and a part of its message."""

    line: int
    rule: str
    error: bool
    part: str


@dataclass(frozen=True)
class Case:
    title: str
    expected: tuple[Expected, ...]
    text: str


def read(name: str) -> list[Case]:
    """The programs of one file."""
    found = []
    for part in (HERE / name).read_text(encoding="utf-8").split("\n==== ")[1:]:
        title, _, rest = part.partition("\n")
        lines = rest.splitlines()
        expected = []
        while lines and (match := _EXPECTED.fullmatch(lines[0])) is not None:
            expected.append(Expected(int(match["line"]), match["rule"], bool(match["error"]), match["part"]))
            lines.pop(0)
        found.append(Case(title, tuple(expected), "\n".join(lines).strip() + "\n"))
    return found
