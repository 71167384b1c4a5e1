"""The subjects: who is measured on which store, and what a reader must know about each to compare them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subject:
    """One engine on one store; its code is `bench.peers.subjects.<module>`."""

    title: str
    module: str
    store: str
    """`postgresql`, `sqlite` or `redis`."""
    package: str
    """What pip calls it."""
    history: str
    """What stays of a finished task."""
    fences: bool
    """Whether a worker that lost its work to another can no longer end it."""
    most: int = 1_000_000
    """No more tasks than this in a drain: the rest would take minutes."""
    functions: bool = False
    """Has durable functions with steps."""
    idle: bool = True
    """Has a worker that waits for work."""

    @property
    def name(self) -> str:
        """For `--only` and names of databases."""
        return f"{self.module}-{self.store}"


SUBJECTS = (
    Subject("Treadle", "treadle", "postgresql", "treadle", "all", fences=True, functions=True),
    Subject("PgQueuer", "pgqueuer", "postgresql", "pgqueuer", "a log line, no payload", fences=False),
)
