"""What goes wrong in a history, and how often: drawn from the seed, so that each history has its own mix.

Some kinds of faults are left out of each history altogether: many faults at once hide one another.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """One way to go wrong."""

    CRASH_BEFORE = "crash before"
    """The process dies, and the store never hears of the call."""
    CRASH_AFTER = "crash after"
    """The store has done it, and the process dies without hearing the answer."""
    CRASH_AT = "crash at"
    """The process dies at one of the points that the kernel names (`kernel.store.crashpoints`)."""
    CRASH_OUTSIDE = "crash outside"
    """The process dies while a handler waits for the answer of a service, which has done what it was asked for."""
    REFUSED = "refused"
    """The store cannot be reached; nothing was done."""
    LOST_ANSWER = "lost answer"
    """The store has done it, and the connection breaks before it says so."""
    TWICE = "twice"
    """A commit arrives twice."""
    SLOW = "slow"
    """One call takes as long as a lease, before the store does it or after."""
    STALL = "stall"
    """The process stands still for longer than a lease, and then goes on as if nothing had happened."""
    DEAF = "deaf"
    """A signal is not heard."""
    FULL = "full"
    """For a while the disk is full: nothing can be written."""
    JUMP = "jump"
    """The clock of a process jumps."""
    OUTSIDE = "outside"
    """A service that a handler calls raises, before it has done what it was asked for or after."""


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
    Fault.JUMP: (0.0002, 0.002),
    Fault.OUTSIDE: (0.05, 0.5),
}
"""How often each kind happens per opportunity, from and to, in histories that have it."""


_CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_AT, Fault.CRASH_OUTSIDE)


@dataclass(slots=True)
class Faults:
    """The faults of one history; `rates` that are missing are 0. `lease` is in seconds."""

    dice: random.Random
    lease: float
    rates: dict[Fault, float] = field(default_factory=dict)
    skew: float = 0.0
    """Seconds by which the clocks of two processes differ at most."""
    crashes_left: int = 8
    jumps_left: int = 2
    on: bool = True

    @classmethod
    def draw(cls, dice: random.Random, lease: float, often: Collection[Fault] = ()) -> Faults:
        """A mix: each kind is in about half of the histories, and one in sixteen has none; those that are to come `often` do."""
        rates: dict[Fault, float] = {}
        if dice.random() >= 1 / 16:
            for fault, (low, high) in RATES.items():
                if dice.random() < 0.5:
                    rates[fault] = low * (high / low) ** dice.random()
        rates |= {fault: RATES[fault][1] for fault in often}
        skew = dice.choice((0.0, 0.0, lease / 10, lease / 3)) if rates else 0.0
        return cls(dice, lease, rates, skew)

    def happens(self, fault: Fault, weight: float = 1.0) -> bool:
        """Whether it goes wrong in that way now; `weight` is for moments at which it does so more often."""
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
        """Milliseconds by which the clock of a new process is off."""
        return round(self.dice.uniform(-self.skew, self.skew) * 1000)

    def latency(self) -> float:
        """Seconds that a message takes one way."""
        return self.dice.random() * 0.004

    def standstill(self) -> float:
        """Seconds for which a process stands still: mostly long enough to lose what it holds."""
        return self.dice.uniform(0.5, 3.0) * self.lease

    def long(self) -> float:
        """Seconds of a call that takes very long: sometimes longer than the lease."""
        return self.dice.uniform(0.05, 1.5) * self.lease
