"""One session: all measures of all subjects, round by round, each subject in its turn; who fails does not end the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.limits import set_based_limit
from bench.peers.catalog import Subject
from bench.peers.figures import DRAIN_1, DRAIN_2, ENQUEUE_1, ENQUEUE_32, FUNCTIONS, IDLE, LATENCY, LIMIT, Figures, percentile
from bench.peers.measures import Bench
from bench.peers.stores import Stores


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured, and for how long at most."""

    tasks: int = 10_000
    rounds: int = 3
    drain_for: float = 6.0
    enqueue_for: float = 1.0
    functions_for: float = 7.0
    samples: int = 200
    latency_for: float = 13.0
    idle_for: float = 20.0


QUICK = Sizes(1_000, 1, 4.0, 0.5, 4.0, 30, 4.0, 5.0)


class Session:
    """Measures and tells how it goes on."""

    def __init__(
        self, bench: Bench, stores: Stores, subjects: Sequence[Subject], sizes: Sizes, tell: Callable[[str], None]
    ) -> None:
        self._bench, self._stores, self._subjects, self._sizes, self._tell = bench, stores, subjects, sizes, tell
        self._begun = time.monotonic()
        self.figures = Figures()

    def run(self) -> Figures:
        """Everything."""
        for number in range(1, self._sizes.rounds + 1):
            self._tell(f"round {number} of {self._sizes.rounds}")
            self._round()
        self._tell("latency, and idle workers")
        for subject in self._subjects:
            if subject.waits:
                self._latency(subject)
        self._idle([each for each in self._subjects if each.waits and each.store == "postgresql"])
        return self.figures

    def _round(self) -> None:
        for measure, workers in ((DRAIN_1, 1), (DRAIN_2, 2)):
            for each in self._subjects:
                if workers <= each.processes:
                    self._drain(measure, each, "noop", min(self._sizes.tasks, each.most), workers, self._sizes.drain_for)
        for store in dict.fromkeys(each.store for each in self._subjects if each.store != "redis"):
            self._limit(store)
        for each in self._subjects:
            self._enqueue(each)
        for each in self._subjects:
            if each.functions:
                self._drain(FUNCTIONS, each, "ten", min(self._sizes.tasks, each.functions), 1, self._sizes.functions_for)

    def _drain(self, measure: str, subject: Subject, name: str, tasks: int, workers: int, seconds: float) -> None:
        try:
            rate = self._bench.drain(subject, name, tasks, workers, seconds)
        except Exception as error:
            self._failed(measure, subject, error)
        else:
            self.figures.add(measure, subject.name, rate)
            self._said(measure, subject, f"{rate:,.0f}/s")

    def _enqueue(self, subject: Subject) -> None:
        try:
            one, many = self._bench.enqueue(subject, self._sizes.enqueue_for)
        except Exception as error:
            for measure in (ENQUEUE_1, ENQUEUE_32):
                self._failed(measure, subject, error)
        else:
            self.figures.add(ENQUEUE_1, subject.name, one)
            self.figures.add(ENQUEUE_32, subject.name, many)
            self._said("enqueue, one caller and 32", subject, f"{one:,.0f}/s, {many:,.0f}/s")

    def _limit(self, store: str) -> None:
        with self._stores.fresh(store) as url:
            rate = asyncio.run(set_based_limit(url, max(self._sizes.tasks, 10_000)))
        self.figures.add(LIMIT, store, rate)
        self._tell(f"{self._time()} {LIMIT}: {store}: {rate:,.0f}/s")

    def _latency(self, subject: Subject) -> None:
        try:
            samples = self._bench.latency(subject, self._sizes.samples, self._sizes.latency_for)
        except Exception as error:
            self._failed(LATENCY, subject, error)
        else:
            self.figures.add(LATENCY, subject.name, *samples)
            said = f"p50 {percentile(samples, 0.5):.1f} ms, p99 {percentile(samples, 0.99):.1f} ms, {len(samples)} samples"
            self._said(LATENCY, subject, said)

    def _idle(self, subjects: list[Subject]) -> None:
        found = self._bench.idle(subjects, 5.0, self._sizes.idle_for) if subjects else {}
        for each in subjects:
            match found[each.name]:
                case Exception() as error:
                    self._failed(IDLE, each, error)
                case rate:
                    self.figures.add(IDLE, each.name, rate)
                    self._said(IDLE, each, f"{rate:.2f}/s")

    def _failed(self, measure: str, subject: Subject, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}"
        self.figures.fail(measure, subject.name, said)
        self._said(measure, subject, f"FAILED: {said}")

    def _said(self, measure: str, subject: Subject, what: str) -> None:
        self._tell(f"{self._time()} {measure}: {subject.title} on {subject.store}: {what}")

    def _time(self) -> str:
        return f"{time.monotonic() - self._begun:6.0f} s "
