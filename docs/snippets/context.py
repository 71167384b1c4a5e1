import asyncio
import time
from contextvars import ContextVar

from treadle import Engine, Interceptor

tenant: ContextVar[str] = ContextVar("tenant")
engine = Engine("memory://", propagate=[tenant])


class Timed(Interceptor):
    async def handler(self, ctx, proceed):
        started = time.monotonic()
        try:
            return await proceed(ctx)
        finally:
            print(f"{ctx.task.name} for {tenant.get()}: {time.monotonic() - started:.1f} s")


engine.intercept(Timed())


@engine.handler("invoice")
def invoice(payload):
    return {"tenant": tenant.get()}


@engine.function("bill")
async def bill(payload, ctx):
    return (await ctx.call("invoice", payload))["tenant"]


async def main():
    async with engine, engine.worker():
        tenant.set("acme")
        run = await engine.start("bill", {"order": 7})
        print(await run.result())  # acme


asyncio.run(main())
