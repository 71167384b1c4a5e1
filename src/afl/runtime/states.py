"""`StepState`."""

from treadle.agents import StepState as StepState
