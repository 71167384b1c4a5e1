"""Queries and updates of running functions: published values, and requests that are answered exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.engines import make_engine, url_of
from tests.functions.driver import Died, Scene, function_scene
from tests.limits import BOUND
from tests.sizes import POSTGRES

from treadle import FunctionContext, Update, UpdateRejected, UpdateUnanswered
from treadle.engine.operations import Operations
from treadle.kernel.store.units import PutRun
from treadle.model.access import OPEN
from treadle.model.errors import IllegalTransition, InvalidInput, InvalidPayload, NotFound, RunFailed


@dataclass
class Address:
    street: str
    zip: int


@pytest.fixture(params=["memory", POSTGRES])
async def scene(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    async with function_scene(url_of(request.param, request, tmp_path)) as opened:
        yield opened


@pytest.fixture
async def memory(kind: str) -> AsyncIterator[Scene]:
    async with function_scene() as opened:
        yield opened


@pytest.mark.postgres
async def test_a_published_value_is_read_without_a_worker_and_follows_the_lineage(scene: Scene) -> None:
    @scene.engine.function("ship")
    async def ship(payload: dict[str, Any], ctx: FunctionContext) -> str:
        if not payload:
            ctx.publish("progress", 0.1)
            ctx.publish("address", Address("Main", 1))
            await ctx.wait_for("go")
            await ctx.continue_as_new({"again": True})
        await ctx.wait_for("go")
        ctx.publish("progress", 0.9)
        ctx.publish("big", "x" * 20_000)
        return "done"

    started = await scene.engine.start(ship, {})
    process = scene.process(warm=0)
    with pytest.raises(NotFound, match="published nothing"):
        await started.query("progress")
    await process.quiet()
    assert await started.query("progress") == 0.1
    assert await started.query("address", type=Address) == Address("Main", 1)
    with pytest.raises(NotFound, match="progress, address"):
        await started.query("speed")
    await scene.engine.signal(started, "go")
    await process.quiet()
    assert await started.query("progress") == 0.1
    await scene.engine.signal(started, "go")
    await process.quiet()
    assert await scene.engine.run_result(started) == "done"
    assert await scene.engine.kernel.runs.query(started.id, "progress") == 0.9
    assert await started.query("big") == "x" * 20_000
    api = Operations(scene.engine, OPEN)
    found = await api.runs.query(started.id, "progress")
    assert (found.value, found.run_id != started.id) == (0.9, True)
    assert (await api.runs.get(started.id)).published["address"] == {"street": "Main", "zip": 1}
    assert [each[1] for each in await scene.steps(started.id)].count("publish progress") == 1
    assert (await scene.engine.kernel.verify()).problems == ()


async def test_published_values_are_bounded_and_must_be_storable(memory: Scene) -> None:
    refusals: list[str] = []

    @memory.engine.function("chatty")
    async def chatty(payload: dict[str, Any], ctx: Any) -> None:
        for name, value in (("a b", 1), ("object", object()), ("huge", "x" * 2_000_000)):
            try:
                ctx.publish(name, value)
            except InvalidInput as error:
                refusals.append(str(error))
        for number in range(101):
            ctx.publish(f"n{number}", number)

    started = await memory.engine.start_function("chatty")
    await memory.process().quiet()
    assert len(refusals) == 3
    with pytest.raises(RunFailed, match="up to 100 names"):
        await memory.engine.run_result(started)


def _register(scene: Scene, seen: list[Any]) -> None:
    """A function that answers updates until it is told to end."""

    @scene.engine.function("order")
    async def order(payload: dict[str, Any], ctx: FunctionContext) -> Any:
        while True:
            update: Update[Address] = await ctx.update("set_address", type=Address)
            seen.append(update.value)
            if update.value.zip < 0:
                await update.reject("no such place")
            elif update.value.street == "leave":
                await ctx.continue_as_new({})
            else:
                await update.reply({"zip": update.value.zip + 1})
                if update.value.street == "end":
                    return "ended"


async def _sent(scene: Scene, run: Any, key: str | None = None, /, **address: Any) -> Any:
    return await scene.engine.kernel.functions.send_update(run, "set_address", address, idempotency_key=key)


async def test_an_update_is_answered_once_and_its_answer_is_kept(scene: Scene) -> None:
    seen: list[Any] = []
    _register(scene, seen)
    functions = scene.engine.kernel.functions
    started = await scene.engine.start_function("order")
    process = scene.process(warm=0)
    await process.quiet()
    assert "the update set_address" in (await scene.engine.why(started)).text
    sent = await _sent(scene, started, "k", street="Main", zip=1)
    assert await functions.find_answer(sent) is None
    assert await _sent(scene, started, "k", street="Main", zip=1) == sent
    await process.quiet()
    assert (await functions.find_answer(sent)).value == {"zip": 2}
    assert await scene.engine.kernel.runs.update(started, "set_address", Address("Main", 1), idempotency_key="k") == {"zip": 2}
    rejected = await _sent(scene, started, street="Main", zip=-1)
    wrong = await _sent(scene, started, street="Main", zip="many")
    await process.quiet()
    with pytest.raises(UpdateRejected, match="no such place"):
        await functions.find_answer(rejected)
    with pytest.raises(UpdateRejected, match=r"\$\.zip"):
        await functions.find_answer(wrong)
    left = await _sent(scene, started, street="leave", zip=1)
    kept = await _sent(scene, started, "kept", street="end", zip=3)  # the next run receives it
    late = await _sent(scene, started, street="late", zip=4)
    await process.quiet()
    with pytest.raises(UpdateUnanswered):
        await functions.find_answer(left)
    assert (await functions.find_answer(kept)).value == {"zip": 4}
    assert await scene.engine.run_result(started) == "ended"
    with pytest.raises(UpdateUnanswered):
        await functions.wait_for_answer(late)
    assert await scene.engine.kernel.runs.update(started, "set_address", None, idempotency_key="k") == {"zip": 2}
    with pytest.raises(IllegalTransition):
        await _sent(scene, started, street="Main", zip=1)
    assert (await scene.engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("commit", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [False, True])
async def test_a_process_that_dies_at_any_commit_answers_every_update_once(memory: Scene, commit: int, after: bool) -> None:
    seen: list[Any] = []
    _register(memory, seen)
    started = await memory.engine.start_function("order")
    first = await _sent(memory, started, "1", street="Main", zip=1)
    second = await _sent(memory, started, "2", street="end", zip=2)
    dying = memory.process(dies_at=commit, after=after)
    try:
        await dying.quiet()
    except Died:
        dying.die()
    memory.clock.advance(61)
    await memory.process().quiet()
    assert await memory.engine.run_result(started) == "ended"
    functions = memory.engine.kernel.functions
    assert [(await functions.find_answer(each)).value for each in (first, second)] == [{"zip": 2}, {"zip": 3}]
    answers = [each for each in await memory.engine.kernel.functions.recorded(started.id) if each.kind == "reply"]
    assert len(answers) == 2


async def test_an_update_that_meets_a_continuation_is_answered_by_the_next_run(scene: Scene) -> None:
    seen: list[Any] = []
    _register(scene, seen)
    started = await scene.engine.start_function("order")
    await _sent(scene, started, street="leave", zip=1)
    process = scene.process()
    inner, met = process.committer.submit, []

    async def meet(unit: Any, patience: float | None = None) -> Any:
        if not met and any(isinstance(row, PutRun) for row in unit.rows):
            met.append(await _sent(scene, started, "met", street="end", zip=7))
        return await inner(unit, patience)

    process.committer.submit = meet  # type: ignore[method-assign]
    await process.quiet()
    assert (await scene.engine.kernel.functions.find_answer(met[0])).value == {"zip": 8}


async def test_callers_wait_for_the_answer() -> None:
    async with make_engine("memory://") as engine:

        @engine.function("order")
        async def order(payload: dict[str, Any], ctx: FunctionContext) -> None:
            update = await ctx.update("set_address")
            await update.reply(["moved", update.value])
            await ctx.wait_for("never", timeout=1)

        started = await engine.start("order")
        with pytest.raises(TimeoutError, match="has not answered the update set_address"):
            await started.update("set_address", 1, timeout=0.05, idempotency_key="k")
        async with engine.worker(), asyncio.timeout(BOUND):
            assert await started.update("set_address", 1, idempotency_key="k") == ["moved", 1]
            with pytest.raises((InvalidInput, InvalidPayload)):
                await started.update("set_address", object())


async def test_values_that_concurrent_branches_publish_are_all_kept(scene: Scene) -> None:
    gate = asyncio.Event()

    async def slow() -> None:
        await gate.wait()

    async def fast() -> None: ...

    @scene.engine.function("branches")
    async def branches(payload: dict[str, Any], ctx: FunctionContext) -> None:
        async def early() -> None:
            ctx.publish("early", 1)
            await ctx.step(slow)

        async def late() -> None:
            ctx.publish("late", 2)
            await ctx.step(fast)
            gate.set()

        await ctx.gather(early(), late())
        await ctx.wait_for("go")

    started = await scene.engine.start_function("branches")
    await scene.process(warm=0).quiet()
    found = await scene.engine.kernel.functions.list_published(started.id)
    assert set(found) == {"early", "late"}
    await scene.engine.signal(started, "go")
    await scene.process(warm=0).quiet()
    assert set(await scene.engine.kernel.functions.list_published(started.id)) == {"early", "late"}


async def test_a_refusal_of_one_name_too_many_is_the_same_in_a_replay(memory: Scene) -> None:
    said: list[list[str]] = []

    @memory.engine.function("limited")
    async def limited(payload: dict[str, Any], ctx: FunctionContext) -> None:
        if "again" not in payload:
            for number in range(60):
                ctx.publish(f"old{number}", number)
            await ctx.continue_as_new({"again": True})
        here: list[str] = []
        said.append(here)
        for number in range(60):
            try:
                ctx.publish(f"new{number}", number)
            except InvalidInput as error:
                here.append(f"{number}: {error}")
        ctx.publish("old3", "again")
        await ctx.wait_for("go")

    started = await memory.engine.start_function("limited")
    await memory.process(warm=0).quiet()
    await memory.engine.signal(started, "go")
    await memory.process(warm=0).quiet()
    await memory.engine.run_result(started)
    first, second = said
    assert first == second
    assert [each.split(":")[0] for each in first] == [str(number) for number in range(40, 60)]
