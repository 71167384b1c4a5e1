"""For tests of Treadle and of what is built on it: a clock that one moves, ids that repeat."""

from treadle.testing.clock import ManualClock
from treadle.testing.ids import SeededIds

__all__ = ["ManualClock", "SeededIds"]
