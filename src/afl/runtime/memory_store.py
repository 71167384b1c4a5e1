"""`MemoryStore`."""

from treadle.agents import MemoryStore as MemoryStore
