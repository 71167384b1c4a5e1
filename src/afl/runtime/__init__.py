"""The classes of the agent SDK."""

from afl.runtime.mongo_store import MongoStore as MongoStore
from treadle.agents import *
from treadle.agents import __getattr__ as __getattr__
