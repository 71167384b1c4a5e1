"""Operations on a store with a long history, as ratios to a nearly empty store in the same run.

The full store gets `rows` finished tasks of the last four weeks by set-based statements: 96 % completed, 3 % failed, 1 %
canceled, of which 5 % were retried once (a row in the log), and for each hundred tasks a finished run with three steps and a
task of its own; on PostgreSQL, each week is a partition. The other store gets 4,000 of them in the same partitions, so that
every call finds as much, and the ratio is the effect of the history's length. `store verify` checks a sample. Both stores get
the same calls, in turns; the median of the calls of a round counts, and the median of the rounds is reported; CPU time is that
of the process and of its sessions with PostgreSQL. *Enqueue*, *claim* and *settle* are batches of 250; the others are single
calls. A common word is in half of all errors: with fewer than 1,000 of them, its search reads them all, and with more, the
newest ones; it is not among the aims. *Prune, nothing due* is a pass that removes nothing. At the end, the oldest part (on
SQLite at most 200,000 tasks) of the history is pruned; the time, and on PostgreSQL the write-ahead log, are given per removed
task, beside the same for a history of 20,000 tasks that is removed row by row. *Churn*: the same number of tasks is enqueued
and ended again and again; the bytes of the live tasks and their indexes must not grow.

Long histories can be written before: `python -m bench.filling FOLDER`, then `python -m bench big_tables --folder FOLDER`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import LABELS, Aim, Row, by_store, judged, median, ratios, spread
from bench.growth import BATCH, IDS, QUEUE, insert
from bench.history import INDEXES, execute, fill, fill_partitions, finished_bytes, live_bytes, log_position, table_bytes
from bench.results import table
from bench.servers import second_store
from treadle.kernel.store.database import ScanRange
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import SystemClock
from treadle.kernel.store.queries import DeadLetterFilter, RunFilter, TaskFilter
from treadle.kernel.store.retention import Retention
from treadle.kernel.store.units import Finish, Unit
from treadle.kernel.store.verify import verify_page
from treadle.model.tasks import NewTask, Task
from treadle.stores import make_store
from treadle.stores.postgres import PostgresStore

NAME = "big_tables"
TITLE = "Big tables"
STORES = BOTH

WEEKS = 4
DAY = 86_400_000
SMALL = 4_000
"""Tasks in the history of the "empty" store, so that every call finds as much as in the full one."""

CALLS = {
    "enqueue": "enqueue 250",
    "claim": "claim 250",
    "settle": "settle 250",
    "enqueue_one": "enqueue one",
    "find": "find a finished task by id",
    "list": "list the 50 newest tasks",
    "list_completed": "list 50 completed tasks",
    "list_name": "list 50 tasks of a name",
    "list_run": "list the tasks of a run",
    "search": "search a rare word of errors",
    "search_common": "search a common word of errors",
    "status": "status: counts of live and finished tasks",
    "dead_letters": "list 50 dead letters",
    "events": "read the last 100 events",
    "tally": "tally the last 1,000 transitions",
    "prune": "prune, nothing due",
}


@dataclass(frozen=True)
class Sizes:
    """`rows` finished tasks on PostgreSQL, measured in `rounds` of `times` calls; `churn` rounds of `tasks`."""

    rows: int = 1_000_000
    sqlite_rows: int = 1_000_000
    rounds: int = 5
    times: int = 20
    tasks: int = 5_000
    churn: int = 20
    parts: int = 4
    """Partitions of the history on PostgreSQL; as many as with the default retention, a week each."""
    pruned: float = 0.5
    """The share of the history that is pruned at the end on PostgreSQL; 0 for none."""


SIZES = Sizes()
QUICK = Sizes(rows=100_000, sqlite_rows=100_000, rounds=2, times=5, tasks=500, churn=4)


async def measure(url: str, sizes: Sizes) -> Figures:
    """Fill one store, call both, prune the full one, and churn the other."""
    rows = sizes.sqlite_rows if url.startswith("sqlite") else sizes.rows
    figures: Figures = {"rows": rows, "rounds": sizes.rounds, "times": sizes.times}
    full = await open_full(url, rows, sizes.parts)
    if not url.startswith("sqlite") and (await execute(url, "show fsync"))[0][0] != "on":
        raise SystemExit("The server still has the settings of the filling: stop it, and measure again.")
    figures["bytes_per_task"] = await table_bytes(url) / rows
    figures |= {f"bytes_{name}": size / rows for name, size in (await finished_bytes(url)).items()}
    async with second_store(url) as other_url:
        empty = await open_full(other_url, SMALL, sizes.parts)
        await check_sample(full)
        figures |= await compare(empty, full, sizes, CpuMeter(url))
        share = sizes.pruned if "postgresql" in url else min(sizes.pruned, 200_000 / rows)
        figures |= await prune(full, url, "prune_full", share) if share else {}
        if isinstance(empty, PostgresStore):  # in SQLite's file, the live tasks cannot be told from the history
            figures |= await churn(empty, other_url, sizes)
        await empty.close()
        await full.close()
    return figures | await row_by_row(url)


async def open_full(url: str, rows: int, parts: int) -> Store:
    """Open the store with the long history, which is written unless it is there."""
    store = make_store(url, SystemClock())
    await store.open()
    await store.tasks.queue_ids([QUEUE])
    if await store.log.find_last_seq():
        return store
    began = time.perf_counter()
    if isinstance(store, PostgresStore):
        start = await begin(store)
        await store.retention.split(start, start + (WEEKS + 2) * 7 * DAY, WEEKS * 7 * DAY // parts)
        await store.retention.prepare(Retention(store).rules)
        await fill_partitions(url, rows, WEEKS * 7 * DAY, start + WEEKS * 7 * DAY)
    else:
        await fill(url, rows, WEEKS * 7 * DAY, await store.now())
    say(f"{rows:,} tasks in {time.perf_counter() - began:.0f} s")
    return store


async def row_by_row(url: str) -> Figures:
    """The cost of removal from a store whose history is in one piece."""
    async with second_store(url) as other_url:
        store = make_store(other_url, SystemClock())
        await store.open()
        await store.tasks.queue_ids([QUEUE])
        await fill(other_url, 20_000, WEEKS * 7 * DAY, await store.now())
        figures = await prune(store, other_url, "prune_rows")
        await store.close()
    return figures


async def begin(store: Store) -> int:
    """The first hour of the history."""
    hour = 3_600_000
    return (await store.now() - WEEKS * 7 * DAY) // hour * hour


async def check_sample(store: Store) -> None:
    """`store verify` of the first histories: the fill must be what the engine could have written."""
    report, _ = await verify_page(store, None, 5_000)
    if not report.holds or report.checked < 5_000:
        raise SystemExit(f"the history does not hold ({report.checked} checked): {report.problems[:3]}")


async def compare(empty: Store, full: Store, sizes: Sizes, meter: CpuMeter) -> Figures:
    """The medians of each call on both stores, round by round, and their ratios."""
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in CALLS}
    used: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in CALLS}
    calls = [await calls_on(store) for store in (empty, full)]
    for number in range(sizes.rounds + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            await meter.find_backends()
            took = await batches([empty, full][which], sizes.times, meter)
            for name, call in calls[which].items():
                took[name] = [await timed(call, meter) for _ in range(sizes.times)]
            if number:  # the first round warms
                for name, times in took.items():
                    found[name][which].append(median([each.wall for each in times]))
                    used[name][which].append(median([each.cpu for each in times]))
        say(f"round {number} of {sizes.rounds}")
    figures: Figures = {}
    for name, (under, over) in found.items():
        figures |= {f"{name}_empty_us": under, f"{name}_us": over, f"{name}_ratio": ratios(over, under)}
        figures[f"{name}_cpu_ratio"] = ratios(*reversed(used[name]))
    for kind in ("ratio", "cpu_ratio"):
        figures[f"worst_{kind}"] = max(median(figures[f"{name}_{kind}"]) for name in CALLS if name != "search_common")
    return figures


class Taken(NamedTuple):
    """Microseconds of one call."""

    wall: float
    cpu: float


class CpuMeter:
    """The CPU time of this process and, on PostgreSQL, of the sessions of both stores."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._backends: list[Path] = []

    async def find_backends(self) -> None:
        """Find the sessions; those that a call opens and closes are not counted."""
        if not self._url.startswith("sqlite"):
            found = await execute(self._url, "select pid from pg_stat_activity where backend_type = 'client backend'")
            self._backends = [Path(f"/proc/{row[0]}/schedstat") for row in found]

    def now(self) -> float:
        """Microseconds that were used up to now."""
        used = time.process_time() * 1e6
        for each in self._backends:
            with suppress(OSError):
                used += int(each.read_text().split()[0]) / 1000
        return used


