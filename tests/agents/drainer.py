"""A process of agents: `python -m tests.agents.drainer MODE URL FILE` handles tasks until its stdin ends.

Modes: `poll` runs two pollers with `start`, `claim` two threads that call `claim_task`, `hang` one poller whose
handler never ends. Each number that a task brings is appended to the file; nobody goes on before another has begun.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from treadle.agents import AgentPoller, AgentPollerConfig, Evaluator, Persistence


def main(mode: str, url: str, file: str) -> None:
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with Persistence(url) as store:
        evaluator = Evaluator(store)

        def handle(payload: dict) -> dict:
            os.write(log, f"{payload['n']}\n".encode())
            while mode == "hang" or alone(file):
                time.sleep(0.05)
            return {"n": payload["n"]}

        if mode == "claim":
            stop = threading.Event()
            threads = [threading.Thread(target=claim, args=(store, evaluator, handle, stop)) for _ in range(2)]
        else:
            config = AgentPollerConfig(poll_interval_ms=200, heartbeat_interval_ms=100)
            pollers = [AgentPoller(store, evaluator, config) for _ in range(1 if mode == "hang" else 2)]
            for poller in pollers:
                poller.register("work.Item", handle)
            threads = [threading.Thread(target=poller.start) for poller in pollers]
        for thread in threads:
            thread.start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
        if mode == "claim":
            stop.set()
        else:
            for poller in pollers:
                poller.stop()
        for thread in threads:
            thread.join()


def alone(file: str) -> bool:
    """Whether no other process has handled anything yet."""
    return not any(each.stat().st_size for each in Path(file).parent.glob("*.log") if each != Path(file))


def claim(store: Persistence, evaluator: Evaluator, handle, stop: threading.Event) -> None:
    while not stop.is_set():
        task = store.claim_task(["Item"])
        if task is None:
            stop.wait(0.05)
        else:
            evaluator.continue_step(task.step_id, handle(task.data))
            evaluator.resume(task.workflow_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
