"""The limit of everything that tests wait for."""

BOUND = 300.0
"""Seconds after which a wait has failed: only a hang takes that long, however busy the machine is."""
