"""A process of the tests: `python -m tests.dispatch.child MODE URL [KERNEL]` takes one job, says its id, and hangs until killed.

Modes: `dequeue` calls the coordinator, `run` runs a handler that never ends. With a KERNEL it is a process of another machine.
"""

from __future__ import annotations

import asyncio
import sys

from tests.kernels import move_to

from treadle import Engine
from treadle.dispatch import AgentCoordinator, TaskState


def tell(task: TaskState) -> None:
    sys.stdout.write(f"{task.id} {task.metadata['worker_id']}\n")
    sys.stdout.flush()


async def hang(task: TaskState) -> None:
    tell(task)
    await asyncio.Event().wait()


async def main(mode: str, url: str, kernel: str | None = None) -> None:
    if kernel is not None:
        move_to(kernel)
    async with Engine(url) as engine:
        coordinator = AgentCoordinator(engine)
        if mode == "run":
            await coordinator.run(hang, worker_id="doomed")
        task = await coordinator.dequeue("doomed")
        assert task is not None
        await hang(task)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
