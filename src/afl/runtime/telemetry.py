"""`Telemetry`."""

from treadle.agents.evaluator import *
