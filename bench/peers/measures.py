"""The measures: each asks a subject's processes to do something on a fresh store, and gives the figures of one round."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from bench.peers.catalog import Subject
from bench.peers.processes import SubjectProcess
from bench.peers.stores import Stores

PATIENCE = 60.0
"""Seconds for what is not measured."""


class Bench:
    """Measures subjects; each measure on a store of its own."""

    def __init__(self, stores: Stores, pythons: dict[str, Path]) -> None:
        self._stores, self._pythons = stores, pythons

    def drain(self, subject: Subject, tasks: int, workers: int, seconds: float) -> dict[str, float]:
        """No-op tasks per second, from the first worker's start of work until the database says that all are done.

        Who has not done them all after so many seconds is stopped, and counts with what is done.
        """
        tasks = min(tasks, subject.most)
        with self._stores.fresh(subject.store) as url, ExitStack() as stack:
            self._do(subject, url, "prepare")
            team = [stack.enter_context(self._start(subject, url, "work")) for _ in range(workers)]
            for each in team:
                each.heard("ready", PATIENCE)
            self._do(subject, url, "fill", tasks)
            watcher = stack.enter_context(self._start(subject, url, "watch", seconds))
            watcher.heard("ready", PATIENCE)
            self._stores.settle(url)
            for each in (*team, watcher):
                each.go()
            begun = min(each.heard("started", PATIENCE) for each in team)
            said = watcher.line("left", seconds + PATIENCE)
            return {"drained": tasks - said["left"], "per_s": (tasks - said["left"]) / (said["at"] - begun) * 1e9}

    def _start(self, subject: Subject, url: str, role: str, *arguments: object) -> SubjectProcess:
        return SubjectProcess(self._pythons.get(subject.module, self._pythons["peers"]), subject.module, url, role, *arguments)

    def _do(self, subject: Subject, url: str, role: str, *arguments: object) -> None:
        with self._start(subject, url, role, *arguments) as process:
            process.end(PATIENCE)
