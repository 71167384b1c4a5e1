"""The programs of docs/patterns, loaded as a worker loads them, and the outside world in which the crash test runs them."""

from __future__ import annotations

import asyncio
import importlib.util
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from treadle import Engine
from treadle.engine import use_store
from treadle.testing import Environment, ManualClock

FOLDER = Path(__file__).parents[2] / "docs/snippets/patterns"

world: ContextVar[list[Any]] = ContextVar("world")
"""The effects of the process that executes this code; a crash test sets it in its `setup`."""


def load(name: str) -> Any:
    """Return a new module of the program, with an engine of its own."""
    spec = importlib.util.spec_from_file_location(f"pattern_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def source(name: str) -> list[tuple[str, str]]:
    """Return an AFL program as sources."""
    return [(name, (FOLDER / name).read_text("utf-8"))]


class Deployment(Environment):
    """An engine on a store that several deployments share; on SQLite also with their clock (PostgreSQL has its own)."""

    def __init__(self, engine: Engine, url: str, clock: ManualClock | None = None, **options: Any) -> None:
        super().__init__(engine, **options)
        self._url, self._parts = url, {} if clock is None else {"clock": clock}
        self.clock = clock or self.clock

    def move_in(self) -> None:
        settings = replace(self.engine.kernel.settings, store=self._url)
        self._former = use_store(self.engine, self._url, settings, **self._parts)


async def drain_together(*deployments: Deployment) -> None:
    """Run everything that is due now on a worker of each deployment."""
    hosts = [each.make_host() for each in deployments]
    for host in hosts:
        await host.start()
    try:
        while True:
            await asyncio.gather(*(host.worker.drained() for host in hosts))
            if not (await deployments[0].engine.kernel.store.tasks.wake(1000)).count:
                return
    finally:
        for host in hosts:
            await host.stop()
