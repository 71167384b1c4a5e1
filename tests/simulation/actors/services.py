"""The external service that calls back when a job is done: until it is answered, and sometimes once more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.wire import Disconnected
from tests.simulation.world import Job

from treadle import Engine
from treadle.model.errors import CallbackRefused, NotFound, Refused, StoreError
from treadle.testing.simulation import Process

if TYPE_CHECKING:
    from tests.simulation.history import History


class CallingService:
    """It knows of each job whether the engine has heard of its end."""

    def __init__(self, history: History) -> None:
        self._history = history

    async def play(self, process: Process) -> None:
        """Look which jobs are done, and say so."""
        history = self._history
        while True:
            await asyncio.sleep(0.2 + history.rng.random())
            now = history.simulation.loop.time()
            for job in list(history.world.jobs.values()):
                if job.callback_token is not None and not job.told and not job.canceled and job.done_at <= now:
                    await self._tell(process, job)

    async def _tell(self, process: Process, job: Job) -> None:
        history, token = self._history, job.callback_token or ""
        result = {"printed": job.key}

        async def resolve(engine: Engine) -> str:
            return (await engine.kernel.external_jobs.resolve(token, result)).state

        try:
            for _ in range(history.rng.choice((1, 1, 2))):
                state = await history.wire.call(resolve)
                process.trace(f"{job.id} is done: {state}")
                history.world.acknowledged[token.partition(".")[0]] = result
                if job.told:
                    history.simulation.wrong(f"{job.id} could be resolved twice")
                job.told = True
        except NotFound:
            job.told = True  # it was pruned before that could be said
        except CallbackRefused as error:
            process.trace(f"{job.id} is done: {error}")
            job.told = True  # an operator has it done again, under another token
        except (Refused, StoreError, Disconnected) as error:
            job.told = job.told or (isinstance(error, Refused) and error.code == "external_already_resolved")
            process.trace(f"{job.id} is done: {error if isinstance(error, Refused) else type(error).__name__}")
