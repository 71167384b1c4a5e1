"""Samples become text: medians with the least and the greatest, tables with a column for each store, aims met or missed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.benchmark import Figures, Found
from bench.results import shown, table

LABELS = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


class Row(NamedTuple):
    """A line of a table: what people read, where the figure is, and its unit."""

    what: str
    key: str
    unit: str = ""


def median(figure: float | Sequence[float]) -> float:
    """The middle of all repetitions; a single number stands for itself."""
    return float(statistics.median(figure)) if isinstance(figure, Sequence) else float(figure)


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Those of each round, as what was measured in the same round had the same neighbours."""
    return [above / below for above, below in zip(over, under, strict=True)]


def spread(figure: float | Sequence[float], unit: str = "") -> str:
    """The median with its unit, and from where to where the repetitions were."""
    text = f"{shown(median(figure))}{unit}"
    if isinstance(figure, Sequence) and len(figure) > 1:
        text += f" ({shown(min(figure))} to {shown(max(figure))})"
    return text


def by_store(found: Found, rows: Iterable[Row]) -> str:
    """A table with a column for each store; a figure that one of them does not have is left empty."""
    lines = [(row.what, *(spread(each[row.key], row.unit) if row.key in each else "" for each in found.values())) for row in rows]
    return table(("", *(LABELS[store] for store in found)), [line for line in lines if any(line[1:])])


@dataclass(frozen=True, slots=True)
class Aim:
    """The target of a figure: `at_least`, or else `at_most`."""

    what: str
    key: str
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    stores: tuple[str, ...] = tuple(LABELS)

    @property
    def text(self) -> str:
        bound = f"at least {shown(self.at_least)}" if self.at_least is not None else f"at most {shown(self.at_most)}"
        return f"{self.what}: {bound}{self.unit}"

    def verdict(self, figures: Figures) -> str:
        """Met, or missed by how much of the aim."""
        value = median(figures[self.key])
        if self.at_least is not None:
            short = 1 - value / self.at_least
        elif self.at_most is not None:
            short = value / self.at_most - 1
        else:
            raise ValueError(f"the aim {self.what!r} has no bound")
        said = "met" if short <= 0 else f"**missed by {max(short * 100, 0.1):.{0 if short >= 0.01 else 1}f} %**"
        return f"{shown(value)}{self.unit}: {said}"


def judged(found: Found, aims: Iterable[Aim]) -> str:
    """A table of the aims: what was measured (medians), and whether that meets them."""
    lines = []
    for aim in aims:
        cells = [aim.verdict(each) if store in aim.stores and aim.key in each else "" for store, each in found.items()]
        lines.append((aim.text, *cells))
    return table(("target", *(LABELS[store] for store in found)), [line for line in lines if any(line[1:])])
