"""A process that was forked from one with an open engine: each call raises, none hangs, and the parent is not disturbed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines import ALL, url_of
from tests.limits import BOUND

ASYNC = """
import asyncio, os, sys
from treadle import Engine
from treadle.model.errors import UsedAfterFork

CALLS = {
    "enqueue": lambda engine: engine.enqueue("greet", {}),
    "get": lambda engine: engine.tasks.get(task.id),
    "result": lambda engine: engine.result(task.id, timeout=60),
    "list": lambda engine: engine.tasks.list(where="name = greet"),
    "worker": lambda engine: engine.worker().__aenter__(),
    "signals": lambda engine: engine.kernel.store.subscribe(print),
    "notify": lambda engine: engine.kernel.store.notify(()),
}

async def child(engine, name):
    try:
        await CALLS[name](engine)
        print(name, "did not raise")
    except UsedAfterFork as error:
        print(error.code)
    await engine.close()

async def main():
    global task
    async with Engine(sys.argv[1]) as engine:
        task = await engine.enqueue("greet", {})
        for name in CALLS:
            sys.stdout.flush()
            if (pid := os.fork()) == 0:
                try:
                    asyncio.run(child(engine, name))
                except BaseException as error:
                    print(name, repr(error))
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(pid, 0)
        await engine.enqueue("greet", {})
        print(len((await engine.tasks.list(where="name = greet")).tasks))

asyncio.run(main())
"""

BLOCKING = """
import os, sys
from treadle import Engine
from treadle.model.errors import UsedAfterFork

with Engine(sys.argv[1]).blocking() as e:
    task = e.enqueue("greet", {})
    for call in (lambda: e.enqueue("greet", {}), lambda: e.result(task.id, timeout=60), lambda: e.start_worker()):
        sys.stdout.flush()
        if (pid := os.fork()) == 0:
            try:
                call()
                print("did not raise")
            except UsedAfterFork as error:
                print(error.code)
            e.__exit__()
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)
    e.enqueue("greet", {})
    print(e.tasks.get(task.id).name)
"""


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(("script", "calls", "end"), [(ASYNC, 7, "2"), (BLOCKING, 3, "greet")], ids=["async", "blocking"])
def test_each_call_of_a_forked_process_raises(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, script: str, calls: int, end: str
) -> None:
    command = [sys.executable, "-c", script, url_of(kind, request, tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False)
    assert (ended.stdout.split(), ended.returncode) == (["used_after_fork"] * calls + [end], 0), ended.stdout + ended.stderr
