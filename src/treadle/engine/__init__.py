"""The engine as Python programs use it: `Engine`, its blocking facade and the external polling loop."""

from treadle.engine.engine import Engine, engine_beside, twin_of, use_store
from treadle.engine.sync import BlockingEngine
from treadle.model.errors import NotOpen

__all__ = ["BlockingEngine", "Engine", "NotOpen", "engine_beside", "twin_of", "use_store"]
