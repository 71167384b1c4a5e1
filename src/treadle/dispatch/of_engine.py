"""The coordinator of an engine: one for all who come through interfaces, which remembers what they hold; stopped with it."""

from __future__ import annotations

from treadle.dispatch.coordinator import AgentCoordinator
from treadle.engine import Engine

_coordinators: dict[int, AgentCoordinator] = {}


def coordinator_of(engine: Engine) -> AgentCoordinator:
    """The engine's coordinator, with the configuration of the specification; made when it is first asked for."""
    found = _coordinators.get(id(engine))
    if found is None:
        found = _coordinators[id(engine)] = AgentCoordinator(engine)

        async def stop() -> None:
            await _coordinators.pop(id(engine)).stop()

        engine.kernel.before_close.append(stop)
    return found
