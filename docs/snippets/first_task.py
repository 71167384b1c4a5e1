import asyncio

from treadle import Engine

engine = Engine("sqlite:///treadle.db")


@engine.handler("greet", retry=3)
async def greet(payload, ctx):
    return {"text": f"Hello, {payload['name']}! This is attempt {ctx.attempt}."}


async def main():
    async with engine, engine.worker():
        task = await engine.enqueue("greet", {"name": "Ada"})  # durable when this returns
        print(await engine.result(task))


if __name__ == "__main__":
    asyncio.run(main())
