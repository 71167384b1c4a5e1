"""A stage for tests of external services: an engine on the store under test, whose polling loop they drive by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.contract.databases import Database, SqliteMemory, StoreClock

from treadle import Engine, ExternalPollingLoop
from treadle.api.external_jobs import ExternalJobDetail
from treadle.kernel.store.records import RecordFilter
from treadle.model.tasks import Task
from treadle.settings import Settings

SECOND = 1000


class Stage:
    """An engine on the store under test, whose loop a test drives by hand."""

    def __init__(self, engine: Engine, clock: StoreClock, database: Database) -> None:
        self.engine, self.clock, self.database = engine, clock, database
        self.loop = ExternalPollingLoop(engine)

    async def dispatch(self, name: str = "render", **options: Any) -> str:
        """A task that has been taken once; its id."""
        task = await self.engine.enqueue(name, {"shape": 7}, **options)
        await self.loop.tick()
        return task.id

    async def tick(self, seconds: float = 0) -> int:
        """Let so much time pass, and poll what is due then."""
        await self.clock.advance(round(seconds * SECOND))
        return await self.loop.tick()

    async def task(self, task_id: str) -> Task:
        return await self.engine.kernel.reads.get_task(task_id)

    async def job(self, task_id: str) -> ExternalJobDetail:
        return await self.engine.kernel.external_jobs.get(task_id)

    async def kinds(self, task_id: str) -> list[str]:
        return [event.kind for event in (await self.job(task_id)).events]

    async def no_record(self) -> bool:
        return await self.engine.kernel.store.records.list_matching(RecordFilter("external_production_record"), 10) == []

    def row(self) -> dict[str, Any]:
        """The one row of the view; nothing of a database that can only be looked at through its store."""
        if isinstance(self.database, SqliteMemory):
            return {}
        (row,) = self.database.rows("external_production_records_view")
        return row

    async def check(self) -> None:
        assert (await self.engine.kernel.verify()).problems == ()


@asynccontextmanager
async def open_stage(database: Database, clock: StoreClock) -> AsyncIterator[Stage]:
    """A stage; when it closes, the log has to explain every row, and events every record."""
    await database.open_store()  # so that the time of PostgreSQL stands still
    async with Engine(settings=Settings(), store_of=lambda url, clock: database.make_store()) as engine:
        made = Stage(engine, clock, database)
        yield made
        await made.check()
