"""`RegistryRunner`."""

from treadle.agents.registry_runner import *
