"""`RegistryRunner`."""

from treadle.agents.poller import *
