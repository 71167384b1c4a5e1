import asyncio

from treadle import Engine

engine = Engine("memory://")


@engine.function
async def tell(payload, ctx):
    for word in ("Once", "upon", "a", "time"):
        ctx.stream("words").write(word)
        await ctx.sleep(0.01)


@engine.function
async def shout(payload, ctx):
    child = await ctx.start("tell")
    return [entry.value.upper() async for entry in ctx.read_stream(child, "words")]


async def main():
    async with engine, engine.worker():
        run = await engine.start("shout")
        assert await run.result() == ["ONCE", "UPON", "A", "TIME"]


asyncio.run(main())
