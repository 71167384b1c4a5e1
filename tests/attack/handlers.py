"""The handlers of attacked workers. Each execution and each effect is a line in the file in ATTACK_LEDGER."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from treadle import Context, Engine, RetryPolicy

LEDGER = os.environ.get("ATTACK_LEDGER", os.devnull)  # noqa: TID251
OFTEN = RetryPolicy.of(20, first=0.1, longest=1)

engine = Engine()


def note(*words: object) -> None:
    """Append a line; O_APPEND keeps the lines of several processes apart."""
    file = os.open(LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{json.dumps(words)}\n".encode())
    finally:
        os.close(file)


def _ran(payload: Any, ctx: Context) -> None:
    note("ran", payload["key"], ctx.task_id, ctx.attempt, os.getpid())


async def _charge(payload: Any, ctx: Context) -> str:
    async def charge() -> str:
        note("charged", payload["key"], ctx.dedupe_key, ctx.attempt, os.getpid())
        return f"receipt {payload['key']}"

    return str(await ctx.effect("charge", charge, payload["key"]))


@engine.handler("attack.plain", retry=OFTEN)
async def plain(payload: Any, ctx: Context) -> Any:
    _ran(payload, ctx)
    await asyncio.sleep(payload["takes"])  # the time of the work, in which its process is killed
    return {"key": payload["key"]}


@engine.handler("attack.effect", retry=OFTEN)
async def effect(payload: Any, ctx: Context) -> Any:
    _ran(payload, ctx)
    return {"receipt": await _charge(payload, ctx)}


@engine.handler("attack.Note", retry=OFTEN)
async def note_step(payload: Any, ctx: Context) -> Any:
    _ran(payload, ctx)
    return {"done": payload["key"]}


@engine.handler("attack.Charge", retry=OFTEN)
async def charge_step(payload: Any, ctx: Context) -> Any:
    _ran(payload, ctx)
    return {"receipt": await _charge(payload, ctx)}


@engine.handler("attack.bystander")
async def bystander(payload: Any, ctx: Context) -> Any:
    """Hold a lease until the bombs are over."""
    _ran(payload, ctx)
    while not Path(payload["until"]).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.05)
    return {"key": payload["key"]}


@engine.handler("attack.Huge")
async def huge(payload: Any, ctx: Context) -> Any:
    """Return or raise what does not fit."""
    match payload["kind"]:
        case "text":
            return {"out": "x" * 200_000_000}
        case "list":
            return {"out": list(range(5_000_000))}
        case "deep":
            value: Any = 0
            for _ in range(100_000):
                value = [value]
            return {"out": value}
        case "cycle":
            cycle: list[Any] = []
            cycle.append(cycle)
            return {"out": cycle}
        case "shared":
            shared: Any = [0]
            for _ in range(60):
                shared = [shared, shared]
            return {"out": shared}
        case "number":
            return {"out": 10**100_000}
        case "surrogate":
            return {"out": "\ud800"}
        case _:
            raise ValueError("x" * 50_000_000)
