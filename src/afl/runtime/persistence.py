"""`PersistenceAPI`."""

from treadle.agents.api import *
