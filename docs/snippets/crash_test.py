"""A function with a planted bug, the crash test that finds it, and the repaired function."""

from treadle.testing import crash_test


def careless(engine, effects):
    async def charge():
        # a crash between this and the recording of the step charges the card twice
        effects.append("charged")
        return "r-1"

    @engine.function("order")
    async def order(payload, ctx):
        receipt = await ctx.step(charge)
        await ctx.sleep(60)
        return {"receipt": receipt}


def careful(engine, effects):
    async def charge(key):
        if ["charged", key] not in effects:  # as a bank does that is given an idempotency key
            effects.append(["charged", key])
        return "r-1"

    @engine.function("order")
    async def order(payload, ctx):
        receipt = await ctx.effect("charge", lambda: charge(ctx.idempotency_key), {"order": 1})
        await ctx.sleep(60)
        return {"receipt": receipt}


async def start(engine):
    return await engine.start("order", {})


if __name__ == "__main__":
    print(crash_test(careless, start).text())
    report = crash_test(careful, start)
    report.check()
    print(report.text())
