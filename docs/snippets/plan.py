import asyncio

from treadle import Engine

engine = Engine("memory://")


@engine.handler("pick")
async def pick(payload):
    return {"sku": payload["sku"], "price": 7}


@engine.handler("charge")
async def charge(payload):
    return {"paid": payload["amount"]}


PLAN = [
    {"name": "pick", "handler": "pick", "arguments": {"sku": {"$from": "inputs.sku"}}},
    {
        "name": "charge",
        "handler": "charge",
        "arguments": {"amount": {"$from": "pick.price"}},
        "retry": 3,
    },
]


async def main():
    async with engine, engine.worker():
        run = await engine.start_plan(PLAN, {"sku": "tea"})
        print(await run.result())  # {'pick': {...}, 'charge': {'paid': 7}}


asyncio.run(main())
