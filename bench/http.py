"""The HTTP interface, compared with the Python API.

A server process (`treadle serve`) with a token, and a process that sends requests over 32 persistent connections: `POST
/v1/tasks`, `POST /v1/tasks/batch`, and `POST /v1/tasks/claim`, which waits for tasks if there are none, with `POST
/v1/tasks/{id}/complete` for each task. The Python API does the same with the same number of callers in one process, on the
same database, alternating with HTTP. Compare ratios and CPU per task between machines; HTTP is limited by the CPU of its single
server process, so the ratio falls where the Python API has CPU to spare.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import LABELS, Aim, judged, ratios, spread
from bench.http_load import BATCH, CALLERS, WORK, Figure, for_a_while
from bench.processes import Child, child
from bench.results import table
from treadle import Engine, TaskSpec
from treadle.model.access import Scope
from treadle.settings import Settings

NAME = "http"
TITLE = "HTTP"
STORES = BOTH

KINDS = {
    "enqueue": "`POST /v1/tasks`",
    "batch": f"`POST /v1/tasks/batch`, {BATCH} each",
    "work_1": "claim 1, complete",
    "work_10": "claim 10, complete each",
}


@dataclass(frozen=True)
class Sizes:
    """Each figure is measured for so many `seconds`, in each of `rounds`; `backlog` tasks are added before each that claims."""

    seconds: float = 1.5
    rounds: int = 3
    backlog: int = 40_000


SIZES = Sizes()
QUICK = Sizes(seconds=0.5, rounds=1, backlog=2_000)


async def measure(url: str, sizes: Sizes) -> Figures:
    """In every round each kind of call by the Python API, then by HTTP."""
    figures: Figures = {"callers": CALLERS, "rounds": sizes.rounds, "seconds": sizes.seconds}
    async with Engine(url, settings=Settings(), emit=lambda _: None) as engine:
        token = (await engine.kernel.tokens.create("bench", [Scope.WORK])).secret
        async with child("treadle", "serve", "--port", "0", "--json", store=url, TREADLE_LOG_LEVEL="WARNING") as server:
            address = (await server.said())["url"]
            async with child("bench.http_load", address, str(sizes.seconds), store=url, TREADLE_TOKEN=token) as caller:
                for number in range(1, sizes.rounds + 1):
                    for kind, side in product(KINDS, ("python", "http")):
                        if kind.startswith("work"):
                            await engine.enqueue_many(TaskSpec(name=WORK, payload={"n": n}) for n in range(sizes.backlog))
                        if side == "python":
                            found = await python_figure(engine, kind, sizes.seconds)
                        else:
                            found = await http_figure(caller, server, kind)
                        figures.setdefault(f"{side}_{kind}", []).append(found.rate)
                        figures.setdefault(f"{side}_{kind}_cpu_us", []).append(found.cpu_us)
                    say(f"round {number} of {sizes.rounds}: {figures['http_enqueue'][-1]:,.0f} requests/s")
    for kind in KINDS:
        figures[f"{kind}_ratio"] = ratios(figures[f"http_{kind}"], figures[f"python_{kind}"])
    return figures


async def python_figure(engine: Engine, kind: str, seconds: float) -> Figure:
    """The throughput of the same number of callers inside this process."""
    workers = engine.kernel.remote_workers

    async def enqueue() -> int:
        await engine.enqueue("bench.waiting", {"n": 1}, task_list="waiting")
        return 1

    async def batch() -> int:
        await engine.enqueue_many([TaskSpec(name="bench.waiting", payload={"n": 1}, task_list="waiting") for _ in range(BATCH)])
        return BATCH

    async def work(worker_id: str, limit: int) -> int:
        found = await workers.claim(worker_id, limit=limit, wait_for=5)
        for claimed in found:
            await workers.complete(worker_id, claimed.task.id, claimed.task.claim_version, {"n": 1})
        return len(found)

    if kind == "enqueue":
        return await for_a_while(seconds, CALLERS, enqueue)
    if kind == "batch":
        return await for_a_while(seconds, CALLERS, batch)
    worker = await workers.register("bench", handlers=[WORK])
    figure = await for_a_while(seconds, CALLERS, partial(work, worker.id, int(kind.partition("_")[2])))
    await workers.leave(worker.id)
    return figure


async def http_figure(caller: Child, server: Child, kind: str) -> Figure:
    """The rate of the callers, and the CPU that the server used for each task."""
    cpu = cpu_of(server.pid)
    await caller.tell(kind)
    found = Figure(**await caller.said())
    return found._replace(cpu_us=(cpu_of(server.pid) - cpu) * 1e6 / max(found.done, 1))


def cpu_of(pid: int) -> float:
    """Seconds of CPU that the process has used; none where the system does not say."""
    stat = Path(f"/proc/{pid}/stat")
    used = stat.read_text().rpartition(")")[2].split()[11:13] if stat.exists() else []
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


AIMS = (
    Aim("`POST /v1/tasks`", "http_enqueue", " requests/s", at_least=3_000),
    Aim("batch: HTTP of Python (1 / 1.5)", "batch_ratio", at_least=0.67),
    Aim("claim one task by a long poll and complete it", "http_work_1", " tasks/s", at_least=1_500),
)


def show(found: Found) -> str:
    """Both interfaces side by side, and the aims."""
    rows: list[tuple[Any, ...]] = []
    for store, figures in found.items():
        for kind, what in KINDS.items():
            cells = [spread(figures[key]) for key in (f"python_{kind}", f"http_{kind}", f"{kind}_ratio")]
            cpu = [spread(figures[f"{side}_{kind}_cpu_us"]) for side in ("python", "http")]
            rows.append((LABELS[store], what, *cells, *cpu))
    each = next(iter(found.values()))
    head = ("store", "", "Python, tasks/s", "HTTP, tasks/s", "ratio", "CPU per task, Python, µs", "CPU per task, HTTP, µs")
    return f"{each['rounds']} rounds, {each['seconds']} s for each figure.\n\n{table(head, rows)}\n\n{judged(found, AIMS)}"
