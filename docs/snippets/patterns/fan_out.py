"""Ask the weather service of every city concurrently; one failure does not fail the report."""

import asyncio

from treadle import Engine, RetryPolicy, TaskFailed

engine = Engine()  # the store in TREADLE_STORE, else sqlite:///treadle.db


@engine.handler("weather.Ask", retry=RetryPolicy.of(2, first=0.1))
async def ask(payload):
    if payload["city"] == "Atlantis":
        raise LookupError("no station in Atlantis")
    return {"degrees": 3 * len(payload["city"])}


@engine.function("weather.Report")
async def report(payload, ctx):
    async def one(city):
        try:
            return {"city": city, **await ctx.call("weather.Ask", {"city": city})}
        except TaskFailed as error:
            return {"city": city, "error": error.error}

    answers = await ctx.gather(*(one(city) for city in payload["cities"]))
    degrees = [each["degrees"] for each in answers if "degrees" in each]
    return {"cities": answers, "warmest": max(degrees, default=None)}


async def main():
    async with engine, engine.worker():
        run = await engine.start(report, {"cities": ["Turin", "Atlantis", "Oslo"]})
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
