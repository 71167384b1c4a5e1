import asyncio

from treadle import Engine, RetryPolicy

engine = Engine("memory://")


@engine.handler("story.Tell", retry=RetryPolicy.of(3, first=0.1))
async def tell(payload, ctx):
    tokens = ctx.stream("tokens")
    for word in ("Once ", "upon ", "a ", "time"):
        tokens.write(word)  # returns immediately; readers see it within about 0.1 s
        if ctx.attempt == 1 and word == "a ":
            raise ConnectionError("the model went away")
    return {"words": 4}


async def main():
    async with engine, engine.worker():
        task = await engine.enqueue("story.Tell")
        text = ""
        async for entry in engine.stream(task, "tokens"):
            if entry.kind == "abandoned":  # another attempt begins: forget what this one wrote
                text = ""
            elif entry.kind == "entry":
                text += entry.value
    assert text == "Once upon a time"


asyncio.run(main())
