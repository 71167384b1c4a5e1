"""Random faults of histories: which kinds happen, and when, follows from the seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection
from enum import StrEnum
from functools import partial

from treadle.model.errors import StoreBusy, StoreFull, StoreUnavailable
from treadle.testing.simulation import Faults, Process, Simulation
from treadle.testing.simulation.store import is_read


class Fault(StrEnum):
    """A kind of fault."""

    CRASH_BEFORE = "crash before"
    """The process dies, and the store never receives the call."""
    CRASH_AFTER = "crash after"
    """The store has executed the call, and the process dies before the answer."""
    CRASH_AT = "crash at"
    """The process dies at a named failpoint of the kernel (`kernel.store.process`)."""
    CRASH_OUTSIDE = "crash outside"
    """The process dies while a handler waits for a service, which has done the work."""
    REFUSED = "refused"
    """The store is unreachable; nothing was done."""
    LOST_ANSWER = "lost answer"
    """The store has executed the call, and the connection breaks before the answer."""
    TWICE = "twice"
    """A commit arrives twice."""
    SLOW = "slow"
    """A call takes as long as a lease, before or after the store executes it."""
    STALL = "stall"
    """The process stops for longer than a lease, and then continues."""
    DEAF = "deaf"
    """A signal is lost."""
    FULL = "full"
    """The disk is full for a while: nothing can be written."""
    PRESUMED_DEAD = "presumed dead"
    """A process takes another one for dead that is alive, and frees its work."""
    JUMP = "jump"
    """The clock of a process jumps."""
    OUTSIDE = "outside"
    """A service called by a handler raises, before or after it has done the work."""


RATES: dict[Fault, tuple[float, float]] = {
    Fault.CRASH_BEFORE: (0.0005, 0.01),
    Fault.CRASH_AFTER: (0.0005, 0.01),
    Fault.CRASH_AT: (0.001, 0.03),
    Fault.CRASH_OUTSIDE: (0.03, 0.3),
    Fault.REFUSED: (0.002, 0.1),
    Fault.LOST_ANSWER: (0.002, 0.1),
    Fault.TWICE: (0.01, 0.3),
    Fault.SLOW: (0.001, 0.02),
    Fault.STALL: (0.002, 0.01),
    Fault.DEAF: (0.1, 1.0),
    Fault.FULL: (0.0005, 0.003),
    Fault.PRESUMED_DEAD: (0.001, 0.03),
    Fault.JUMP: (0.0002, 0.002),
    Fault.OUTSIDE: (0.05, 0.5),
}
"""The range of rates of each kind per opportunity, in histories that have it."""


_CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_AT, Fault.CRASH_OUTSIDE)


class RandomFaults(Faults):
    """The faults of one history; missing `rates` are 0."""

    def __init__(self, rng: random.Random, lease: float, rates: dict[Fault, float] | None = None, skew: float = 0.0) -> None:
        """`skew` is the maximum difference between the clocks of two processes, in seconds."""
        super().__init__(rng, lease)
        self.rates, self.skew = rates or {}, skew
        self.on = True
        self.counts: Counter[str] = Counter()
        """Injected faults by kind."""
        self.presumed: set[tuple[int, int]] = set()
        """Pairs of pids: the first took the second wrongly for dead."""
        self._crashes_left, self._jumps_left = 8, 2
        self._full_until = 0.0

    @classmethod
    def draw(cls, rng: random.Random, lease: float, often: Collection[Fault] = ()) -> RandomFaults:
        """Draw a mix: each kind is in about half of the histories, and one in sixteen has none; the kinds in `often` are always
        included."""
        rates: dict[Fault, float] = {}
        if rng.random() >= 1 / 16:
            for fault, (low, high) in RATES.items():
                if rng.random() < 0.5:
                    rates[fault] = low * (high / low) ** rng.random()
        rates |= {fault: RATES[fault][1] for fault in often}
        skew = rng.choice((0.0, 0.0, lease / 10, lease / 3)) if rates else 0.0
        return cls(rng, lease, rates, skew)

    def happens(self, fault: Fault, weight: float = 1.0) -> bool:
        """Whether the fault happens now; `weight` raises the rate at some moments."""
        rate = self.rates.get(fault)
        if not rate or not self.on or self.rng.random() >= rate * weight:
            return False
        if fault in _CRASHES:
            if not self._crashes_left:
                return False
            self._crashes_left -= 1
        elif fault is Fault.JUMP:
            if not self._jumps_left:
                return False
            self._jumps_left -= 1
        return True

    def heal(self, simulation: Simulation) -> None:
        """Stop injecting faults: clocks are correct, the disk has room. Stalled processes stay stalled for a while."""
        self.stop()
        self.skew = self._full_until = 0.0
        for process in simulation.alive:
            process.clock.offset = 0
        simulation.trace.add(simulation.loop.time(), "", "=== no more faults")

    def stop(self) -> None:
        """Nothing goes wrong from now on."""
        self.on = False

    def standstill(self) -> float:
        """Return the seconds for which a process stalls: usually long enough to lose its leases."""
        return self.rng.uniform(0.5, 3.0) * self.lease

    def long(self) -> float:
        """Return the seconds of a very slow call: sometimes longer than the lease."""
        return self.rng.uniform(0.05, 1.5) * self.lease

    # the points at which something may go wrong

    def offset(self) -> int:
        return round(self.rng.uniform(-self.skew, self.skew) * 1000)

    async def delay_call(self, process: Process, name: str) -> None:
        await self._delay(process, name)
        if self.happens(Fault.STALL, 20.0 if name == "commit" else 1.0):  # there it is most likely to be overtaken
            self._note(Fault.STALL, process, name)
            process.stall(self.standstill())

    async def delay_answer(self, process: Process, name: str) -> None:
        await self._delay(process, f"answer of {name}")

    async def _delay(self, process: Process, what: str) -> None:
        if self.happens(Fault.SLOW):
            self._note(Fault.SLOW, process, what)
            await asyncio.sleep(self.long())

    def before(self, process: Process, name: str) -> None:
        self._crash(Fault.CRASH_BEFORE, process, name)
        if self.happens(Fault.REFUSED):
            self._note(Fault.REFUSED, process, name)
            raise self.rng.choice((StoreUnavailable, StoreBusy))("The store cannot be reached.")
        if is_read(name):
            return
        now = process.simulation.loop.time()
        if self.happens(Fault.FULL):
            self._note(Fault.FULL, process, name)
            self._full_until = now + self.long()
        if now < self._full_until:
            raise StoreFull("The disk is full.")

    def after(self, process: Process, name: str) -> None:
        self._crash(Fault.CRASH_AFTER, process, name)
        if self.happens(Fault.LOST_ANSWER):
            self._note(Fault.LOST_ANSWER, process, name)
            raise StoreUnavailable("The connection broke before the answer came.")

    def repeats(self, process: Process, name: str) -> bool:
        repeated = name == "commit" and self.happens(Fault.TWICE)
        if repeated:
            self._note(Fault.TWICE, process, name)
        return repeated

    def at(self, process: Process, point: str) -> None:
        self._crash(Fault.CRASH_AT, process, point)

    def after_call(self, process: Process) -> None:
        if self.happens(Fault.JUMP):
            self.counts[Fault.JUMP] += 1
            process.clock.offset += round(self.rng.uniform(-1.5, 1.5) * self.lease * 1000)
            process.trace(f"=== its clock jumps: off by {process.clock.offset} ms")

    def loses_signal(self) -> bool:
        lost = self.happens(Fault.DEAF)
        if lost:
            self.counts[Fault.DEAF] += 1
        return lost

    def presumes_dead(self, process: Process, pid: int) -> bool:
        presumed = self.happens(Fault.PRESUMED_DEAD)
        if presumed:
            self.presumed.add((process.pid, pid))
            self._note(Fault.PRESUMED_DEAD, process, f"process {pid}")
        return presumed

    def _crash(self, fault: Fault, process: Process, what: str) -> None:
        if self.happens(fault):
            self.counts[fault] += 1
            process.crash(f"{fault} {what}")
            raise asyncio.CancelledError

    def _note(self, fault: Fault, process: Process, what: str) -> None:
        self.counts[fault] += 1
        process.trace(f"!!! {fault}: {what}")


class FaultySimulation(Simulation):
    """A simulation with random faults."""

    faults: RandomFaults

    def __init__(self, seed: int, often: Collection[Fault] = ()) -> None:
        super().__init__(seed, faults=partial(RandomFaults.draw, often=often))
