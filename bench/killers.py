"""What kills queues (D16), in figures: `python -m bench.killers [--store URL] [--rows N] [--json]`.

The cost per task of claiming tasks (`_us`) and of claiming and ending them (`_both_us`), in batches of 250, straight at the
store: on an empty store, and then with a
million future rows in the same lane and priority, with a million ready rows of a name that nobody serves, with an old
snapshot held open since before 100,000 tasks were taken, and with 10,000 running tasks whose leases are renewed meanwhile.
Ratios are to the empty store, measured in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.servers import temporary_store
from treadle.kernel.lookups import Renewal
from treadle.kernel.ports import Store
from treadle.kernel.system import SystemClock, SystemIds
from treadle.kernel.units import Finish, Unit
from treadle.model.names import HANDLER, Lane
from treadle.model.tasks import NewTask
from treadle.stores import make_store

LANE = Lane("default", HANDLER, "default", "bench.mine")
OTHER = Lane("default", HANDLER, "default", "bench.nobody")
IDS = SystemIds()
BATCH = 250


async def insert(store: Store, count: int, lane: Lane = LANE, wait_for: int = 0) -> None:
    """So many tasks, in batches."""
    for start in range(0, count, 2000):
        rows = tuple(NewTask(id=IDS.new_id(), lane=lane, wait_for=wait_for) for _ in range(min(2000, count - start)))
        await store.commit([Unit(tasks=rows)])


async def drain(store: Store, count: int) -> tuple[float, float]:
    """Microseconds per task of claiming so many tasks that are there, and of claiming and ending them."""
    lane_ids = list((await store.lane_ids([LANE])).values())
    done = 0
    claiming = 0.0
    started = time.perf_counter()
    while done < count:
        asked = time.perf_counter()
        tasks = await store.claim(lane_ids, "bench", 60_000, BATCH)
        claiming += time.perf_counter() - asked
        if not tasks:
            raise SystemExit(f"nothing to take after {done} of {count}")
        await store.commit([Unit(task.claim, Finish("succeed", "completed", result="{}")) for task in tasks])
        done += len(tasks)
    return claiming / count * 1e6, (time.perf_counter() - started) / count * 1e6


async def cost(store: Store, count: int, rounds: int = 5) -> tuple[float, float]:
    """The best of several rounds: what the work costs when nothing else disturbs."""
    measured = []
    for _ in range(rounds):
        await insert(store, count)
        measured.append(await drain(store, count))
    return min(claim for claim, _ in measured), min(both for _, both in measured)


@asynccontextmanager
async def old_snapshot(url: str) -> AsyncIterator[None]:
    """A reader that began before and does not end."""
    if url.startswith("sqlite"):
        import apsw

        reader = apsw.Connection(url.removeprefix("sqlite:///"))
        reader.execute("begin")
        reader.execute("select count(*) from lanes").fetchall()
        yield
        reader.execute("rollback")
        reader.close()
        return
    import asyncpg

    reader = await asyncpg.connect(url)
    transaction = reader.transaction(isolation="repeatable_read", readonly=True)
    await transaction.start()
    await reader.fetchval("select count(*) from treadle.lanes")
    yield
    await transaction.rollback()
    await reader.close()


@asynccontextmanager
async def renewing(store: Store, running: int) -> AsyncIterator[None]:
    """So many running tasks whose leases are renewed by a thread, each every 20 s: a slice of them every second."""
    await insert(store, running)
    lane_ids = list((await store.lane_ids([LANE])).values())
    held = []
    while len(held) < running:
        held += await store.claim(lane_ids, "holder", 600_000, 1000)
    ended = threading.Event()

    def keep() -> None:
        line = store.lease_line()
        turn = 0
        while not ended.wait(1.0):
            line.renew([Renewal(task.claim) for task in held[turn::20]], 600_000)
            turn = (turn + 1) % 20
        line.close()

    thread = threading.Thread(target=keep)
    thread.start()
    yield
    ended.set()
    await asyncio.to_thread(thread.join)


async def measure(url: str, rows: int, count: int) -> dict[str, Any]:
    """All cases for one store."""
    store = make_store(url, SystemClock())
    await store.open()
    figures: dict[str, Any] = {"store": url.partition("://")[0], "rows": rows}
    await cost(store, count, 1)  # warm
    costs = {"empty": await cost(store, count)}
    await insert(store, rows, LANE, wait_for=30 * 24 * 3600 * 1000)
    costs["future"] = await cost(store, count)
    await insert(store, rows, OTHER)
    costs["unserved"] = await cost(store, count)
    async with old_snapshot(url):
        await insert(store, 100_000)
        await drain(store, 100_000)
        await asyncio.sleep(11)
        costs["old_snapshot"] = await cost(store, count)
    async with renewing(store, 10_000):
        costs["renewals"] = await cost(store, count)
    for name, (claim, both) in costs.items():
        figures[f"{name}_us"], figures[f"{name}_both_us"] = claim, both
        figures[f"{name}_ratio"] = claim / costs["empty"][0]
    await store.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="store URL; default: a temporary SQLite file, then a temporary PostgreSQL")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    all_figures = []
    for kind in [arguments.store] if arguments.store else ["sqlite", "postgresql"]:
        if arguments.store:
            all_figures.append(asyncio.run(measure(kind, arguments.rows, arguments.tasks)))
        else:
            with temporary_store(kind) as url:
                all_figures.append(asyncio.run(measure(url, arguments.rows, arguments.tasks)))
    if arguments.json:
        print(json.dumps(all_figures, indent=2))
        return
    for figures in all_figures:
        print(f"\n{figures.pop('store')}")
        for name, value in figures.items():
            print(f"  {name:22} {value:12,.2f}")


if __name__ == "__main__":
    main()
