"""What Treadle wants to reach beside its peers, as ratios of figures of one session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.peers.catalog import SUBJECTS, Subject
from bench.peers.figures import DRAIN_1, DRAIN_2, ENQUEUE_1, ENQUEUE_32, FUNCTIONS, IDLE, LATENCY, LIMIT, Figures, percentile


@dataclass(frozen=True, slots=True)
class Target:
    """One of them, with what was found: None where it was not measured."""

    title: str
    against: str
    ours: float | None
    theirs: float | None
    wanted: float
    at_least: bool = True
    """False: the ratio may not be above what is wanted."""

    @property
    def ratio(self) -> float | None:
        """Ours to theirs."""
        return None if self.ours is None or not self.theirs else self.ours / self.theirs

    @property
    def verdict(self) -> str:
        """Met, or by how much not."""
        ratio = self.ratio
        if ratio is None:
            return "not measured"
        if ratio >= self.wanted if self.at_least else ratio <= self.wanted:
            return "met"
        return f"missed by {abs(ratio - self.wanted) / self.wanted:.0%}"


def targets(figures: Figures, subjects: Sequence[Subject] = SUBJECTS) -> list[Target]:
    """All targets, with what was found."""
    on_postgres, on_sqlite = (_Peers(figures, subjects, store) for store in ("postgresql", "sqlite"))
    found = [
        *(on_postgres.fastest(measure, f"PostgreSQL: {measure}", 2.0) for measure in (DRAIN_1, DRAIN_2)),
        *(on_postgres.limit(measure, f"PostgreSQL: {measure}", 0.6) for measure in (DRAIN_1, DRAIN_2)),
        *(on_sqlite.fastest(measure, f"SQLite: {measure}", 6.0) for measure in (DRAIN_1, DRAIN_2)),
        on_postgres.one("dbos", FUNCTIONS, "PostgreSQL: ten-step function", 50.0),
        on_postgres.one("absurd", FUNCTIONS, "PostgreSQL: ten-step function", 20.0),
        on_postgres.least("PostgreSQL: idle latency, p50", LATENCY, lambda values: percentile(values, 0.5)),
        on_postgres.least("PostgreSQL: idle latency, p99", LATENCY, lambda values: percentile(values, 0.99)),
        on_postgres.least("PostgreSQL: idle transactions per second", IDLE, lambda values: values[0]),
        on_postgres.callers("PostgreSQL: enqueue, 32 callers", 5.0),
    ]
    return found


@dataclass(frozen=True, slots=True)
class _Peers:
    """Treadle and its peers on one store."""

    figures: Figures
    subjects: Sequence[Subject]
    store: str

    def fastest(self, measure: str, title: str, wanted: float) -> Target:
        """Against whichever peer is the fastest at the same."""
        best = self.figures.best(measure, self._peers())
        return Target(title, f"the fastest peer{_named(best)}", self._ours(measure), best and best[1], wanted)

    def limit(self, measure: str, title: str, wanted: float) -> Target:
        """Against the bare loop of set-based statements."""
        return Target(title, "the set-based limit", self._ours(measure), self.figures.median(LIMIT, self.store), wanted)

    def one(self, module: str, measure: str, title: str, wanted: float) -> Target:
        """Against one of them."""
        peer = next(each for each in self.subjects if each.module == module and each.store == self.store)
        return Target(title, peer.title, self._ours(measure), self.figures.median(measure, peer.name), wanted)

    def least(self, title: str, measure: str, of: Callable[[list[float]], float]) -> Target:
        """No more than the peer that has least."""
        found = [(each, of(values)) for each in self._peers() if (values := self.figures.found(measure, each.name))]
        best = min(found, key=lambda pair: pair[1], default=None)
        ours = self.figures.found(measure, f"treadle-{self.store}")
        return Target(title, f"the best peer{_named(best)}", of(ours) if ours else None, best and best[1], 1.0, at_least=False)

    def callers(self, title: str, wanted: float) -> Target:
        """Many callers against the best single one of a peer."""
        best = self.figures.best(ENQUEUE_1, self._peers())
        return Target(title, f"the best peer's one caller{_named(best)}", self._ours(ENQUEUE_32), best and best[1], wanted)

    def _peers(self) -> list[Subject]:
        return [each for each in self.subjects if each.store == self.store and each.module != "treadle"]

    def _ours(self, measure: str) -> float | None:
        return self.figures.median(measure, f"treadle-{self.store}")


def _named(best: tuple[Subject, float] | None) -> str:
    return f", {best[0].title}" if best else ""
