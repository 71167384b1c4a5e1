"""A worker that processes issues until Ctrl-C. If `solve` raises, the job is retried after 1, 2 and 4 s."""

from __future__ import annotations

import asyncio
import os
import signal

from treadle import Context, Engine
from treadle.dispatch import AgentCoordinator, TaskState


async def solve(task: TaskState, ctx: Context) -> dict[str, str]:
    issue = task.issue
    ctx.log(f"working on {issue.repository.full_name}#{issue.number}: {issue.title}")
    if task.attempts == 0:
        raise RuntimeError("the first idea did not pass the tests")
    return {"branch": f"fix-{issue.number}"}


async def main() -> None:
    async with Engine() as engine:
        coordinator = AgentCoordinator(engine)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, lambda: asyncio.ensure_future(coordinator.stop()))
        print("ready", flush=True)
        await coordinator.run(solve, worker_id=f"agent-{os.getpid()}")


asyncio.run(main())
