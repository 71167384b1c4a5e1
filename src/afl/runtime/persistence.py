"""`PersistenceAPI`."""

from treadle.agents.persistence import *
