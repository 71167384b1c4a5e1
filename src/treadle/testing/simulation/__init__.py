"""Histories of whole engines, in one thread and one second, on a clock and a scheduler controlled by a seed."""

from treadle.testing.simulation.faults import Fault, Faults
from treadle.testing.simulation.loop import VirtualLoop
from treadle.testing.simulation.process import Process, VirtualClock
from treadle.testing.simulation.simulation import LEASE, Simulation
from treadle.testing.simulation.trace import Trace

__all__ = ["LEASE", "Fault", "Faults", "Process", "Simulation", "Trace", "VirtualClock", "VirtualLoop"]
