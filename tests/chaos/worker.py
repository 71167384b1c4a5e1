"""A worker process: `python -m tests.chaos.worker FOLDER`. The store is that of TREADLE_STORE.

What it takes and lets go is a line in a file of its own, written at once, so that what it held when it was killed is known:
`+ AT TASK` and `- AT TASK`, in milliseconds. All else that the engine tells goes to stdout, a JSON object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from pathlib import Path

import msgspec
from tests.chaos.crew import furnish
from tests.chaos.service_client import ServiceClient
from tests.kernels import move_to

from treadle import Engine
from treadle.kernel.store.process import SystemClock
from treadle.kernel.telemetry.events import ExternalHint, LeaseLost, ResultDropped, TaskSettled, TaskTaken, TelemetryEvent
from treadle.model.errors import StoreError

AGAIN = 0.2
"""Seconds after which a start that the store refused is tried again."""


class Diary:
    """The claims of this process, one line each."""

    def __init__(self, path: Path) -> None:
        self._clock = SystemClock()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def emit(self, event: TelemetryEvent) -> None:
        """Write what the engine tells."""
        match event:
            case TaskTaken():
                self._write("+", event.task_id)
            case TaskSettled():
                self._write("-", event.task_id)
            case ExternalHint():
                pass
            case _:
                if isinstance(event, LeaseLost | ResultDropped):
                    self._write("-", event.task_id)
                print(json.dumps({"event": type(event).__name__, **msgspec.structs.asdict(event)}), flush=True)

    def _write(self, sign: str, task_id: str) -> None:
        os.write(self._file, f"{sign} {self._clock.now()} {task_id}\n".encode())


async def work(options: argparse.Namespace) -> None:
    """Work until told to stop; a store that is away when this starts is waited for."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    diary = Diary(options.diary)
    service = ServiceClient(options.port)
    while not stop.is_set():
        engine = Engine(emit=diary.emit)
        furnish(engine, service, options.folder)
        try:
            await engine.open()
            async with engine.worker(
                lease=options.lease, grace=5, concurrency=options.concurrency, threads=4, name=options.name
            ) as host:
                print(json.dumps({"event": "ready", "owner_id": host.owner_id}), flush=True)
                await stop.wait()
        except StoreError as error:
            print(json.dumps({"event": "could not start", "error": str(error)}), flush=True)
            await asyncio.sleep(AGAIN)
        finally:
            await engine.close()
    service.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--diary", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--lease", type=float, required=True)
    parser.add_argument("--concurrency", type=int, default=30)
    parser.add_argument("--kernel", default="")
    options = parser.parse_args()
    if options.kernel:
        move_to(options.kernel)
    asyncio.run(work(options))


if __name__ == "__main__":
    main()
