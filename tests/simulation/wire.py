"""The network between those who are outside and the servers: a call is done by one of them, or perhaps done, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.simulation.faults import Fault, FaultySimulation

from treadle import Engine
from treadle.testing.simulation import Process
from treadle.testing.simulation.process import current_process

T = TypeVar("T")

REQUEST_TIMEOUT = 90.0
"""Seconds after which a caller gives up on an answer."""


class Disconnected(Exception):
    """There is no answer: nobody knows whether it was done."""


class Wire:
    """A load balancer with HTTP servers: any server that is up answers, in its own process."""

    def __init__(self, simulation: FaultySimulation) -> None:
        self._simulation = simulation
        self._up: dict[Process, Engine] = {}

    def serve(self, process: Process, engine: Engine) -> None:
        """From now on that process answers, for as long as it lives."""
        self._up[process] = engine

    def leave(self, process: Process) -> None:
        """It answers no more."""
        self._up.pop(process, None)

    async def call(self, what: Callable[[Engine], Awaitable[T]]) -> T:
        """Let a server do it; `Disconnected` where that is not known to have happened. What it raises there is raised here."""
        simulation, caller = self._simulation, current_process()
        faults = simulation.faults
        assert caller is not None
        await asyncio.sleep(faults.latency())
        await caller.pass_gate()
        up = [process for process in self._up if process.alive]
        if not up or faults.happens(Fault.REFUSED):
            raise Disconnected("No server answers.")
        server = simulation.rng.choice(up)
        served = server.spawn(_answer(what, self._up[server]))
        try:
            await asyncio.wait([served], timeout=REQUEST_TIMEOUT)
        except asyncio.CancelledError:
            if simulation.rng.random() < 0.5:  # the server sees that the caller has gone, or never does
                served.cancel()
            raise
        if faults.happens(Fault.CRASH_OUTSIDE):
            faults.counts[Fault.CRASH_OUTSIDE] += 1
            caller.crash("crashes before it hears the answer")
            raise asyncio.CancelledError
        if not served.done() or served.cancelled() or faults.happens(Fault.LOST_ANSWER):
            served.cancel()
            raise Disconnected("The server is gone, or its answer is.")
        await asyncio.sleep(faults.latency())
        await caller.pass_gate()
        answer = served.result()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def _answer(what: Callable[[Engine], Awaitable[T]], engine: Engine) -> T | Exception:
    """The result or the error; errors are answers too, as the caller may have gone."""
    try:
        return await what(engine)
    except Exception as error:
        return error
