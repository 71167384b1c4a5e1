"""How long commands take to start: `python -m bench.cli --against SRC`, beside another revision's sources in the same run.

CPU time and wall time of whole processes, the median of rounds in which each command is run once on each side, so that what else
the machine does falls on both. `python -c pass` is what Python itself takes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = [["--help"], ["tasks", "--help"], ["tasks", "list"], ["tasks", "list", "--json"], ["completion", "bash", "--", "ta"]]
HERE = str(Path(__file__).parents[1] / "src")


def took(arguments: list[str], source: str, folder: str) -> tuple[float, float] | None:
    """CPU and wall seconds of one process; None if that revision has no such command."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run([sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": source}, capture_output=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (cpu, wall) if ended.returncode == 0 else None


def measure(rounds: int, against: str | None) -> list[dict[str, object]]:
    """For each command the medians on both sides, and their ratio."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in (f"task-{n}" for n in range(3)):
            took(["-m", "treadle", "enqueue", name], HERE, folder)
        for command in [["-c", "pass"], *(["-m", "treadle", *each] for each in COMMANDS)]:
            sides = {"now": HERE} | ({} if against is None else {"before": against})
            found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
            for _ in range(rounds):
                for side, source in sides.items():
                    one = took(command, source, folder)
                    found[side] += [] if one is None else [one]
            row: dict[str, object] = {"command": " ".join(command[2:]) if command[0] == "-m" else "python -c pass"}
            for side, times in found.items():
                if times:
                    row[f"{side}_cpu_ms"] = round(statistics.median(cpu for cpu, _ in times) * 1000)
                    row[f"{side}_wall_ms"] = round(statistics.median(wall for _, wall in times) * 1000)
            if found.get("before"):
                row["cpu_ratio"] = round(row["now_cpu_ms"] / row["before_cpu_ms"], 2)  # type: ignore[operator]
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--against", metavar="SRC", help="the folder src of another revision")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for row in measure(options.rounds, options.against):
        print(json.dumps(row) if options.json else "  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
