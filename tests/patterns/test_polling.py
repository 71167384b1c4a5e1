"""Polling: growing delays, a deadline, and a job that is aborted when nobody waits for it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.patterns.programs import load

from treadle import RunCanceled
from treadle.testing import Environment


def polled(env_of: list[Environment], *, done_after: int | None) -> tuple[Any, list[float], list[str]]:
    """The program with a service whose job is done at a check; the times of the checks, and the aborted jobs."""
    program, checks, aborted = load("polling"), [], []
    program.FIRST, program.MAX_PAUSE = 1, 60

    async def check(job: str) -> dict[str, str]:
        checks.append(env_of[0].clock.now() / 1000)
        if len(checks) == 2:
            raise ConnectionError("the service is restarted")  # a check that fails is repeated, and no failure of the job
        return {"state": "done" if done_after is not None and len(checks) > done_after else "running"}

    async def abort(job: str) -> None:
        aborted.append(job)

    program.check, program.abort = check, abort
    return program, checks, aborted


async def test_the_delays_grow_up_to_their_limit():
    envs: list[Environment] = []
    program, checks, aborted = polled(envs, done_after=11)
    async with Environment(program.engine) as env:
        envs.append(env)
        run = await program.engine.start("export", {"table": "orders"})
        assert await env.result(run) == {"state": "done"}
    delays = [round(later - earlier, 3) for earlier, later in pairwise(checks)]
    assert delays == [1, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]  # the second one is the retry of a check
    assert not aborted


@pytest.mark.parametrize("by", ["deadline", "operator"])
async def test_a_deadline_or_an_operator_ends_the_polling_and_aborts_the_job_once(by: str):
    envs: list[Environment] = []
    program, checks, aborted = polled(envs, done_after=None)
    async with Environment(program.engine) as env:
        envs.append(env)
        run = await program.engine.start("export", {"table": "orders"}, deadline=100 if by == "deadline" else None)
        await env.advance(60)
        if by == "operator":
            await program.engine.runs.cancel(run.id, reason="not needed")
        with pytest.raises(RunCanceled):
            await env.result(run)
        polled_until = len(checks)
        await env.advance(60)
    assert len(aborted) == 1
    assert len(checks) == polled_until
