"""The cost of counting commits, by which `store verify` finds a SQLite store that has lost some of them.

Blocks of commits go into one file; every other block counts its commits in the database and notes them beside it, as the store
does, and the others do not. *Enqueue* inserts tasks, *settle* ends one of them. Ratios are those of neighbouring blocks.
*Pages* are written to the write-ahead log per commit: the count has a page of its own, which settlements change anyway.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import apsw

from bench.benchmark import Figures, Found
from bench.figures import Row, by_store, ratios
from treadle.kernel.store.process import SystemClock, SystemIds
from treadle.kernel.store.units import Finish, Unit
from treadle.model.names import QueueKey
from treadle.model.tasks import NewTask
from treadle.stores.sqlite import SqliteStore

NAME = "commits"
TITLE = "Counting commits"
STORES = ("sqlite",)

_QUEUE = QueueKey("default", "handler", "default", "work")


@dataclass(frozen=True)
class Sizes:
    """`blocks` of `commits` each, with the count and without."""

    blocks: int = 60
    commits: int = 100


SIZES = Sizes()
QUICK = Sizes(blocks=2, commits=10)


async def measure(url: str, sizes: Sizes) -> Figures:
    """Measure each kind of commit, with the count and without it in turn."""
    store, ids = SqliteStore(url.removeprefix("sqlite:///"), clock=SystemClock()), SystemIds()
    await store.open()
    claims: list[Any] = []

    async def enqueue(tasks: int) -> None:
        await store.commit([Unit(tasks=tuple(NewTask(id=ids.new_id(), queue=_QUEUE) for _ in range(tasks)))])

    async def settle() -> None:
        await store.commit([Unit(claims.pop().claim, Finish("succeed", "completed", "{}"))])

    await enqueue(1)
    kinds: dict[str, Callable[[], Awaitable[None]]] = {"one": lambda: enqueue(1), "many": lambda: enqueue(100), "settle": settle}
    figures: Figures = {}
    (queue_id,) = (await store.tasks.queue_ids([_QUEUE])).values()
    for kind, act in kinds.items():
        took: dict[bool, list[float]] = {False: [], True: []}
        pages: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * sizes.blocks):
            counted = bool(number % 2)
            if kind == "settle":
                claims = await store.tasks.claim([queue_id], "bench", 60_000, sizes.commits)
            await store._database.writer.call(lambda connection, counted=counted: _count(store, connection, counted))
            wrote, began = await store._database.writer.call(_pages), time.perf_counter()
            for _ in range(sizes.commits):
                await act()
            took[counted].append((time.perf_counter() - began) / sizes.commits * 1e6)
            pages[counted].append((await store._database.writer.call(_pages) - wrote) / sizes.commits)
        figures |= {f"{kind}_us": took[False], f"{kind}_counted_us": took[True], f"{kind}_ratio": ratios(took[True], took[False])}
        figures |= {f"{kind}_pages": pages[False], f"{kind}_counted_pages": pages[True]}
    await store._database.writer.call(lambda connection: _count(store, connection, True))
    await store.close()
    return figures


def _count(store: SqliteStore, connection: apsw.Connection, counted: bool) -> None:
    connection.counter = store._counter if counted else None  # type: ignore[attr-defined]


def _pages(connection: apsw.Connection) -> int:
    return int(connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0])


ROWS = tuple(
    Row(f"{what}, {part}", f"{kind}_{key}", unit)
    for kind, what in {"one": "enqueue 1 task", "many": "enqueue 100 tasks", "settle": "settle 1 task"}.items()
    for part, key, unit in (
        ("not counted", "us", " us"),
        ("counted", "counted_us", " us"),
        ("ratio", "ratio", ""),
        ("pages, not counted", "pages", ""),
        ("pages, counted", "counted_pages", ""),
    )
)


def show(found: Found) -> str:
    """Figures."""
    return by_store(found, ROWS)
