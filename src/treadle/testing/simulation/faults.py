"""The faults of a history and their rates, drawn from the seed, so that each history has its own mix.

Each history omits some kinds entirely, because many concurrent faults hide one another.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """A kind of fault."""

    CRASH_BEFORE = "crash before"
    """The process dies, and the store never receives the call."""
    CRASH_AFTER = "crash after"
    """The store has executed the call, and the process dies before the answer."""
    CRASH_AT = "crash at"
    """The process dies at a named crash point of the kernel (`kernel.store.crashpoints`)."""
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


RATES: Mapping[Fault, tuple[float, float]] = {
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


@dataclass(slots=True)
class Faults:
    """The faults of one history; missing `rates` are 0. `lease` is in seconds."""

    dice: random.Random
    lease: float
    rates: dict[Fault, float] = field(default_factory=dict)
    skew: float = 0.0
    """Maximum difference between the clocks of two processes, in seconds."""
    crashes_left: int = 8
    jumps_left: int = 2
    on: bool = True

    @classmethod
    def draw(cls, dice: random.Random, lease: float, often: Collection[Fault] = ()) -> Faults:
        """Draw a mix: each kind is in about half of the histories, and one in sixteen has none; the kinds in `often` are always
        included."""
        rates: dict[Fault, float] = {}
        if dice.random() >= 1 / 16:
            for fault, (low, high) in RATES.items():
                if dice.random() < 0.5:
                    rates[fault] = low * (high / low) ** dice.random()
        rates |= {fault: RATES[fault][1] for fault in often}
        skew = dice.choice((0.0, 0.0, lease / 10, lease / 3)) if rates else 0.0
        return cls(dice, lease, rates, skew)

    def happens(self, fault: Fault, weight: float = 1.0) -> bool:
        """Whether the fault happens now; `weight` raises the rate at some moments."""
        rate = self.rates.get(fault)
        if not rate or not self.on or self.dice.random() >= rate * weight:
            return False
        if fault in _CRASHES:
            if not self.crashes_left:
                return False
            self.crashes_left -= 1
        elif fault is Fault.JUMP:
            if not self.jumps_left:
                return False
            self.jumps_left -= 1
        return True

    def offset(self) -> int:
        """Return the clock error of a new process, in milliseconds."""
        return round(self.dice.uniform(-self.skew, self.skew) * 1000)

    def latency(self) -> float:
        """Return the one-way latency of a message, in seconds."""
        return self.dice.random() * 0.004

    def standstill(self) -> float:
        """Return the seconds for which a process stalls: usually long enough to lose its leases."""
        return self.dice.uniform(0.5, 3.0) * self.lease

    def long(self) -> float:
        """Return the seconds of a very slow call: sometimes longer than the lease."""
        return self.dice.uniform(0.05, 1.5) * self.lease
