"""The handlers of the event facets in trip.afl."""

import asyncio

from treadle import Engine

engine = Engine("sqlite:///treadle.db")
PRICES = {"Rome": 120}


@engine.handler("trip.Weather")
async def weather(city: str) -> dict[str, int]:
    print(f"weather of {city}", flush=True)
    await asyncio.sleep(10)
    return {"degrees": 12}


@engine.handler("trip.Hotel")
async def hotel(city: str) -> dict[str, int]:
    print(f"hotel in {city}", flush=True)
    return {"price": PRICES[city]}


@engine.handler("trip.Plan")
async def plan(city: str, degrees: int, price: int) -> dict[str, str]:
    print(f"plan for {city}", flush=True)
    where = "the beach" if degrees > 25 else "a museum"
    return {"text": f"{city}: {where}, {price} a night"}
