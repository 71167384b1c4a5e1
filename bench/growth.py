"""The cost of a task as the store grows (D16), and of a foreach item as the number of items grows.

*Claim* and *claim and end*: microseconds per task in batches of 250, measured on the store itself. Two databases are measured
alternately: one contains only the tasks of the round and the history of earlier rounds. The other gradually gets the stated
number of future tasks in the same queue and priority; as many ready tasks of a name that no worker serves; a snapshot held
open since before 100,000 tasks were claimed; and 10,000 running tasks whose leases are renewed. Ratios are computed per
round, and their median is reported; `nothing yet` is the second database before any of this, and shows the noise.

*Foreach*: one run over 100, 1,000 and 10,000 items with no-op handlers, in microseconds per item, measured alternately; small
runs are repeated within a round, and their median is used. One process starts the run, executes it and waits for it; its CPU
time is reported, too. Then two worker processes share the run.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import LABELS, Aim, Row, by_store, judged, median, ratios, spread
from bench.foreach import GROWTHS, measure_foreach
from bench.results import table
from bench.servers import connect, second_store
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import SystemClock, SystemIds
from treadle.kernel.store.queries import Renewal
from treadle.kernel.store.units import Finish, Unit
from treadle.model.names import HANDLER, QueueKey
from treadle.model.tasks import NewTask, Task
from treadle.stores import make_store

NAME = "growth"
TITLE = "Growth"
STORES = BOTH

QUEUE = QueueKey("default", HANDLER, "default", "bench.mine")
OTHER = QueueKey("default", HANDLER, "default", "bench.nobody")
IDS = SystemIds()
BATCH = 250
A_MONTH = 30 * 24 * 3600 * 1000

CASES = {
    "nothing": "nothing yet",
    "future": "future tasks",
    "unserved": "and tasks without a worker",
    "old_snapshot": "and an old snapshot",
    "renewals": "and renewals (snapshot closed)",
}


@dataclass(frozen=True)
class Sizes:
    """`rows` are in the way, `tasks` are claimed and ended in each of `rounds`; `fans` rounds of foreach."""

    rows: int = 1_000_000
    tasks: int = 10_000
    rounds: int = 5
    taken: int = 100_000
    running: int = 10_000
    fans: int = 5
    items: int = 10_000


SIZES = Sizes()
QUICK = Sizes(rows=5_000, tasks=500, rounds=2, taken=1_000, running=500, fans=1, items=1_000)


async def measure(url: str, sizes: Sizes) -> Figures:
    """All cases on one kind of store, and foreach on it."""
    figures: Figures = {"rows": sizes.rows, "tasks": sizes.tasks, "rounds": sizes.rounds, "items": sizes.items}
    async with second_store(url) as other_url:
        empty, full = [make_store(each, SystemClock()) for each in (other_url, url)]
        await empty.open()
        await full.open()
        figures |= await cases(empty, full, url, sizes)
        await empty.close()
        await full.close()
    async with second_store(url) as other_url:
        figures |= await measure_foreach(other_url, sizes.fans, sizes.items)
    return figures


async def cases(empty: Store, full: Store, url: str, sizes: Sizes) -> Figures:
    """The costs in each case, beside those of the empty store."""
    figures: Figures = {}

    async def case(name: str) -> None:
        found: dict[str, list[float]] = {which: [] for which in ("claim", "both", "empty_claim", "empty_both")}
        for number in range(sizes.rounds):
            turns = (("", full), ("empty_", empty))
            for prefix, store in turns if number % 2 else reversed(turns):
                await insert(store, sizes.tasks)
                claim, both = await drain(store, sizes.tasks)
                found[f"{prefix}claim"].append(claim)
                found[f"{prefix}both"].append(both)
        figures.update({f"{name}_{which}_us": values for which, values in found.items()})
        figures[f"{name}_claim_ratio"] = ratios(found["claim"], found["empty_claim"])
        figures[f"{name}_both_ratio"] = ratios(found["both"], found["empty_both"])
        say(f"{CASES[name]}: {median(figures[f'{name}_claim_ratio']):.2f} of the empty store")

    for store in (empty, full):  # warm
        await insert(store, sizes.tasks)
        await drain(store, sizes.tasks)
    await case("nothing")
    await insert(full, sizes.rows, QUEUE, delay=A_MONTH)
    await case("future")
    await insert(full, sizes.rows, OTHER)
    await case("unserved")
    async with old_snapshot(url):
        await insert(full, sizes.taken)
        await drain(full, sizes.taken)
        await asyncio.sleep(11)  # from when on the store takes a snapshot for an old one
        await case("old_snapshot")
    async with renewing(full, sizes.running):
        await case("renewals")
    for which in ("claim", "both"):
        figures[f"worst_{which}_ratio"] = max(median(figures[f"{name}_{which}_ratio"]) for name in CASES if name != "nothing")
    return figures


async def insert(store: Store, count: int, queue: QueueKey = QUEUE, delay: int = 0) -> None:
    """So many tasks, in batches."""
    for start in range(0, count, 2000):
        rows = tuple(NewTask(id=IDS.new_id(), queue=queue, delay=delay) for _ in range(min(2000, count - start)))
        await store.commit([Unit(tasks=rows)])
        if (start + 2000) % 250_000 == 0:
            say(f"{start + 2000:,} tasks are there")


async def drain(store: Store, count: int) -> tuple[float, float]:
    """Microseconds per task of claiming so many tasks that are there, and of claiming and ending them."""
    queue_ids = list((await store.tasks.queue_ids([QUEUE])).values())
    done = 0
    claiming = 0.0
    started = time.perf_counter()
    while done < count:
        asked = time.perf_counter()
        tasks = await store.tasks.claim(queue_ids, "bench", 60_000, BATCH)
        claiming += time.perf_counter() - asked
        if not tasks:
            raise SystemExit(f"nothing to take after {done} of {count}")
        await store.commit([Unit(task.claim, Finish("succeed", "completed", result="{}")) for task in tasks])
        done += len(tasks)
    return claiming / count * 1e6, (time.perf_counter() - started) / count * 1e6


@asynccontextmanager
async def old_snapshot(url: str) -> AsyncIterator[None]:
    """A reader that began before and does not end."""
    if url.startswith("sqlite"):
        import apsw

        reader = apsw.Connection(url.removeprefix("sqlite:///"))
        reader.execute("begin")
        reader.execute("select count(*) from queues").fetchall()
        yield
        reader.execute("rollback")
        reader.close()
        return
    reader = await connect(url)
    transaction = reader.transaction(isolation="repeatable_read", readonly=True)
    await transaction.start()
    await reader.fetchval("select count(*) from pg_class")
    yield
    await transaction.rollback()
    await reader.close()


@asynccontextmanager
async def renewing(store: Store, running: int) -> AsyncIterator[None]:
    """So many running tasks whose leases are renewed by a thread, each every 20 s: a slice of them every second."""
    await insert(store, running)
    queue_ids = list((await store.tasks.queue_ids([QUEUE])).values())
    held: list[Task] = []
    while len(held) < running:
        held += await store.tasks.claim(queue_ids, "holder", 600_000, 1000)
    ended = threading.Event()

    def keep() -> None:
        line = store.servers.lease_connection()
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


FOREACH = (
    Row("100 items, µs per item", "fan_100_us"),
    Row("1,000 items", "fan_1000_us"),
    Row("10,000 items", "fan_10000_us"),
    Row("100 items, CPU µs per item", "fan_100_cpu_us"),
    Row("1,000 items, CPU", "fan_1000_cpu_us"),
    Row("10,000 items, CPU", "fan_10000_cpu_us"),
    Row("100 items, two processes", "fan_100_2_processes_us"),
    Row("1,000 items, two processes", "fan_1000_2_processes_us"),
    Row("10,000 items, two processes", "fan_10000_2_processes_us"),
    *(Row(f"growth{what}", key) for key, what in GROWTHS.items()),
)

AIMS = (
    Aim("claim, the worst case", "worst_claim_ratio", at_most=1.3),
    Aim("claim and end, the worst case", "worst_both_ratio", at_most=1.3),
    *(Aim(f"foreach, per item at the most against 100{what}", key, at_most=1.3) for key, what in GROWTHS.items()),
)


def show(found: Found) -> str:
    """The cases of each store, foreach, and the aims."""
    each = next(iter(found.values()))
    text = f"{each['rows']:,} future tasks, as many without a worker; {each['rounds']} rounds of {each['tasks']:,} tasks."
    for store, figures in found.items():
        rows = [
            (
                what,
                *(spread(figures[f"{case}_{which}_us"]) for which in ("empty_claim", "claim")),
                spread(figures[f"{case}_claim_ratio"]),
                *(spread(figures[f"{case}_{which}_us"]) for which in ("empty_both", "both")),
                spread(figures[f"{case}_both_ratio"]),
            )
            for case, what in CASES.items()
        ]
        head = ("", "claim, empty, µs", "claim, µs", "ratio", "claim and end, empty, µs", "claim and end, µs", "ratio")
        text += f"\n\n{LABELS[store]}:\n\n{table(head, rows)}"
    return f"{text}\n\nForeach, at most {each['items']:,} items:\n\n{by_store(found, FOREACH)}\n\n{judged(found, AIMS)}"
