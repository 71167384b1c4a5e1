"""Targets of Treadle relative to its peers, as ratios of figures of one session."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.figures import ratios
from bench.peers.catalog import SUBJECTS, Subject
from bench.peers.figures import DRAIN_1, DRAIN_2, ENQUEUE_1, ENQUEUE_32, FUNCTIONS, IDLE, LATENCY, LIMIT, Figures, percentile


@dataclass(frozen=True, slots=True)
class Target:
    """One target, with the figures of all rounds; empty where it was not measured."""

    title: str
    against: str
    ours: list[float]
    theirs: list[float]
    wanted: float
    at_least: bool = True
    """False: the ratio must be at most the target."""

    @staticmethod
    def median(values: list[float]) -> float | None:
        """The median of the figures."""
        return statistics.median(values) if values else None

    @property
    def ratio(self) -> float | None:
        """Ours to theirs: the median of the ratios of all rounds, or the ratio of the medians if a round is missing."""
        if not self.ours or not self.theirs or not all(self.theirs):
            return None
        if len(self.ours) == len(self.theirs):
            return statistics.median(ratios(self.ours, self.theirs))
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def verdict(self) -> str:
        """Met, or by how much not."""
        ratio = self.ratio
        if ratio is None:
            return "not measured"
        if ratio >= self.wanted if self.at_least else ratio <= self.wanted:
            return "met"
        return f"**missed by {100 * abs(ratio - self.wanted) / self.wanted:.0f} %**"


def targets(figures: Figures, subjects: Sequence[Subject] = SUBJECTS) -> list[Target]:
    """All targets with their figures."""
    on_postgres, on_sqlite = (_Peers(figures, subjects, store) for store in ("postgresql", "sqlite"))
    return [
        *(on_postgres.fastest(measure, f"PostgreSQL: {measure}", 2.2) for measure in (DRAIN_1, DRAIN_2)),
        *(on_postgres.limit(measure, f"PostgreSQL: {measure}", 0.6) for measure in (DRAIN_1, DRAIN_2)),
        *(on_sqlite.fastest(measure, f"SQLite: {measure}", 6.0) for measure in (DRAIN_1, DRAIN_2)),
        on_postgres.one("dbos", FUNCTIONS, "PostgreSQL: ten-step function", 50.0),
        on_postgres.one("absurd", FUNCTIONS, "PostgreSQL: ten-step function", 20.0),
        on_postgres.least("PostgreSQL: idle latency, p50", LATENCY, lambda values: percentile(values, 0.5)),
        on_postgres.least("PostgreSQL: idle latency, p99", LATENCY, lambda values: percentile(values, 0.99)),
        on_postgres.least("PostgreSQL: idle transactions per second", IDLE, lambda values: values[0]),
        on_postgres.fastest(ENQUEUE_1, "PostgreSQL: enqueue, one caller", 1.2),
        on_sqlite.fastest(ENQUEUE_1, "SQLite: enqueue, one caller", 1.0),
        on_postgres.callers("PostgreSQL: enqueue, 32 callers", 5.0),
    ]


@dataclass(frozen=True, slots=True)
class _Peers:
    """Treadle and its peers on one store."""

    figures: Figures
    subjects: Sequence[Subject]
    store: str

    def fastest(self, measure: str, title: str, wanted: float) -> Target:
        """Against whichever peer is the fastest at the same."""
        best = self.figures.best(measure, self._peers())
        return Target(title, f"the fastest peer{_named(best)}", self._ours(measure), self._of(best, measure), wanted)

    def limit(self, measure: str, title: str, wanted: float) -> Target:
        """Against the bare loop of set-based statements."""
        return Target(title, "the set-based limit", self._ours(measure), self.figures.found(LIMIT, self.store), wanted)

    def one(self, module: str, measure: str, title: str, wanted: float) -> Target:
        """Against one of them."""
        peer = next((each for each in SUBJECTS if each.module == module and each.store == self.store), None)
        return Target(title, peer.title if peer else module, self._ours(measure), self._of(peer, measure), wanted)

    def least(self, title: str, measure: str, of: Callable[[list[float]], float]) -> Target:
        """No more than the peer that has least."""
        found = [(of(values), each) for each in self._peers() if (values := self.figures.found(measure, each.name))]
        least, best = min(found, key=lambda pair: pair[0], default=(0.0, None))
        ours = self._ours(measure)
        theirs = [least] if best else []
        return Target(title, f"the best peer{_named(best)}", [of(ours)] if ours else [], theirs, 1.0, at_least=False)

    def callers(self, title: str, wanted: float) -> Target:
        """Many callers against the best single one of a peer."""
        best = self.figures.best(ENQUEUE_1, self._peers())
        return Target(title, f"the best peer's one caller{_named(best)}", self._ours(ENQUEUE_32), self._of(best, ENQUEUE_1), wanted)

    def _peers(self) -> list[Subject]:
        return [each for each in self.subjects if each.store == self.store and each.module != "treadle"]

    def _ours(self, measure: str) -> list[float]:
        return self.figures.found(measure, f"treadle-{self.store}")

    def _of(self, subject: Subject | None, measure: str) -> list[float]:
        return self.figures.found(measure, subject.name) if subject else []


def _named(best: Subject | None) -> str:
    return f", {best.title}" if best else ""
