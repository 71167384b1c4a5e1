"""One fault per history: it begins a moment after the first piece of work has, and ends by itself."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.pairs.case import Fault
from tests.simulation.faults import RandomFaults

from treadle.model.errors import StoreUnavailable
from treadle.testing.simulation import Process, Simulation

AFTER = 0.3
"""Seconds after the start of the first execution."""


class OneFault(RandomFaults):
    """The fault of a pair."""

    def __init__(self, rng: random.Random, lease: float) -> None:
        super().__init__(rng, lease)
        self.fault = Fault.KILLED
        self.victim: Process | None = None
        """The process that it hits: the one that began the first execution."""
        self.stop_gracefully: Callable[[Process], None] = lambda process: process.crash("stops")
        self._commits_to_lose = 0
        self._until = 0.0

    def began(self, process: Process, after: float = AFTER) -> None:
        """Take the process as the victim if it is the first; the fault begins `after` some seconds."""
        if self.victim is None:
            self.victim = process
            process.simulation.loop.call_later(after, self._begin, process)

    def _begin(self, victim: Process) -> None:
        now = victim.simulation.loop.time()
        self.counts[self.fault] += 1
        victim.trace(f"!!! {self.fault}")
        match self.fault:
            case Fault.KILLED:
                victim.crash("is killed")
            case Fault.FROZEN:
                victim.stall(2 * self.lease)
            case Fault.LEASE_LOST:
                self._until = now + 2 * self.lease
            case Fault.COMMIT_LOST:
                self._commits_to_lose = 2
            case Fault.CUT:
                self._until = now + self.lease / 6
            case Fault.RESTART:
                self.stop_gracefully(victim)

    def before(self, process: Process, name: str) -> None:
        if process.simulation.loop.time() >= self._until:
            return
        if self.fault is Fault.CUT or (self.fault is Fault.LEASE_LOST and process is self.victim and name == "renew"):
            raise StoreUnavailable("The connection is cut.")

    def after(self, process: Process, name: str) -> None:
        if name == "commit" and process is self.victim and self._commits_to_lose:
            self._commits_to_lose -= 1
            raise StoreUnavailable("The connection broke before the answer came.")


class PairSimulation(Simulation):
    """A simulation with one fault."""

    faults: OneFault

    def __init__(self, seed: int, fault: Fault) -> None:
        super().__init__(seed, faults=OneFault)
        self.faults.fault = fault
