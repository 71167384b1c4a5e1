"""Helpers shared by the dispatch tests: issues, and engines on every kind of database with a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.engines import url_of
from tests.limits import BOUND

from treadle import Engine
from treadle.kernel.telemetry.events import Emit, log_event
from treadle.settings import Settings
from treadle.testing import ManualClock


def issue(number: int = 7, **more: Any) -> dict[str, Any]:
    """An issue as GitHub sends it."""
    return {
        "id": 1000 + number,
        "number": number,
        "title": f"Bug {number}",
        "body": None,
        "labels": [{"name": "bug"}],
        "repository": {
            "id": 5,
            "name": "loom",
            "full_name": "weavers/loom",
            "owner": {"login": "weavers"},
            "clone_url": "https://example.org/weavers/loom.git",
            "default_branch": "main",
        },
        "installation": {"id": 9},
    } | more


class Scene:
    """A database, engines on it, and its time: `advance` moves what all of them see."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, folder: Path) -> None:
        self.kind = kind
        self.url = url_of(kind, request, folder)
        self.clock = ManualClock()
        self._engines: list[Engine] = []
        self._admin: psycopg.Connection[Any] | None = None
        if kind == "postgres":
            self._admin = request.getfixturevalue("postgres_admin")
            self._schema = str(request.getfixturevalue("postgres_schema"))
            self._admin.execute("insert into public.treadle_test_clocks values (%s, %s)", (self._schema, self.clock.now()))

    async def open_engine(self, emit: Emit = log_event) -> Engine:
        """A further engine on the same database; in memory there can be only one."""
        engine = Engine(self.url, settings=Settings(), clock=self.clock, emit=emit)
        await engine.open()
        self._engines.append(engine)
        if self._admin is not None:
            self._admin.execute(
                f'create or replace function "{self._schema}".treadle_now() returns bigint language sql stable parallel safe as '
                f"$$ select at from public.treadle_test_clocks where schema = '{self._schema}' $$"
            )
        return engine

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if self._admin is not None:
            values = (self.clock.now(), self._schema)
            self._admin.execute("update public.treadle_test_clocks set at = %s where schema = %s", values)

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()


async def until(true: Callable[[], object | Awaitable[object]], bound: float = BOUND) -> None:
    """Wait for what another task, thread or process does."""
    async with asyncio.timeout(bound):
        while True:
            answer = true()
            if await answer if isinstance(answer, Awaitable) else answer:
                return
            await asyncio.sleep(0.01)


async def sleeping(clock: ManualClock, count: int = 1) -> None:
    """Wait until somebody waits for the clock."""
    await until(lambda: clock.sleeping >= count)
