"""The query language on 1,000,000 runs: the 95th percentile of a page of 50, through the service that all interfaces use.

The rows are written with SQL, in order of creation: 50 workflows, 1,000 customers (a tag), one run in ten failed, with one of two
common messages, a rare word, and in the oldest twentieth a word of its own. No run of customer c17 failed, so a query for its
failed runs looks at all of its runs. *List* and *counts* are the page and the counts of the dashboard; the ratio compares the
median of the list with that of the same page in order of id, the order before lists were sorted by creation time, measured
alternately. *CPU* is that of the client and of PostgreSQL's processes together, per query.

With `--store URL`, the runs that are already in that store are measured again, so that it is filled only once.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged, median
from bench.servers import connect
from treadle import Engine
from treadle.engine.operations import Operations
from treadle.kernel.store.queries import RunFilter
from treadle.model.access import OPEN
from treadle.model.runs import Run
from treadle.stores.statements import load_shared

NAME = "search"
TITLE = "Search"
STORES = BOTH


@dataclass(frozen=True)
class Sizes:
    """The number of runs, and how often each query is asked."""

    runs: int = 1_000_000
    times: int = 20


SIZES = Sizes()
QUICK = Sizes(runs=20_000, times=5)

INDEXED = {
    "failed": "state = failed",
    "tag": "tag.customer = c17",
    "tag_state": "tag.customer = c17 and state = failed",
    "name": "name = shop.W7 and created < 1h ago",
    "prefix": "name = import* and state != completed",
    "activity": "activity = stuck",
    "window": "created > 3d ago and created < 2d ago and state = failed",
}
TEXT = {
    "common": "error ~ timeout",
    "words": 'error ~ "timeout host23"',
    "rare": 'error ~ "needle*" and state = failed',
    "old": "error ~ legacy",
    "none": 'error ~ "timeout nothing"',
}
SCANS = {"input": "input.order = 7", "scan": "tag.amount > 0"}
ROWS = (
    *(Row(f"`{text}`, p95", f"{name}_ms", " ms") for name, text in (INDEXED | TEXT).items()),
    Row("`input.order = 7`, without an index: 1,000 candidates, p95", "input_ms", " ms"),
    Row("`tag.amount > 0`, without an index: 5,000 candidates, p95", "scan_ms", " ms"),
    Row("most CPU time of an indexed query", "indexed_cpu_ms", " ms"),
    Row("most CPU time of a query for words", "text_cpu_ms", " ms"),
    Row("list of 50, p95", "list_ms", " ms"),
    Row("list / list in order of id", "list_ratio"),
    Row("counts by state and activity, p95", "counts_ms", " ms"),
)
AIMS = (
    Aim("worst p95 of the indexed queries", "indexed_ms", " ms", at_most=50),
    Aim("worst p95 of the queries for words", "text_ms", " ms", at_most=300),
    Aim("list / list in order of id", "list_ratio", at_most=1.5),
)

_FILL_SQLITE = """
with recursive n (i) as (select 0 union all select i + 1 from n where i + 1 < :count)
insert into runs (id, namespace, kind, flow_id, workflow, state, version, transitions, steps, task_list, priority, inputs, error,
  root_id, created_at, finished_at)
select printf('%08x-%04x-7000-8000-%012x', :at >> 16, :at & 65535, i), 'default', 'workflow', 'f',
  iif(i % 50 < 5, 'import.W' || (i % 50), 'shop.W' || (i % 50)),
  case when i % 10 = 3 then 'failed' when i % 20000 = 7 then 'running' else 'completed' end, 0, 2, 1, 'default', 0,
  '{"order":' || i || '}',
  iif(i % 10 = 3, json_object('code', 'handler_error', 'message',
    iif(i % 20 = 3, 'Connection timeout to host', 'Disk full at host') || (i % 100)
      || iif(i % 100000 = 3, ' needle' || i, '') || iif(i < :count / 20, ' legacy', '')), null),
  printf('%08x-%04x-7000-8000-%012x', :at >> 16, :at & 65535, i), :at - (:count - i) * 500, :at
from n
"""
_TAGS_SQLITE = """
insert into tags (owner_id, key, value, entity, namespace, created_at)
select id, 'customer', 'sc' || (rowid % 1000), 'run', 'default', created_at from runs
"""
_WORDS_SQLITE = """
insert into new_error_texts (owner_id, entity, namespace, created_at, error)
select id, 'run', namespace, created_at, error from runs where error is not null
"""
_FILL_POSTGRES = """
insert into runs (id, namespace, kind, flow_id, workflow, state, version, transitions, steps, task_list, priority, inputs, error,
  root_id, created_at, finished_at)
select id, 'default', 'workflow', 'f', case when i % 50 < 5 then 'import.W' else 'shop.W' end || (i % 50),
  case when i % 10 = 3 then 'failed' when i % 20000 = 7 then 'running' else 'completed' end, 0, 2, 1, 'default', 0,
  '{"order":' || i || '}',
  case when i % 10 = 3 then json_build_object('code', 'handler_error', 'message',
    case when i % 20 = 3 then 'Connection timeout to host' else 'Disk full at host' end || (i % 100)
    || case when i % 100000 = 3 then ' needle' || i else '' end
    || case when i < $1::bigint / 20 then ' legacy' else '' end)::text end,
  id, $2::bigint - ($1::bigint - i) * 500, $2::bigint
