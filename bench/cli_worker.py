"""A worker process from its start to its first task, and its memory once it is idle."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

IDLE_FOR = 1.0
"""Seconds after the first task until memory is read."""

HANDLERS = """
import time
from treadle import Engine

engine = Engine()

@engine.handler("bench.first")
async def first(payload):
    print("first", time.monotonic(), time.process_time(), flush=True)
"""


def started_worker(environment: dict[str, str]) -> dict[str, float]:
    """CPU and wall milliseconds to the first task, and megabytes of the idle worker and its lease sidecar."""
    environment = environment | {"TREADLE_LOG_LEVEL": "ERROR"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "handlers.py").write_text(HANDLERS)
        treadle = [sys.executable, "-m", "treadle"]
        subprocess.run([*treadle, "enqueue", "bench.first"], cwd=folder, env=environment, capture_output=True, check=True)
        began = time.monotonic()
        command = [*treadle, "worker", "--handlers", "handlers.py"]
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as worker:
            assert worker.stdout is not None
            _, at, cpu = next(line for line in worker.stdout if line.startswith("first ")).split()
            time.sleep(IDLE_FOR)
            found = {"first_cpu_ms": float(cpu) * 1000, "first_wall_ms": (float(at) - began) * 1000, **memory_of(worker.pid)}
            children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
            for child in children[:1]:
                found |= {f"sidecar_{name}": value for name, value in memory_of(int(child)).items()}
            worker.terminate()
    return found


def memory_of(pid: int) -> dict[str, float]:
    """Resident and proportional megabytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines[1:])}
    return {"rss_mb": sizes["Rss"], "pss_mb": sizes["Pss"]}
