"""Agents that poll: `AgentPoller.poll_once` on the loop of a history, in a greenlet that waits where a thread would block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from treadle import Engine
from treadle.agents import AgentPoller, Evaluator
from treadle.agents.persistence import Persistence
from treadle.model.errors import StoreError
from treadle.testing.simulation import Process
from treadle.workers.functions.sync import drive, wait

EVERY = 0.5
"""Seconds between two polls."""


class _OnLoop:
    """Stands for an engine with a loop of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __enter__(self) -> None: ...

    run = staticmethod(wait)


class _Store(Persistence):
    _loop_thread = lambda self: None  # type: ignore[assignment]  # noqa: E731


@contextmanager
def on_the_loop(lease: float) -> Iterator[None]:
    """Let agents run on a loop, with the lease of the history."""
    with ExitStack() as stack:
        stack.enter_context(patch("treadle.agents.connection.BlockingEngine", _OnLoop))
        for module in ("agent", "evaluator"):
            stack.enter_context(patch(f"treadle.agents.{module}.forbid_event_loop", lambda _: None))
        stack.enter_context(patch("treadle.agents.agent.LEASE_FOR", round(lease * 1000)))
        yield


async def poll(engine: Engine, process: Process, execute: Callable[[dict[str, Any]], Any]) -> None:
    """Handle the tasks of `pair.Do`, as long as the process lives."""

    def work() -> None:
        store = _Store(engine=engine)
        store._scripts = process.scripts()  # type: ignore[assignment]
        agent = AgentPoller(store, Evaluator(store))
        agent.register("pair.Do", lambda payload: wait(execute(payload)))
        while True:
            try:
                agent.poll_once()
            except StoreError as error:
                process.trace(f"polls: {error}")
            wait(asyncio.sleep(EVERY))

    await drive(work)