async def timed(call: Callable[[], Awaitable[Any]], meter: CpuMeter) -> Taken:
    used, began = meter.now(), time.perf_counter()
    await call()
    return Taken((time.perf_counter() - began) * 1e6, meter.now() - used)


async def batches(store: Store, times: int, meter: CpuMeter) -> dict[str, list[Taken]]:
    """The costs of enqueueing, claiming and settling batches."""
    queue_ids = list((await store.tasks.queue_ids([QUEUE])).values())
    took: dict[str, list[Taken]] = {"enqueue": [], "claim": [], "settle": []}
    for _ in range(times):
        rows = tuple(NewTask(id=IDS.new_id(), queue=QUEUE) for _ in range(BATCH))
        took["enqueue"].append(await timed(lambda rows=rows: store.commit([Unit(tasks=rows)]), meter))  # type: ignore[misc]
        tasks: list[Task] = []

        async def claim(tasks: list[Task] = tasks) -> None:
            tasks += await store.tasks.claim(queue_ids, "bench", 60_000, BATCH)

        took["claim"].append(await timed(claim, meter))
        units = [Unit(task.claim, Finish("succeed", "completed", result="{}")) for task in tasks]
        took["settle"].append(await timed(lambda units=units: store.commit(units), meter))  # type: ignore[misc]
    return took


