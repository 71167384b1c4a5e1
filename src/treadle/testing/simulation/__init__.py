"""Histories of whole engines, in one thread and one second, on a clock and a scheduler controlled by a seed."""

from treadle.testing.simulation.process import Faults, Process, VirtualClock
from treadle.testing.simulation.simulation import LEASE, Simulation, SimulationTrace, VirtualLoop

__all__ = ["LEASE", "Faults", "Process", "Simulation", "SimulationTrace", "VirtualClock", "VirtualLoop"]
