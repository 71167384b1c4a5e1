"""Start-up time of commands.

CPU time and wall time of whole processes. Each round runs each command once; with `--set against=SRC`, where SRC is the `src`
folder of another revision, it runs it once for each revision, so that other load on the machine affects both. `python -c
pass` is the time of Python itself. Modules are compiled beforehand, as an installation does.

*First task*: from the start of `treadle worker` to the first line of a handler whose task was waiting: CPU time of the worker
process, and wall time. *Memory* of that worker once it is idle, from `/proc/PID/smaps_rollup`: resident (RSS), and proportional
(PSS), which divides shared pages among their processes. The lease sidecar, a second small process, is listed separately.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.benchmark import BOTH, Figures, Found, say
from bench.cli_worker import started_worker
from bench.figures import LABELS, Aim, judged, ratios, spread
from bench.results import table
from treadle.settings import child_environment

NAME = "cli"
TITLE = "Start-up of commands"
STORES = BOTH

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import treadle": ["-c", "import treadle"],
    **{
        f"treadle {command}": ["-m", "treadle", *command.split()]
        for command in ("--help", "tasks --help", "tasks list", "tasks list --json", "completion bash -- ta")
    },
}
WORKER = {
    "first_cpu_ms": "first task, CPU, ms",
    "first_wall_ms": "first task, wall, ms",
    "rss_mb": "idle, RSS, MB",
    "pss_mb": "idle, PSS, MB",
    "sidecar_rss_mb": "lease sidecar, RSS, MB",
    "sidecar_pss_mb": "lease sidecar, PSS, MB",
}
HERE = str(Path(__file__).parents[1] / "src")


@dataclass(frozen=True)
class Sizes:
    """So many `rounds`, beside the sources in `against`."""

    rounds: int = 10
    against: str | None = None


SIZES = Sizes()
QUICK = Sizes(rounds=1)


async def measure(url: str, sizes: Sizes) -> Figures:
    """For each command the CPU and wall milliseconds of all rounds, on both sides."""
    sides = {"now": HERE} | ({"before": sizes.against} if sizes.against else {})
    figures: Figures = {"rounds": sizes.rounds, "sides": list(sides)}
    for number in range(3):
        await asyncio.to_thread(took, ["-m", "treadle", "enqueue", f"task-{number}"], HERE, url)
    for source in sides.values():
        for command in COMMANDS.values():
            await asyncio.to_thread(took, command, source, url)  # compiles the modules
    for number in range(1, sizes.rounds + 1):
        for side, source in sides.items():
            for what, value in (await asyncio.to_thread(started_worker, environment_of(source, url))).items():
                figures.setdefault(f"{side}_{what}", []).append(value)
        for name, command in COMMANDS.items():
            for side, source in sides.items():
                one = await asyncio.to_thread(took, command, source, url)
                if one is not None:
                    figures.setdefault(f"{side}_cpu_ms {name}", []).append(one[0])
                    figures.setdefault(f"{side}_wall_ms {name}", []).append(one[1])
        say(f"round {number} of {sizes.rounds}")
    walls = [figures[f"now_wall_ms {name}"] for name in ("import treadle", "python -c pass")]
    figures["import_ms"] = [both - python for both, python in zip(*walls, strict=True)]
    return figures


def environment_of(source: str, url: str) -> dict[str, str]:
    """The environment of a process of that revision, which may store compiled modules."""
    environment = child_environment(PYTHONPATH=source, TREADLE_STORE=url)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def took(arguments: list[str], source: str, url: str) -> tuple[float, float] | None:
    """CPU and wall milliseconds of one process; None if that revision has no such command."""
    with tempfile.TemporaryDirectory() as folder:
        environment = environment_of(source, url)
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        ended = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True)
        wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (cpu * 1000, wall * 1000) if ended.returncode == 0 else None


AIMS = (
    Aim("wall time of `import treadle`, without Python's own", "import_ms", " ms", at_most=50),
    Aim("wall time of `treadle --help`", "now_wall_ms treadle --help", " ms", at_most=100),
    Aim("wall time of `treadle tasks list`", "now_wall_ms treadle tasks list", " ms", at_most=200),
    Aim("first task of a worker", "now_first_wall_ms", " ms", at_most=300),
    Aim("memory of an idle worker (RSS)", "now_rss_mb", " MB", at_most=40),
)


def show(found: Found) -> str:
    """For each store every command, and where there are two sides their ratio; then the aims."""
    parts = [f"{LABELS[store]}, {figures['rounds']} rounds:\n\n{show_store(figures)}" for store, figures in found.items()]
    return "\n\n".join([*parts, judged(found, AIMS)])


def show_store(figures: Figures) -> str:
    """Every command, and the worker."""
    sides = figures["sides"]
    rows = []
    for name in COMMANDS:
        keys = [f"{side}_{which} {name}" for side in sides for which in ("cpu_ms", "wall_ms")]
        cells = [spread(figures[key]) if key in figures else "" for key in keys]
        if len(sides) > 1:
            both = [figures.get(f"{side}_cpu_ms {name}", []) for side in sides]
            cells.append(spread(ratios(*both)) if all(both) else "")
        rows.append((f"`{name}`", *cells))
    head = [f"{which}, {side}, ms" for side in sides for which in ("CPU", "wall")] + (["ratio of CPU"] if len(sides) > 1 else [])
    worker = [(what, *(spread(figures[f"{side}_{key}"]) for side in sides)) for key, what in WORKER.items()]
    return f"{table(('command', *head), rows)}\n\n{table(('worker', *sides), worker)}"
