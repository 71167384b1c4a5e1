"""Call an API that allows ten requests a second, from any number of workers."""

import asyncio

from treadle import Engine, Problem, Retry

engine = Engine(program="weather")  # the store in TREADLE_STORE, else sqlite:///treadle.db
engine.declare.limit("weather-api", rate="10/s", burst=1)


async def request(city):
    """The API; (status, seconds to wait, or degrees)."""
    return 200, 3 * len(city)


@engine.handler("weather.Ask", limit_key="weather-api", retry=5)
async def ask(payload):
    status, value = await request(payload["city"])
    if status == 429:  # others use the API, too: wait as long as it asks for
        return Retry(
            Problem("rate_limited", "The API asks for a pause."), after_for=value * 1000
        )
    return {"degrees": value}


async def main():
    async with engine, engine.worker():
        async for result in engine.map(
            ask, [{"city": city} for city in ("Turin", "Oslo", "Lima")]
        ):
            print(result)


if __name__ == "__main__":
    asyncio.run(main())
