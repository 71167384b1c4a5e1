"""Specialists for external services: one is polled, the other calls back."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.world import ServiceError, World

from treadle import Context, Engine, ExternalProductionHandle, Specialist


class Press(Specialist):
    """Submits until that is answered, and finds what it submitted."""

    def __init__(self, world: World, *, calls_back: bool) -> None:
        self._world = world
        self._calls_back = calls_back
        self._every = 30.0 if calls_back else 1.0

    async def start(self, payload: Any, ctx: Context) -> Any:
        """Submit the job, under its token."""
        world = self._world
        called = ctx.callback_token if self._calls_back else None
        while True:
            try:
                job_id = await world.ask(world.submit, payload["key"], ctx.dispatch_token, payload["takes"], called)
                return ExternalProductionHandle(job_id, self._every)
            except ServiceError:
                await asyncio.sleep(0.5)

    async def poll(self, external_job_id: str, ctx: Context) -> Any:
        """How far it is."""
        world = self._world
        if await world.ask(world.look, external_job_id):
            return {"printed": world.jobs[external_job_id].key}
        return ExternalProductionHandle(external_job_id, self._every * (0.5 + world.simulation.rng.random()))

    async def find(self, token: str) -> Any:
        """The job that was submitted under the token."""
        job_id = await self._world.ask(self._world.find, token)
        return None if job_id is None else ExternalProductionHandle(job_id, self._every)

    async def cancel(self, external_job_id: str) -> None:
        """It is not wanted any more."""
        await self._world.ask(self._world.stop, external_job_id)


def add_services(engine: Engine, world: World) -> None:
    """The two."""
    engine.specialist("sim.Print", Press(world, calls_back=False))
    engine.specialist("sim.Call", Press(world, calls_back=True))
