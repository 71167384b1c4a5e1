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
    """Name of the package on PyPI."""
    keeps: str
    """The data kept about a finished task."""
    fences: str
    """Whether a worker that lost its work to another can no longer end it."""
    most: int = 1_000_000
    """No more tasks than this in a drain: more would take minutes to put in."""
    functions: int = 0
    """Runs of ten steps to put in, some seconds of work; 0: it has no durable functions."""
    processes: int = 2
    """How many worker processes may work on one store."""
    waits: bool = True
    """Whether its worker waits for what another process puts in."""

    @property
    def name(self) -> str:
        """For `--only`, and for figures."""
        return f"{self.module}-{self.store}"


SUBJECTS = (
    Subject("Treadle", "treadle", "postgresql", "treadle", "all", "yes", functions=5_000),
    Subject("PgQueuer", "pgqueuer", "postgresql", "pgqueuer", "a log line, no payload", "no"),
    Subject("Procrastinate", "procrastinate", "postgresql", "procrastinate", "all", "no"),
    Subject("DBOS", "dbos", "postgresql", "dbos", "all", "yes", most=1_500, functions=150),
    Subject("Absurd", "absurd", "postgresql", "absurd-sdk", "all", "yes", functions=400),
    Subject("Treadle", "treadle", "sqlite", "treadle", "all", "yes", functions=5_000),
    Subject("Huey", "huey", "sqlite", "huey", "nothing", "no: deleted when claimed"),
    Subject("DBOS", "dbos", "sqlite", "dbos", "all", "yes", most=300, functions=30),
    Subject("persist-queue", "persist_queue", "sqlite", "persist-queue", "until cleared", "no", processes=1, waits=False),
    Subject("Celery", "celery", "redis", "celery", "nothing", "no: deleted when claimed", most=3_000),
    Subject("Dramatiq", "dramatiq", "redis", "dramatiq", "nothing", "no", most=3_000),
)


def chosen(only: list[str]) -> list[Subject]:
    """The subjects with these names: of a subject, of an engine, or of a store; all if none is given."""
    names = {name for each in SUBJECTS for name in (each.name, each.module, each.store)}
    if unknown := set(only) - names:
        raise ValueError(f"nobody is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}")
    return [each for each in SUBJECTS if not only or {each.name, each.module, each.store} & set(only)]
