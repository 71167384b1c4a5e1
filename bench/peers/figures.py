"""Figures of a session: for each measure and subject the values of all rounds, or the reason why there are none."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bench.peers.catalog import Subject

DRAIN_1, DRAIN_2 = "drain, one worker process", "drain, two worker processes"
LIMIT = "set-based limit"
ENQUEUE_1, ENQUEUE_32 = "enqueue, one caller", "enqueue, 32 callers"
FUNCTIONS = "runs of ten steps"
LATENCY = "latency"
IDLE = "idle transactions"


@dataclass(slots=True)
class Figures:
    """Values by measure and by the name of a subject; the limit's by store."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    errors: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, measure: str, name: str, *values: float) -> None:
        """One more round."""
        self.values.setdefault(measure, {}).setdefault(name, []).extend(values)

    def fail(self, measure: str, name: str, error: str) -> None:
        """This round gave nothing."""
        self.errors.setdefault(measure, {})[name] = error

    def found(self, measure: str, name: str) -> list[float]:
        """The measured values; empty if there are none."""
        return self.values.get(measure, {}).get(name, [])

    def best(self, measure: str, subjects: Iterable[Subject]) -> Subject | None:
        """The subject with the greatest median."""
        measured = [each for each in subjects if self.found(measure, each.name)]
        return max(measured, key=lambda each: statistics.median(self.found(measure, each.name)), default=None)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {"values": self.values, "errors": self.errors}


def percentile(values: list[float], part: float) -> float:
    """The value that so much of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