async def settle_all(store: Store) -> None:
    """End all tasks that wait."""
    queue_ids = list((await store.tasks.queue_ids([QUEUE])).values())
    while tasks := await store.tasks.claim(queue_ids, "bench", 60_000, 1000):
        await store.commit([Unit(task.claim, Finish("succeed", "completed", result="{}")) for task in tasks])


async def calls_on(store: Store) -> dict[str, Callable[[], Awaitable[Any]]]:
    """The single calls, with arguments that fit this store; each finds as many rows in the empty one as in the full one."""
    some = await store.tasks.list_matching(TaskFilter(states=("completed",)), 2000)
    (run,) = await store.runs.list_matching(RunFilter(), 1)
    retention = Retention(store)
    span = ScanRange("task", "default")

    async def status() -> None:
        await store.tasks.list_depths()
        await store.tasks.count_finished()

    async def events() -> None:
        last = await store.log.find_last_seq()
        await store.log.list_events(last - 100, last, 100)

    async def tally() -> None:
        last = await store.log.find_last_seq()
        await store.metrics.tally(last - 1000, last)

    async def enqueue_one() -> None:
        await store.commit([Unit(tasks=(NewTask(id=IDS.new_id(), queue=QUEUE),))])

    return {
        "enqueue_one": enqueue_one,
        "find": lambda: store.tasks.find(some[-1].id),
        "list": lambda: store.tasks.list_matching(TaskFilter(), 50),
        "list_completed": lambda: store.tasks.list_matching(TaskFilter(states=("completed",)), 50),
        "list_name": lambda: store.tasks.list_matching(TaskFilter(namespace="default", name=QUEUE.name), 50),
        "list_run": lambda: store.tasks.list_matching(TaskFilter(run_id=run.id), 50),
        "search": lambda: store.search.list_with_words(span, ["order113"], 50),
        "search_common": lambda: store.search.list_with_words(span, ["timeout"], 50),
        "status": status,
        "dead_letters": lambda: store.dead_letters.list_newest(DeadLetterFilter(), 50),
        "events": events,
        "tally": tally,
        "prune": retention.prune,
    }


