"""`Evaluator`."""

from treadle.agents.evaluator import *
