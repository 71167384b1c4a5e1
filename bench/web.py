"""Response times of the dashboard's pages on a large store.

A SQLite store with a wide run over many items (WIDE), made by the engine, and a large number of runs and finished tasks (a
tenth of them dead letters), which are copies of a few real ones in several states, inserted directly into the tables. Each
page is requested several times through the complete application in one process. *First* is the first response, which fills
caches for later ones; the median is what counts.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.benchmark import Figures, Found, say
from bench.figures import Aim, judged
from bench.results import table
from bench.workflow_worker import SOURCES, fan, make_engine
from treadle import Engine, NonRetryable
from treadle.interfaces.http.app import make_app
from treadle.interfaces.web.site import add_pages
from treadle.settings import Settings

NAME = "web"
TITLE = "The dashboard"
STORES = ("sqlite",)


@dataclass(frozen=True)
class Sizes:
    """So many `runs`, and as many tasks; the wide run has `items`; each page is asked for `times`."""

    runs: int = 100_000
    items: int = 5_000
    times: int = 7


SIZES = Sizes()
QUICK = Sizes(runs=1_000, items=100, times=2)


async def measure(url: str, sizes: Sizes) -> Figures:
    """Fill the store, then ask for every page."""
    ids = await begin(url, sizes.items)
    fill(Path(url.removeprefix("sqlite:///")), ids, sizes.runs)
    say(f"{sizes.runs:,} runs are there")
    pages = await ask(url, ids, sizes.times)
    slowest = {"slowest_first_ms": max(page[0] for page in pages.values()), "slowest_ms": max(page[1] for page in pages.values())}
    return {"runs": sizes.runs, "items": sizes.items, "times": sizes.times, "pages": pages, **slowest}


async def begin(url: str, items: int) -> dict[str, str]:
    """The real runs and tasks: a wide run, and short ones of several states."""
    engine = make_engine(url)

    async def fail(payload: dict[str, Any]) -> None:
        raise NonRetryable("it does not work")

    engine.handler("bench.Fail")(fail)
    async with engine:
        await engine.kernel.flows.publish("bench", SOURCES)
        async with engine.worker():
            await fan(engine, items)
            chain = await engine.start_run("bench", "bench.Chain", {"n": 1})
            await engine.run_result(chain, timeout=600)
            failed = await engine.enqueue("bench.Fail", {"n": 1})
            while not (await engine.kernel.reads.get_task(failed)).finished:
                await asyncio.sleep(0.01)
        wide = next(each for each in await engine.kernel.run_reads.list_runs() if each.workflow == "bench.Fan")
        return {"wide": wide.id, "chain": chain.id, "failed": failed.id}


def copy(path: Path, table: str, which: str, count: int, **changed: str) -> None:
    """Copies of one row, with ids of their own and what else is changed, as expressions over `n`."""
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute(f"pragma table_info({table})")]
        values = ", ".join(changed.get(column, f"t.{column}") for column in columns)
        connection.execute(
            f"with recursive c (n) as (values (1) union all select n + 1 from c where n < ?) "
            f"insert into {table} ({', '.join(columns)}) select {values} from c, {table} t where t.id = ?",
            (count, which),
        )
    connection.close()


def fill(path: Path, ids: dict[str, str], count: int) -> None:
    """So many runs, tasks and transitions."""
    new_id = "printf('01900000-%04x-7000-8%03x-%012x', n / 65536, {0}, n)"
    state = "case when n % 10 = 0 then 'failed' when n % 10 = 1 then 'canceled' else 'completed' end"
    error = """case when n % 10 = 0 then '{"type": "ValueError", "message": "it broke", "code": "handler_error"}' end"""
    copy(path, "runs", ids["chain"], count, id=new_id.format(1), root_id=new_id.format(1), state=state, error=error,
         created_at="t.created_at - n * 1000")  # fmt: skip
    ended = "case when n % 10 = 0 then t.{0} else {1} end"
    copy(path, "finished", ids["failed"], count, id=new_id.format(2), root_id=new_id.format(2), seq="t.seq * 1000000 + n",
         finished_at="t.finished_at - n * 40", state=ended.format("state", "'completed'"),
         transition=ended.format("transition", "'succeed'"),
         error=ended.format("error", "null"), error_code=ended.format("error_code", "null"),
         fingerprint=ended.format("fingerprint", "null"))  # fmt: skip
    with sqlite3.connect(path) as connection:
        connection.execute("analyze")
    connection.close()


def paths(ids: dict[str, str]) -> list[str]:
    """The pages that there is much on, and the rest as they come."""
    return [
        "/", "/runs", "/runs?state=failed", "/runs?workflow=bench.Chain", "/runs?search=bench", "/runs?search=nowhere",
        "/runs/bulk?action=retry&state=failed", f"/runs/{ids['wide']}", f"/runs/{ids['wide']}?below={ids['wide']}",
        f"/runs/{ids['wide']}?view=steps", f"/runs/{ids['wide']}?view=source", f"/runs/{ids['wide']}?view=logs",
        f"/runs/{ids['wide']}?view=transitions", f"/runs/{ids['wide']}?view=values",
        f"/runs/{ids['chain']}", "/flows", "/flows/bench",
        "/flows/bench/start?workflow=bench.Chain", "/editor?flow=bench", "/tasks", "/tasks?state=failed", f"/tasks/{ids['failed']}",
        "/lists", "/lists/default", "/dead-letters", "/dead-letters?name=bench.Fail", "/dead-letters/retry?name=bench.Fail",
        "/approvals", "/external-jobs", "/schedules", "/watchers", "/objectives", "/handlers", "/servers", "/events", "/settings",
        "/settings/retention", "/settings/store",
    ]  # fmt: skip


async def ask(url: str, ids: dict[str, str], times: int) -> dict[str, tuple[float, float, float, float]]:
    """Milliseconds for each page: the first answer, the median, the median of CPU time; and the size in KiB."""
    found = {}
    async with Engine(url, settings=Settings(), emit=lambda _: None) as engine:
        transport = httpx.ASGITransport(make_app(engine, open_access=True, more=(add_pages,)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=120) as browser:
            for path in paths(ids):
                took, used, size = [], [], 0
                for _ in range(times):
                    started, begun = time.perf_counter(), time.process_time()
                    answer = await browser.get(path)
                    took.append((time.perf_counter() - started) * 1000)
                    used.append((time.process_time() - begun) * 1000)
                    assert answer.status_code == 200, (path, answer.text)
                    size = len(answer.content)
                name = path.replace(ids["wide"], "WIDE").replace(ids["chain"], "RUN").replace(ids["failed"], "TASK")
                found[name] = (took[0], statistics.median(took), statistics.median(used), size / 1024)
    return found


AIMS = (
    Aim("the slowest page, median", "slowest_ms", " ms", at_most=300),
    Aim("the slowest page, first answer", "slowest_first_ms", " ms", at_most=300),
)


def show(found: Found) -> str:
    """Every page, and the aims."""
    (figures,) = found.values()
    told = f"{figures['runs']:,} runs, as many tasks, a run of {figures['items']:,} items; each page {figures['times']} times."
    pages = [(f"`{name}`", *(f"{value:.0f}" for value in page)) for name, page in figures["pages"].items()]
    listed = table(("page", "first, ms", "median, ms", "CPU, ms", "KiB"), pages)
    return f"{told}\n\n{judged(found, AIMS)}\n\n{listed}"
