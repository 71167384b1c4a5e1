"""`Telemetry`."""

from treadle.agents.telemetry import *
