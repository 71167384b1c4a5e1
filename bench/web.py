"""How fast the dashboard's pages answer: `python -m bench.web [--runs 100000] [--json]`.

A SQLite store with a run over 5,000 items, made by the engine, and 100,000 runs and tasks that are copies of a few real ones
in several states, written straight into the tables: only their number counts here. Each page is asked for seven times through
the whole application in one process; the median counts. The aim is 300 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench.workflows import SOURCES, fan, make_engine
from treadle import Engine, NonRetryable
from treadle.http.app import make_app
from treadle.web.site import add_pages

AIM = 300.0
ITEMS = 5000
TIMES = 7


async def begin(url: str) -> dict[str, str]:
    """The real runs and tasks: a wide run, and short ones of several states."""
    engine = make_engine(url)

    async def fail(payload: dict[str, Any]) -> None:
        raise NonRetryable("it does not work")

    engine.handler("bench.Fail")(fail)
    async with engine:
        await engine.flows.publish("bench", SOURCES)
        async with engine.worker():
            await fan(engine, ITEMS)
            chain = await engine.start_run("bench", "bench.Chain", {"n": 1})
            await engine.run_result(chain, timeout=600)
            failed = await engine.enqueue("bench.Fail", {"n": 1})
            while not (await engine.get_task(failed)).finished:
                await asyncio.sleep(0.01)
        wide = next(each for each in await engine.run_reads.list_runs() if each.workflow == "bench.Fan")
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
    """So many runs, tasks and moves."""
    new_id = "printf('01900000-%04x-7000-8%03x-%012x', n / 65536, {0}, n)"
    state = "case when n % 10 = 0 then 'failed' when n % 10 = 1 then 'canceled' else 'completed' end"
    error = """case when n % 10 = 0 then '{"type": "ValueError", "message": "it broke", "code": "handler_error"}' end"""
    copy(path, "runs", ids["chain"], count, id=new_id.format(1), root_id=new_id.format(1), state=state, error=error,
         created_at="t.created_at - n * 1000")  # fmt: skip
    ended = "case when n % 10 = 0 then t.{0} else {1} end"
    copy(path, "finished", ids["failed"], count, id=new_id.format(2), root_id=new_id.format(2), seq="t.seq * 1000000 + n",
         finished_at="t.finished_at - n * 40", state=ended.format("state", "'completed'"), move=ended.format("move", "'succeed'"),
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
        f"/runs/{ids['wide']}?view=moves", f"/runs/{ids['wide']}?view=values", f"/runs/{ids['chain']}", "/flows", "/flows/bench",
        "/flows/bench/start?workflow=bench.Chain", "/editor?flow=bench", "/tasks", "/tasks?state=failed", f"/tasks/{ids['failed']}",
        "/lists", "/lists/default", "/dead-letters", "/dead-letters?name=bench.Fail", "/dead-letters/retry?name=bench.Fail",
        "/approvals", "/external-jobs", "/schedules", "/watchers", "/objectives", "/handlers", "/servers", "/events", "/settings",
        "/settings/retention", "/settings/store",
    ]  # fmt: skip


async def measure(url: str, ids: dict[str, str]) -> dict[str, tuple[float, float, float, float]]:
    """Milliseconds for each page: the first answer, the median, the median of CPU time; and the size in KiB."""
    found = {}
    async with Engine(url) as engine:
        transport = httpx.ASGITransport(make_app(engine, more=(add_pages,)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=120) as browser:
            for path in paths(ids):
                took, used, size = [], [], 0
                for _ in range(TIMES):
                    started, begun = time.perf_counter(), time.process_time()
                    answer = await browser.get(path)
                    took.append((time.perf_counter() - started) * 1000)
                    used.append((time.process_time() - begun) * 1000)
                    assert answer.status_code == 200, (path, answer.text)
                    size = len(answer.content)
                name = path.replace(ids["wide"], "WIDE").replace(ids["chain"], "RUN").replace(ids["failed"], "TASK")
                found[name] = (took[0], statistics.median(took), statistics.median(used), size / 1024)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.db"
        url = f"sqlite:///{path}"
        ids = asyncio.run(begin(url))
        fill(path, ids, options.runs)
        found = asyncio.run(measure(url, ids))
    if options.json:
        print(json.dumps(found))
        return
    print(f"{options.runs} runs, a run of {ITEMS} items; load {os.getloadavg()[0]:.1f}\n")
    print("| page | first, ms | median, ms | CPU, ms | KiB |\n|---|---|---|---|---|")
    for name, (first, median, cpu, size) in found.items():
        print(f"| `{name}` | {first:.0f} | {median:.0f}{' **over**' if median > AIM else ''} | {cpu:.0f} | {size:.0f} |")


if __name__ == "__main__":
    main()
