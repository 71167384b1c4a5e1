"""Functions that read streams: every entry once and in order, through deaths and replays, and without a worker while they wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.functions.driver import LEASE_FOR, Died, Process, Scene, function_scene, requeued, until
from tests.limits import BOUND

from treadle import BlockingFunctionContext, Context, Engine, FunctionContext
from treadle.model.errors import StepFailed, TaskNotFound
from treadle.workers.functions.stream_operations import BATCH, WAKE_AFTER

COUNT = 2 * BATCH + 5


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


async def read(payload: dict[str, Any], ctx: FunctionContext) -> list[Any]:
    return [entry.value async for entry in ctx.read_stream(payload["work"], "tokens", offset=payload.get("offset", 0))]


def read_blocking(payload: dict[str, Any], ctx: BlockingFunctionContext) -> list[Any]:
    return [entry.value for entry in ctx.read_stream(payload["work"], "tokens", offset=payload.get("offset", 0))]


READERS = pytest.mark.parametrize("reader", [read, read_blocking])


@pytest.mark.postgres
@READERS
async def test_a_waiting_reader_occupies_no_worker_and_receives_every_entry(url: str, reader: Any) -> None:
    engine, go_on = make_engine(url), asyncio.Event()
    engine.function("read")(reader)

    @engine.handler("write")
    async def write(payload: dict[str, Any], ctx: Context) -> None:
        for number in range(COUNT):
            ctx.stream("tokens").write(number)
        await go_on.wait()
        ctx.stream("tokens").write("end")

    async with asyncio.timeout(BOUND), engine, engine.worker():
        task = await engine.enqueue("write")
        run = await engine.start("read", {"work": task.id, "offset": 3})

        async def waits() -> bool:
            return await requeued(engine, run.id) and f"of {task.id} from offset {COUNT}" in (await run.why()).text

        await until(waits)
        assert "waits for entries of the stream tokens" in (await run.why()).text
        go_on.set()
        assert await run.result() == [*range(3, COUNT), "end"]
        assert {step.kind for step in await engine.kernel.functions.recorded(run.id)} == {"read"}


@pytest.mark.postgres
@READERS
async def test_a_finished_work_and_one_without_that_stream_end_the_reader(url: str, reader: Any) -> None:
    engine = make_engine(url)
    engine.function("read")(reader)

    @engine.handler("write")
    async def write(payload: dict[str, Any], ctx: Context) -> None:
        for number in range(payload["count"]):
            ctx.stream("tokens").write(number)

    async with asyncio.timeout(BOUND), engine, engine.worker():
        for count in (COUNT, BATCH, 0):
            task = await engine.enqueue("write", {"count": count})
            await task.result()
            assert await (await engine.start("read", {"work": task.id})).result() == list(range(count))


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_function_reads_the_stream_of_a_child_that_it_starts(url: str, blocking: bool) -> None:
    engine = make_engine(url)

    @engine.function("write")
    async def write(payload: dict[str, Any], ctx: FunctionContext) -> str:
        for number in range(3):
            ctx.stream("tokens").write(number)
            await ctx.sleep(0.01)
        return "written"

    if blocking:

        @engine.function("read")
        def read_child(payload: dict[str, Any], ctx: BlockingFunctionContext) -> list[Any]:
            child = ctx.start("write")
            return [*(entry.value for entry in ctx.read_stream(child, "tokens")), child.result()]

    else:

        @engine.function("read")
        async def read_child_async(payload: dict[str, Any], ctx: FunctionContext) -> list[Any]:
            child = await ctx.start("write")
            return [*[entry.value async for entry in ctx.read_stream(child, "tokens")], await child.result()]

    async with asyncio.timeout(BOUND), engine, engine.worker():
        assert await (await engine.start("read")).result() == [0, 1, 2, "written"]


async def test_branches_read_streams_concurrently(url: str) -> None:
    engine = make_engine(url)

    @engine.handler("write")
    async def write(payload: dict[str, Any], ctx: Context) -> None:
        for number in range(2):
            ctx.stream("tokens").write(f"{payload['name']}{number}")
            await ctx.stream("tokens").flush()

    @engine.function("read")
    async def read_both(payload: dict[str, Any], ctx: FunctionContext) -> list[list[Any]]:
        async def read_one(work: str) -> list[Any]:
            return [entry.value async for entry in ctx.read_stream(work, "tokens")]

        return await ctx.gather(*(read_one(work) for work in payload["works"]))

    async with asyncio.timeout(BOUND), engine:
        works = [await engine.enqueue("write", {"name": name}) for name in ("a", "b")]
        run = await engine.start("read", {"works": [work.id for work in works]})
        async with engine.worker():
            assert await run.result() == [["a0", "a1"], ["b0", "b1"]]


# deaths


def register(engine: Engine, handled: list[Any]) -> None:
    @engine.function("write")
    async def write(payload: dict[str, Any], ctx: FunctionContext) -> None:
        for number in range(4):
            ctx.stream("tokens").write(number)
            await ctx.sleep(1)

    @engine.function("read")
    async def read(payload: dict[str, Any], ctx: FunctionContext) -> list[Any]:
        values = []
        async for entry in ctx.read_stream(payload["work"], "tokens"):
            assert entry.value not in values

            async def handle(value: Any = entry.value) -> Any:
                handled.append(value)
                return value

            values.append(await ctx.step(handle))
        return values


async def finished(scene: Scene, run_id: str, process: Process) -> None:
    for _ in range(10):
        await process.quiet()
        if await scene.state(run_id) == "completed":
            return
        scene.clock.advance(WAKE_AFTER)


async def test_a_reader_that_dies_at_any_commit_reads_every_entry_once() -> None:
    died = 0
    for at in range(1, 27):
        handled: list[Any] = []
        async with function_scene() as scene:
            register(scene.engine, handled)
            work = await scene.engine.start("write")
            run = await scene.engine.start("read", {"work": work.id})
            process = scene.process(dies_at=at, after=at % 4 > 1)
            try:
                await finished(scene, run.id, process)
            except Died:
                died += 1
                process.die()
                scene.clock.advance(LEASE_FOR + 1)
                await scene.engine.kernel.store.tasks.wake(1000, expire_leases=True)
                await finished(scene, run.id, scene.process(warm=at % 2))
            assert await scene.engine.result(run) == [0, 1, 2, 3]
            assert sorted(set(handled)) == [0, 1, 2, 3]
            assert len(handled) <= 5
    assert died >= 10


async def test_a_reader_without_its_process_wakes_by_itself() -> None:
    async with function_scene() as scene:
        scene.engine.function("read")(read)
        work = await scene.engine.enqueue("write")
        run = await scene.engine.start("read", {"work": work.id})
        process = scene.process()
        await process.quiet()
        process.die()
        await scene.engine.cancel(work)
        other = scene.process()
        await other.quiet()
        assert await scene.state(run.id) == "running"
        scene.clock.advance(WAKE_AFTER)
        await other.quiet()
        assert await scene.engine.result(run) == []


async def test_cancelling_a_waiting_reader_ends_it() -> None:
    async with function_scene() as scene:
        scene.engine.function("read")(read)
        work = await scene.engine.enqueue("write")
        run = await scene.engine.start("read", {"work": work.id})
        process = scene.process()
        await process.quiet()
        await run.cancel()
        await process.quiet()
        assert await scene.state(run.id) == "canceled"


# refusals


async def test_a_stream_of_a_missing_task_is_a_failed_step_in_every_replay() -> None:
    async with function_scene() as scene:
        caught: list[BaseException] = []

        @scene.engine.function("read")
        async def read_missing(payload: dict[str, Any], ctx: FunctionContext) -> str:
            with pytest.raises(StepFailed) as error:
                await anext(ctx.read_stream(payload["work"], "tokens"))
            caught.append(error.value)
            await ctx.sleep(1)
            return str(error.value)

        run = await scene.engine.start("read", {"work": "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"})
        await scene.process().quiet()
        scene.clock.advance(1000)
        await scene.process().quiet()
        assert TaskNotFound.code in await scene.engine.result(run)
        first, second = caught
        assert str(first) == str(second)
