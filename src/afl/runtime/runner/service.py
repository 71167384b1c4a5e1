"""`RunnerService`."""

from treadle.agents.service import *