from (
  select i, (lpad(to_hex($2::bigint), 12, '0') || '70008000' || lpad(to_hex(i), 12, '0'))::uuid as id
  from generate_series(0, $1::bigint - 1) as i
) as made
"""
_TAGS_POSTGRES = """
insert into tags (owner_id, key, value, entity, namespace, created_at)
select id, 'customer', 'sc' || ('x' || right(id::text, 6))::bit(24)::int % 1000, 'run', 'default', created_at from runs
"""


async def measure(url: str, sizes: Sizes) -> Figures:
    """Fill the store, and ask each query several times."""
    engine = Engine(url)
    async with engine:
        at = await engine.kernel.store.now()
        if sum((await engine.kernel.run_reads.count_runs()).values()) < sizes.runs:
            await fill(url, sizes.runs, at)
        by_id = list_by_id(url, engine)
        say(f"{sizes.runs:,} runs are there")
        api = Operations(engine, OPEN)
        figures: Figures = {"runs": sizes.runs, "times": sizes.times}
        for name, where in (INDEXED | TEXT | SCANS).items():
            before = await cpu_time(url)
            figures[f"{name}_ms"] = p95(await timed(partial(api.runs.list, where=where, limit=50), sizes.times))
            figures[f"{name}_cpu_ms"] = (await cpu_time(url) - before) / (sizes.times + 1)
            say(f"{where}: {figures[f'{name}_ms']:.1f} ms, CPU {figures[f'{name}_cpu_ms']:.1f} ms")
        new: list[float] = []
        old: list[float] = []
        for _ in range(5):
            new += await timed(lambda: engine.kernel.run_reads.list_runs(limit=50), sizes.times)
            old += await timed(by_id, sizes.times)
        figures["list_ms"] = p95(new)
        figures["list_ratio"] = median(new) / median(old)
        figures["counts_ms"] = p95(await timed(lambda: api.runs.counts(), sizes.times))
        figures["indexed_ms"] = max(figures[f"{name}_ms"] for name in INDEXED)
        figures["text_ms"] = max(figures[f"{name}_ms"] for name in TEXT)
        figures["indexed_cpu_ms"] = max(figures[f"{name}_cpu_ms"] for name in INDEXED)
        figures["text_cpu_ms"] = max(figures[f"{name}_cpu_ms"] for name in TEXT)
        return figures


async def fill(url: str, runs: int, at: int) -> None:
    """Write the runs, their tags and the words of their errors."""
    if url.startswith("sqlite"):
        import apsw

        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute("pragma cache_size = -200000")
        with connection:
            connection.execute(_FILL_SQLITE, {"count": runs, "at": at})
            connection.execute(_TAGS_SQLITE)
            connection.execute(_WORDS_SQLITE)
        connection.close()
        return
    from treadle.stores.postgres.connection.address import parse_address

    connection = await connect(url)
    await connection.execute("set statement_timeout = 0")
    await connection.execute(f"set search_path = {parse_address(url).schema}")
    await connection.execute(_FILL_POSTGRES, runs, at)
    await connection.execute(_TAGS_POSTGRES)
    await connection.execute("analyze runs, tags")
    await connection.close()


def list_by_id(url: str, engine: Engine) -> Callable[[], Awaitable[Any]]:
    """The list in order of id."""
    store: Any = engine.kernel.store
    runs, database = store.runs, store._database
    package = "treadle.stores.sqlite" if url.startswith("sqlite") else "treadle.stores.postgres"
    statement = load_shared(package, "runs.sql")["list_runs"]
    text = statement.text.replace("order by created_at desc, id desc", "order by id desc")
    if url.startswith("sqlite"):
        from treadle.stores.sqlite.connection.connect import fetch_as, to_json

        text = text.replace("runs_created", "sqlite_autoindex_runs_1")
        text = text.replace("(created_at, id) < (:before_at, :before_id)", "id < :before_id")

        async def by_id_in_sqlite() -> Any:
            values = await runs._values(RunFilter(namespace="default")) | {"limit": 50}
            values = {name: to_json(value) if isinstance(value, list | tuple) else value for name, value in values.items()}
            return await database.reader.call(lambda connection: fetch_as(connection, Run, text, values))

        return by_id_in_sqlite
    from treadle.stores.postgres.connection.connect import fetch_as as fetch

    text = text.replace("(created_at, id) < ($13::bigint, $5::uuid)", "$13::bigint is not null and id < $5::uuid")

    async def by_id() -> Any:
        values = await runs._values(RunFilter(namespace="default")) | {"limit": 50}
        async with database.borrow(None) as reading:
            return await fetch(reading, Run, text, *[values[name] for name in statement.parameters])

    return by_id


async def cpu_time(url: str) -> float:
    """CPU time of this process and of PostgreSQL's processes for the database, in milliseconds."""
    spent = time.process_time() * 1000
    if url.startswith("sqlite"):
        return spent
    connection = await connect(url)
    rows = await connection.fetch("select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
    await connection.close()
    for row in rows:
        with contextlib.suppress(OSError):
            user, system = Path(f"/proc/{row[0]}/stat").read_text().rpartition(")")[2].split()[11:13]
            spent += (int(user) + int(system)) * 1000 / os.sysconf("SC_CLK_TCK")
    return spent


def p95(found: list[float]) -> float:
    """The 95th percentile."""
    return sorted(found)[round(0.95 * (len(found) - 1))]


async def timed(call: Callable[[], Awaitable[Any]], times: int) -> list[float]:
    """The durations of the call, in milliseconds, after a first one that does not count."""
    await call()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        found.append((time.perf_counter() - began) * 1000)
    return found


def show(found: Found) -> str:
    """The queries of each store, and the aims."""
    each = next(iter(found.values()))
    return f"{each['runs']:,} runs, each query {each['times']} times.\n\n{by_store(found, ROWS)}\n\n{judged(found, AIMS)}"