async def prune(store: Store, url: str, name: str, share: float = 0.5) -> Figures:
    """Prune the oldest share of the history; the cost per removed task."""
    log, began = await log_position(url), time.perf_counter()
    report = await Retention(store).prune(older_than=WEEKS * 7 * DAY * (1 - share) / 1000)
    took = time.perf_counter() - began
    if not report.tasks:
        raise SystemExit("nothing was pruned")
    say(f"{name}: {report.tasks:,} tasks in {took:.1f} s")
    return {
        f"{name}_tasks": report.tasks,
        f"{name}_us": took / report.tasks * 1e6,
        f"{name}_log": (await log_position(url) - log) / report.tasks,
    }


async def churn(store: Store, url: str, sizes: Sizes) -> Figures:
    """Bytes of the live table and its indexes after each of many rounds of the same work."""
    sizes_after = []
    for _ in range(sizes.churn):
        await insert(store, sizes.tasks)
        await settle_all(store)
        sizes_after.append(await live_bytes(url))
    half = len(sizes_after) // 2
    return {"churn_bytes": sizes_after[-1], "churn_growth": max(sizes_after[half:]) / max(max(sizes_after[:half]), 1)}


AIMS = (
    Aim("the worst operation against an empty store", "worst_ratio", at_most=1.3),
    Aim("the same, CPU time", "worst_cpu_ratio", at_most=1.3),
    Aim("live table and indexes, second half of the churn against the first", "churn_growth", at_most=1.3, stores=("postgresql",)),
)

_ROWS = (
    Row("bytes per finished task (tables and indexes)", "bytes_per_task", " bytes"),
    *(Row(f"of these: {what}", f"bytes_{name}", " bytes") for name, what in INDEXES.items()),
    Row("pruning the oldest part, per removed task", "prune_full_us", " µs"),
    Row("write-ahead log per pruned task", "prune_full_log", " bytes"),
    Row("row by row: pruning 10,000 tasks, per removed task", "prune_rows_us", " µs"),
    Row("row by row: write-ahead log per pruned task", "prune_rows_log", " bytes"),
    Row("bytes of live tasks after the churn", "churn_bytes", " bytes"),
    Row("growth of these bytes, second half against first", "churn_growth"),
)


def show(found: Found) -> str:
    """The calls of each store, the costs of removal, and the aims."""
    each = next(iter(found.values()))
    sizes = ", ".join(f"{figures['rows']:,} on {LABELS[store]}" for store, figures in found.items())
    text = f"Finished tasks: {sizes}; {each['rounds']} rounds of {each['times']} calls."
    for store, figures in found.items():
        rows = [
            (
                what,
                spread(figures[f"{name}_empty_us"]),
                spread(figures[f"{name}_us"]),
                spread(figures[f"{name}_ratio"]),
                spread(figures[f"{name}_cpu_ratio"]),
            )
            for name, what in CALLS.items()
        ]
        text += f"\n\n{LABELS[store]}:\n\n{table(('', 'empty store, µs', 'full store, µs', 'ratio', 'ratio of CPU time'), rows)}"
    return f"{text}\n\n{by_store(found, _ROWS)}\n\n{judged(found, AIMS)}"
