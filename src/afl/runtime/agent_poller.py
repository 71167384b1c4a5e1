"""`AgentPoller`."""

from treadle.agents.poller import *
