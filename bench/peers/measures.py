"""The measures: each asks a subject's processes to do something on a fresh store, and gives the figures of one round."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from bench.peers.catalog import Subject
from bench.peers.processes import SubjectProcess
from bench.peers.stores import Stores

PEER_TIMEOUT = 60.0
"""Seconds allowed for steps that are not measured."""
REST = 0.05
"""Seconds between two samples of latency: the worker waits again."""


class Bench:
    """Measures subjects; each measure on a store of its own."""

    def __init__(self, stores: Stores, peers: Path, ours: Path) -> None:
        self._stores, self._peers, self._ours = stores, peers, ours

    def drain(self, subject: Subject, name: str, tasks: int, workers: int, seconds: float) -> float:
        """Tasks of that name per second, from the first worker's start of work until the database says that all are done.

        Workers are loaded and connected before, and tasks are put in before. Who has not done them all after so many seconds is
        stopped, and counts with what is done then.
        """
        with self._stores.fresh(subject.store) as url, ExitStack() as stack:
            self._do(subject, url, "prepare")
            team = [stack.enter_context(self._start(subject, url, "work")) for _ in range(workers)]
            for each in team:
                each.heard("ready", PEER_TIMEOUT)
            self._do(subject, url, "fill", name, tasks)
            watcher = stack.enter_context(self._start(subject, url, "watch", name, float(seconds)))
            watcher.heard("ready", PEER_TIMEOUT)
            self._stores.settle(url)
            for each in (*team, watcher):
                each.go()
            begun = min(each.heard("started", PEER_TIMEOUT) for each in team)
            said = watcher.line("left", seconds + PEER_TIMEOUT)
            return (tasks - said["left"]) / (said["at"] - begun) * 1e9

    def enqueue(self, subject: Subject, seconds: float) -> tuple[float, float]:
        """Tasks per second put in by one caller, and by 32 at once."""
        with self._stores.fresh(subject.store) as url:
            self._do(subject, url, "prepare")
            self._stores.settle(url)
            with self._start(subject, url, "enqueue", float(seconds)) as process:
                one, many = (process.line("count", seconds + PEER_TIMEOUT) for _ in range(2))
            return one["count"] / one["seconds"], many["count"] / many["seconds"]

    def latency(self, subject: Subject, samples: int, seconds: float) -> list[float]:
        """Milliseconds from before an enqueue in one process to the start of the handler in another that had nothing to do.

        So many samples, or as many as there are in that time.
        """
        found: list[float] = []
        with self._stores.fresh(subject.store) as url:
            self._do(subject, url, "prepare")
            with self._start(subject, url, "serve") as worker, self._start(subject, url, "send") as sender:
                for each in (worker, sender):
                    each.heard("ready", PEER_TIMEOUT)
                worker.go()
                worker.heard("started", PEER_TIMEOUT)
                time.sleep(1)
                until = time.monotonic() + seconds
                for number in range(-3, samples):  # the first are not counted
                    sender.go()
                    sent = sender.heard("sent", PEER_TIMEOUT)
                    at = worker.heard("at", PEER_TIMEOUT)
                    if number >= 0:
                        found.append((at - sent) / 1e6)
                    if time.monotonic() > until:
                        break
                    time.sleep(REST)
        return found

    def idle(self, subjects: list[Subject], short: float, seconds: float) -> dict[str, float | Exception]:
        """Transactions per second of one idle worker of each on PostgreSQL, all at the same time, as the server counts them.

        The server learns what a connection did late, at the latest when it ends. So workers are ended after a short time, and
        others after that and so many seconds more; the difference of both counts: what start and end cost falls out.
        """
        with self._stores.without_autovacuum():
            first, second = (self._rest(subjects, each) for each in (short, short + seconds))
        found: dict[str, float | Exception] = {}
        for each in subjects:
            match first[each.name], second[each.name]:
                case (Exception() as error, _) | (_, Exception() as error):
                    found[each.name] = error
                case (few, brief), (many, long):
                    found[each.name] = (many - few) / (long - brief)
        return found

    def _rest(self, subjects: list[Subject], seconds: float) -> dict[str, tuple[int, float] | Exception]:
        """How many transactions each worker made, with its start and end, and for how long it was there."""
        found: dict[str, tuple[int, float] | Exception] = {}
        with ExitStack() as stack:
            resting: list[tuple[Subject, str, int, float, ExitStack]] = []
            for subject in subjects:
                try:
                    url = stack.enter_context(self._stores.fresh(subject.store))
                    self._do(subject, url, "prepare")
                    time.sleep(0.5)  # let the server count the ended connections
                    before, own = self._stores.transactions(url), stack.enter_context(ExitStack())
                    worker = own.enter_context(self._start(subject, url, "serve"))
                    worker.heard("ready", PEER_TIMEOUT)
                    worker.go()
                    worker.heard("started", PEER_TIMEOUT)
                    resting.append((subject, url, before, time.monotonic(), own))
                except Exception as error:
                    found[subject.name] = error
            time.sleep(seconds)
            lasted = {}
            for subject, _, _, begun, own in resting:
                own.close()
                lasted[subject.name] = time.monotonic() - begun
            time.sleep(1.5)
            for subject, url, before, _, _ in resting:
                found[subject.name] = (self._stores.transactions(url) - before, lasted[subject.name])
        return found

    def _start(self, subject: Subject, url: str, role: str, *arguments: object) -> SubjectProcess:
        python = self._ours if subject.module == "treadle" else self._peers
        return SubjectProcess(python, subject.module, url, role, *arguments)

    def _do(self, subject: Subject, url: str, role: str, *arguments: object) -> None:
        with self._start(subject, url, role, *arguments) as process:
            process.end(PEER_TIMEOUT)
