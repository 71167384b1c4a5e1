"""Book a trip of three parts at three services: all of them, or none."""

import asyncio

from treadle import Canceled, Engine, NonRetryable, RetryPolicy, StepFailed

engine = Engine()  # the store in TREADLE_STORE, else sqlite:///treadle.db
PARTS = ("flight", "hotel", "car")
PATIENT = RetryPolicy.of(50, first=1, longest=600)  # about seven hours


async def request(action, part, trip, key):
    """A booking service that performs a request once per key; canceling nothing is a no-op."""
    if action == "book" and part == trip.get("sold_out"):
        raise NonRetryable(f"no {part} left in {trip['city']}", "sold_out")
    print(f"{action} {part} in {trip['city']}")


@engine.function("trip", cleanup_timeout=86_400)
async def book_trip(trip, ctx):
    def perform(action, part, retry):
        return ctx.effect(
            f"{action} {part}",
            lambda: request(action, part, trip, ctx.idempotency_key),
            trip,
            retry=retry,
        )

    begun = []
    try:
        for part in PARTS:
            # before the request: it may take effect although no response arrives
            begun.append(part)
            await perform("book", part, retry=3)
    except (StepFailed, Canceled) as error:
        if isinstance(error, StepFailed) and error.error_code == "sold_out":
            begun.pop()  # the service refused: nothing was booked
        for part in reversed(begun):
            await perform("cancel", part, retry=PATIENT)
        if isinstance(error, Canceled):
            raise
        return {"state": "undone", "reason": error.error}
    return {"state": "booked"}


async def main():
    async with engine, engine.worker():
        for trip in ({"city": "Turin"}, {"city": "Oslo", "sold_out": "car"}):
            run = await engine.start(book_trip, trip)
            print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
