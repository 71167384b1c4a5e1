"""An order in three steps. Each step adds a line to steps.log, so that you can count them."""

import asyncio
from pathlib import Path

from treadle import Engine, FunctionContext

engine = Engine("sqlite:///treadle.db")


def log(line: str) -> None:
    with Path("steps.log").open("a") as file:
        file.write(f"{line}\n")
    print(line, flush=True)


async def charge(item: str) -> str:
    log(f"charging the card for {item}")
    return "receipt 1"


async def pack(item: str) -> str:
    log(f"packing {item}")
    await asyncio.sleep(10)
    return "box 1"


async def ship(box: str) -> str:
    log(f"shipping {box}")
    return "parcel 1"


@engine.function("order")
async def order(item: str, ctx: FunctionContext) -> dict[str, str]:
    receipt = await ctx.step(charge, item)
    box = await ctx.step(pack, item, retry=2)
    return {"receipt": receipt, "parcel": await ctx.step(ship, box)}
