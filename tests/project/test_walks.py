"""The number of source files that one piece of work passes through, so that layers cannot grow back unnoticed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import treadle
from treadle import Engine, FunctionContext

ROOT = f"{Path(treadle.__file__).parent}/"
LIMITS = {"enqueue": 20, "task": 30, "workflow run": 50, "function step": 20}
"""Files per walk; lower a limit when a walk gets shorter, never raise one."""
AFL = """namespace o {
  event facet Pack(item: String) => (box: String)
  workflow Ship(item: String) => (box: String) andThen {
    p = Pack(item = $.item)
    yield Ship(box = p.box)
  }
}"""


class Walk:
    """Records the files of Treadle in which a function is called on this thread."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT):
            self.files.add(name.removeprefix(ROOT))

    def __enter__(self) -> Walk:
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


async def walks() -> dict[str, Walk]:
    """Walk through an enqueue, a task, a workflow of one step and a step of a function, each with warm caches."""
    done: dict[str, Walk] = {}
    engine = Engine("memory://")

    @engine.handler("greet")
    async def greet(payload: dict[str, Any]) -> dict[str, Any]:
        return {"text": payload["name"]}

    @engine.handler("o.Pack")
    async def pack(payload: dict[str, Any]) -> dict[str, Any]:
        return {"box": payload["item"]}

    async def charge(amount):  # without annotations, whose conversion is a file of its own
        return amount

    @engine.function("order")
    async def order(payload: dict[str, Any], ctx: FunctionContext) -> None:
        await ctx.step(charge, 1)
        with Walk() as done["function step"]:
            await ctx.step(charge, 2)

    async with engine, engine.worker():
        for _ in range(3):
            await engine.result(await engine.enqueue("greet", {"name": "Ada"}))
        with Walk() as done["enqueue"]:
            task = await engine.enqueue("greet", {"name": "Ada"})
        await engine.result(task)
        with Walk() as done["task"]:
            await engine.result(await engine.enqueue("greet", {"name": "Ada"}))
        await engine.run_result(await engine.start_run([("x.afl", AFL)], "o.Ship", {"item": "pen"}))
        with Walk() as done["workflow run"]:
            await engine.run_result(await engine.start_run([("x.afl", AFL)], "o.Ship", {"item": "pen"}))
        await engine.run_result(await engine.start_function("order", {}))
    return done


async def test_no_walk_passes_through_more_files_than_its_limit() -> None:
    done = await walks()
    over = {name: sorted(walk.files) for name, walk in done.items() if len(walk.files) > LIMITS[name]}
    assert done.keys() == LIMITS.keys()
    assert not over
