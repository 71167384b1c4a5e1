"""The coordinator of an engine, shared by all interfaces: it remembers the jobs that their callers hold, and stops with the
engine."""

from __future__ import annotations

from treadle.dispatch.coordinator import AgentCoordinator
from treadle.engine import Engine

_coordinators: dict[int, AgentCoordinator] = {}


def coordinator_of(engine: Engine) -> AgentCoordinator:
    """Return the engine's coordinator, with the default configuration; created on first use."""
    found = _coordinators.get(id(engine))
    if found is None:
        found = _coordinators[id(engine)] = AgentCoordinator(engine)

        async def stop() -> None:
            await _coordinators.pop(id(engine)).stop()

        engine.kernel.before_close.append(stop)
    return found
