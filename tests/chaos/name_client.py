"""A process that stores a task for each line of its input, as often as it takes: `python -m tests.chaos.name_client URL`.

It prints the id of each task that was acknowledged.
"""

from __future__ import annotations

import asyncio
import sys

from treadle.kernel.store.process import SystemClock, SystemIds
from treadle.kernel.store.units import Unit, Verdict
from treadle.model.errors import StoreUnavailable
from treadle.model.tasks import NewTask
from treadle.stores.postgres import PostgresStore
from treadle_conformance.task_steps import WORK

AGAIN = 0.05


async def store_tasks(url: str) -> None:
    """Until the input ends."""
    clock = SystemClock()
    ids, store = SystemIds(), PostgresStore(url, clock=clock)
    await store.open()
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        task = NewTask(id=ids.new_id(), queue=WORK)
        while True:
            try:
                (answer,) = await store.commit([Unit(tasks=(task,))])
                break
            except StoreUnavailable as error:
                print(error, file=sys.stderr, flush=True)
                await asyncio.sleep(AGAIN)
        assert answer.verdict is Verdict.DONE
        print(task.id, flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(store_tasks(sys.argv[1]))
