"""The size of the live tasks and of their indexes while many tasks pass through them.

A store has 2,000 ready tasks, 1,000 of the future and 500 that are held and renewed. Batches of 250 are enqueued, claimed and
ended, so that their number stays. A day of work is compressed: tasks pass about a hundred times as fast as at 100 per second, so
autovacuum looks every second instead of every minute; it has the settings of the tables otherwise. The size of the table and of
each index is sampled a hundred times. It is *bounded* if the median of the last quarter is at most 1.2 times that of the second
(the first is warm-up). Finished tasks are not removed.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from bench.benchmark import Figures, Found, say
from bench.figures import Aim, judged, median
from bench.growth import BATCH, QUEUE, insert
from bench.history import execute
from bench.results import table
from bench.servers import connect
from treadle.kernel.store.process import SystemClock
from treadle.kernel.store.queries import Renewal
from treadle.kernel.store.retention import Retention
from treadle.kernel.store.units import Finish, Unit
from treadle.stores import make_store

NAME = "churn"
TITLE = "Churn of live tasks"
STORES = ("postgresql",)
SAMPLES = 100
READY, FUTURE, HELD = 2_000, 1_000, 500

_SIZES = """
select c.relname as name, pg_relation_size(c.oid) as bytes
from pg_class as c
left join pg_index as i on i.indexrelid = c.oid
where coalesce(i.indrelid, c.oid) = 'tasks'::regclass
"""
_VACUUMS = "select autovacuum_count from pg_stat_user_tables where relid = 'tasks'::regclass"


@dataclass(frozen=True)
class Sizes:
    """The number of tasks that pass."""

    tasks: int = 2_000_000


SIZES = Sizes()
QUICK = Sizes(tasks=50_000)


async def measure(url: str, sizes: Sizes) -> Figures:
    """Let the tasks pass, and sample the sizes."""
    await _look_often(url)
    store = make_store(url, SystemClock())
    await store.open()
    queue_ids = list((await store.tasks.queue_ids([QUEUE])).values())
    await store.retention.prepare(Retention(store).rules)
    await insert(store, HELD)
    held = await store.tasks.claim(queue_ids, "holder", 3_600_000, HELD)
    await insert(store, FUTURE, delay=30 * 86_400_000)
    await insert(store, READY)
    line = store.servers.lease_connection()
    series: dict[str, list[int]] = {}
    began = time.perf_counter()
    for done in range(0, sizes.tasks, BATCH):
        await insert(store, BATCH)
        tasks = await store.tasks.claim(queue_ids, "bench", 60_000, BATCH)
        await store.commit([Unit(task.claim, Finish("succeed", "completed", result="{}")) for task in tasks])
        if done * SAMPLES // sizes.tasks != (done + BATCH) * SAMPLES // sizes.tasks:
            await asyncio.to_thread(line.renew, [Renewal(task.claim) for task in held], 3_600_000)
            for name, size in await execute(url, _SIZES):
                series.setdefault(name, []).append(size)
            if len(series["tasks"]) % 10 == 0:
                say(f"{done + BATCH:,} tasks, {sum(each[-1] for each in series.values()):,} bytes")
    took = time.perf_counter() - began
    await asyncio.to_thread(line.close)
    await store.close()
    series["all"] = [sum(sizes) for sizes in zip(*series.values(), strict=True)]
    quarters = {name: [median(each[at : at + SAMPLES // 4]) for at in (25, 75)] for name, each in series.items()}
    return {
        "tasks": sizes.tasks,
        "per_s": sizes.tasks / took,
        "vacuums": (await execute(url, _VACUUMS))[0][0],
        "quarters": quarters,
        "most": {name: max(each) for name, each in series.items()},
        "growth": quarters["all"][1] / quarters["all"][0],
        "worst_growth": max(last / second for second, last in quarters.values() if second),
    }


async def _look_often(url: str) -> None:
    connection = await connect(url)
    await connection.execute("alter system set autovacuum_naptime = '1s'")
    await connection.execute("select pg_reload_conf()")
    await connection.close()


AIMS = (
    Aim("the live table with its indexes, last quarter against the second", "growth", at_most=1.2),
    Aim("the same, the worst index", "worst_growth", at_most=1.2),
)


def show(found: Found) -> str:
    """The sizes of the table and of each index, and the aims."""
    each = next(iter(found.values()))
    rows = [
        ("all" if name == "all" else f"`{name}`", f"{second:,.0f}", f"{last:,.0f}", f"{each['most'][name]:,}")
        for name, (second, last) in sorted(each["quarters"].items(), key=lambda item: -item[1][0])
    ]
    head = ("bytes", "second quarter, median", "last quarter, median", "the most")
    text = f"{each['tasks']:,} tasks passed at {each['per_s']:,.0f} per second; autovacuum ran {each['vacuums']} times."
    return f"{text}\n\n{table(head, rows)}\n\n{judged(found, AIMS)}"
