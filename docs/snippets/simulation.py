import asyncio

from treadle.testing.simulation import Simulation

charged = []


async def serve(simulation, process):
    engine = simulation.engine(process)

    @engine.handler("charge")
    async def charge(payload, ctx):
        await ctx.effect("charge", lambda: charged.append(ctx.idempotency_key))
        await asyncio.sleep(60)  # a minute on a clock that costs nothing
        return {}

    await engine.open()
    await simulation.worker(engine, process).start()


async def story(simulation):
    client = simulation.engine(simulation.start_process("client"))
    task = await client.enqueue("charge", {})
    first = simulation.start_process("server")
    first.spawn(serve(simulation, first))
    await asyncio.sleep(30)
    first.crash("is killed while it works")
    second = simulation.start_process("server")
    second.spawn(serve(simulation, second))
    await asyncio.sleep(120)
    return await task.status()


done = Simulation(seed=7).run(story)
assert done.state == "completed"
assert done.attempt == 2
assert len(charged) == 1  # the second worker found what the first had recorded
print(
    "done after",
    (done.finished_at - done.created_at).total_seconds(),
    "seconds of its own time",
)
