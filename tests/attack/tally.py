"""The counts and problems of a section, and the table of all sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.results import table

SHOWN = 20
"""Problems of one section that are printed."""


@dataclass(slots=True)
class Tally:
    """One section on one store."""

    section: str
    store: str
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def check(self, holds: object, problem: str) -> None:
        """Note the problem unless it holds."""
        if not holds:
            self.problems.append(problem)


def as_markdown(tallies: Sequence[Tally]) -> str:
    """The table, and the problems below it."""
    rows = [
        (
            each.section,
            each.store,
            "; ".join(f"{count:,} {what}" for what, count in each.counts.items()),
            f"{each.seconds:.0f} s",
            f"**{len(each.problems)}**" if each.problems else 0,
        )
        for each in tallies
    ]
    problems = [
        f"- {each.section} on {each.store}: {problem}" for each in tallies for problem in each.problems[:SHOWN] if each.problems
    ]
    head = table(["section", "store", "counts", "time", "broken"], rows)
    return "\n\n".join([head, "\n".join(problems)]) if problems else head
