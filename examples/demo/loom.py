"""The handlers of `treadle demo`, run by real worker processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from treadle.engine import Engine
from treadle.model.retry import RetryPolicy
from treadle.model.values import Json
from treadle.workers.context import Context
from treadle.workers.functions.context import FunctionContext

engine = Engine()


async def _wait_for(path: Path) -> None:
    while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.05)


@engine.handler("loom.weave")
async def weave(payload: dict[str, Json], ctx: Context) -> dict[str, Json]:
    """Run for a while and report progress. The last row waits for the file `until`, if one is given."""
    rows: int = payload["rows"]
    for row in range(1, rows + 1):
        await asyncio.sleep(payload["seconds"] / rows)
        if row == rows and "until" in payload:
            await _wait_for(Path(payload["until"]))
        ctx.progress(row / rows, f"row {row} of {rows}")
    return {"rows": rows, "pid": os.getpid()}


@engine.handler("loom.dye", retry=RetryPolicy.of(2, first=0.5))
async def dye(payload: dict[str, Json], ctx: Context) -> dict[str, Json]:
    """Fail the first time."""
    if ctx.attempt == 1:
        ctx.log("the vat is still cold", "warning")
        raise RuntimeError("the vat is cold")
    await asyncio.sleep(0.5)
    return {"colour": payload["colour"], "pid": os.getpid()}


engine.handler("loom.carpet")(weave)


@engine.handler("loom.Bolt")
async def bolt(payload: dict[str, Json]) -> dict[str, Json]:
    """A step of the workflow."""
    await asyncio.sleep(0.4)
    return {"label": f"bolt {payload['number']}, {payload['metres']} m"}


@engine.function("loom.Deliver")
async def deliver(payload: dict[str, Json], ctx: FunctionContext) -> dict[str, Json]:
    """A durable function: it sleeps and waits for a person in the store, then continues on any worker."""
    await ctx.sleep(payload["rest"])
    decision = await ctx.approval(f"Deliver to {payload['to']}?", context={"to": payload["to"], "at": "midnight"}, edits=True)
    return {**decision["context"], "by": decision["by"]}


@engine.handler("loom.Inspect")
def inspect(payload: dict[str, Json]) -> dict[str, Json]:
    """Fail until somebody turns on the lamp."""
    if not Path(payload["lamp"]).exists():
        raise RuntimeError("the lamp is off")
    return {"grade": "A"}
