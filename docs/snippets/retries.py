import asyncio

from treadle import Engine, RetryPolicy

engine = Engine("memory://")


class CardDeclined(Exception):
    def __init__(self, reason, *, advice):
        super().__init__(reason)
        self.advice = advice


def is_busy(error):
    return getattr(error, "status", None) in (429, 503)


@engine.handler("report", retry=RetryPolicy.of(5, should_retry=is_busy))
async def report(payload, ctx):
    return {"sent": True}


async def charge(order):
    raise CardDeclined("stolen", advice="call the bank")


@engine.function("buy")
async def buy(payload, ctx):
    policy = RetryPolicy.of(
        5, on=(ConnectionError, TimeoutError), never=(ConnectionRefusedError,)
    )
    try:
        return await ctx.step(charge, payload, retry=policy)
    except CardDeclined as declined:  # it is a StepFailed, too
        return {"declined": declined.args[0], "advice": declined.advice}


async def main():
    async with engine, engine.worker():
        run = await engine.start("buy", {"order": 7})
        print(await run.result())  # {'declined': 'stolen', 'advice': 'call the bank'}


asyncio.run(main())
