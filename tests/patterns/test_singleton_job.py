"""Singleton job: concurrent starts give one execution."""

from __future__ import annotations

import asyncio

from tests.patterns.programs import Deployment, drain_together, load


async def test_concurrent_starts_of_two_processes_are_one_execution(shared_url: str):
    ran: list[bool] = []
    programs = [load("singleton_job") for _ in range(2)]
    for program in programs:

        async def sleep(_: float) -> None:
            ran.append((await programs[0].request_rebuild()).created)  # while it runs

        program.asyncio = type("asyncio", (), {"sleep": staticmethod(sleep)})
    first, second = (Deployment(program.engine, shared_url) for program in programs)
    async with first, second:
        tasks = await asyncio.gather(*(program.request_rebuild() for program in programs * 3))
        assert len({task.id for task in tasks}) == 1
        assert sum(task.created for task in tasks) == 1
        await drain_together(first, second)
        assert await second.engine.result(tasks[0]) == {"documents": 1_234}
        assert ran == [False] * 3  # one execution
        again = await programs[0].request_rebuild()
        assert again.created
        await drain_together(second)
    assert len(ran) == 6
