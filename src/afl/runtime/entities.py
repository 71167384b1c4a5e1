"""The records of tasks, servers and handlers."""

from treadle.agents.entities import *
