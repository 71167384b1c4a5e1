"""Typed arguments, results, steps, signals and continuations across engines, crashes and retries; and `engine.map`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pydantic
import pytest
from tests.engines import SHARED, make_engine, url_of
from tests.functions.driver import requeued, until

from treadle import Context, Engine, FunctionContext, RetryPolicy, RunFailed, TaskFailed
from treadle.model.errors import IdempotencyKeyReused, InvalidInput, InvalidPayload


class Line(pydantic.BaseModel):
    sku: str
    price: Decimal


@dataclass
class Order:
    id: UUID
    due: datetime
    lines: list[Line]
    files: dict[str, Path] = field(default_factory=dict)
    raw: bytes = b""


ORDER = Order(UUID(int=7), datetime(2026, 11, 16, tzinfo=UTC), [Line(sku="x", price=Decimal("1.10"))], {"a": Path("/x")}, b"\0")


def typed(url: str, calls: list[Any]) -> tuple[Engine, Any, Any]:
    """A process with a handler that fails once and a function that waits, which note what they receive."""
    engine = make_engine(url)

    @engine.handler("pack", retry=RetryPolicy(1, 1))
    async def pack(order: Order, ctx: Context) -> Order:
        calls.append(order)
        if ctx.attempt == 1:
            raise RuntimeError("the first attempt is lost")
        return order

    async def make(order: Order) -> Order:
        calls.append("made")
        return order

    @engine.function("flow")
    async def flow(order: Order, ctx: FunctionContext) -> list[Order]:
        made = await ctx.step(make, order)
        [gathered] = await ctx.gather(ctx.call(pack, made))
        signalled = await ctx.wait_for("go", type=Order)
        calls.append((order, made, gathered, signalled))
        if len(order.lines) < 2:
            await ctx.continue_as_new(Order(order.id, order.due, [*order.lines, *signalled.lines]))
        return [order, made, gathered, signalled]

    return engine, pack, flow


@pytest.mark.postgres
@pytest.mark.parametrize("kind", SHARED)
async def test_values_arrive_as_their_types_after_crashes(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = url_of(kind, request, tmp_path)
    calls: list[Any] = []
    first, pack, flow = typed(url, calls)
    async with first, first.worker():
        task = await first.enqueue(pack, ORDER)
        assert await task.result() == ORDER
        run = await first.start(flow, ORDER)
        await until(lambda: _waits(first, run.id, calls))
    assert calls == [ORDER, ORDER, "made", ORDER, ORDER], "also in the second attempt"
    calls.clear()
    second, _, again = typed(url, calls)
    async with second, second.worker():
        await second.signal(run.id, "go", ORDER)
        longer = Order(ORDER.id, ORDER.due, ORDER.lines * 2)
        await until(lambda: _continued(second, run.id))
        assert calls[0] == (ORDER, ORDER, ORDER, ORDER), "a replay in another process returns the same types"
        await second.signal(await _successor(second, run.id), "go", ORDER)
        result = await second.run_result(run.id)
        assert again.signature.load_result(result) == [longer, longer, longer, ORDER]


async def _waits(engine: Engine, run_id: str, calls: list[Any]) -> bool:
    return len(calls) == 5 and await requeued(engine, run_id)


async def _continued(engine: Engine, run_id: str) -> bool:
    return (await engine.kernel.runs.get_run(run_id)).finished


async def _successor(engine: Engine, run_id: str) -> str:
    return str((await engine.kernel.runs.outputs(await engine.kernel.runs.get_run(run_id)))["continued_as"])


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with make_engine("memory://") as opened:
        yield opened


async def test_a_wrong_value_is_refused_before_it_is_stored(engine: Engine) -> None:
    @engine.handler("pack")
    async def pack(order: Order) -> Order:
        return Order(order.id, order.due, [], {}, "no bytes")  # type: ignore[arg-type]

    wrong: Any = Order(UUID(int=7), ORDER.due, ORDER.lines, {"a": 5})  # type: ignore[dict-item]
    with pytest.raises(InvalidPayload, match=r"\$\.order\.files\.a: expected path, got 5"):
        await engine.enqueue(pack, wrong)
    assert await engine.kernel.reads.list_tasks(kind="handler") == []
    async with engine.worker():
        with pytest.raises(TaskFailed, match=r"\$\.order\.due: missing") as bad:
            await engine.result(await engine.enqueue("pack", {"order": {"id": str(UUID(int=1))}}))
        assert bad.value.error_code == "invalid_payload"
        with pytest.raises(TaskFailed, match=r'\$\.raw: expected bytes, got "no bytes"') as bad:
            await (await engine.enqueue(pack, ORDER)).result()
        assert bad.value.error_code == "invalid_result"


async def test_a_step_and_a_signal_that_do_not_match_fail_the_function(engine: Engine) -> None:
    def count() -> int:
        return "many"  # type: ignore[return-value]

    @engine.function
    async def counts(ctx: FunctionContext) -> int:
        return await ctx.step(count)

    @engine.function
    async def waits(ctx: FunctionContext) -> Order:
        return await ctx.wait_for("go", type=Order)

    async with engine.worker():
        with pytest.raises(RunFailed, match=r'step\'s result does not match its annotation: \$: expected int, got "many"'):
            await (await engine.start(counts)).result()
        run = await engine.start(waits)
        await engine.signal(run.id, "go", {"id": 5})
        with pytest.raises(RunFailed, match=r"The signal go does not match its type: \$\.id"):
            await run.result()


def square(n: int) -> int:
    return n * n


async def test_map_returns_results_in_order_or_as_completed_with_bounded_flight(engine: Engine) -> None:
    release, running, most = asyncio.Event(), 0, 0

    @engine.task
    async def slow(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if n == 0:
            await release.wait()
        running -= 1
        return n * n

    async with engine.worker():
        seen: list[tuple[int, int]] = []
        mapped = engine.map(
            slow, range(10), in_flight=3, ordered=False, on_progress=lambda each: seen.append((each.done, each.failed))
        )
        results = []
        async for result in mapped:
            results.append(result)
            if len(results) == 9:
                release.set()
        assert results[-1] == 0
        assert sorted(results) == [n * n for n in range(10)]
        assert most <= 3
        assert (mapped.progress.total, mapped.progress.started, mapped.progress.done) == (10, 10, 10)
        assert seen[-1] == (10, 0)
        assert await engine.map(slow, iter([3, 1, 2]), in_flight=2).results() == [9, 1, 4]


async def test_map_raises_or_collects_failures(engine: Engine) -> None:
    @engine.task
    def half(n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n // 2

    async with engine.worker():
        with pytest.raises(TaskFailed, match="odd"):
            await engine.map(half, [2, 3, 4]).results()
        mapped = engine.map(half, [2, 3, 4], errors="collect")
        one, failed, two = await mapped.results()
        assert (one, two) == (1, 2)
        assert isinstance(failed, TaskFailed)
        assert mapped.progress.failed == 1


async def test_a_restarted_map_continues_instead_of_repeating(engine: Engine) -> None:
    calls: list[int] = []

    @engine.task
    def noted(n: int) -> int:
        calls.append(n)
        return n + 1

    @engine.function
    async def flow(n: int) -> int:
        return n - 1

    async with engine.worker():
        async for _ in engine.map(noted, range(5), key="job", in_flight=2):
            if len(calls) >= 2:
                break
        assert await engine.map(noted, range(5), key="job").results() == [1, 2, 3, 4, 5]
        assert sorted(calls) == [0, 1, 2, 3, 4]
        with pytest.raises(IdempotencyKeyReused):
            await engine.map(noted, [7], key="job").results()
        assert await engine.map(flow, range(3), key="runs").results() == [-1, 0, 1]
    with pytest.raises(InvalidInput):
        engine.map(noted, [], in_flight=0)
    with pytest.raises(InvalidInput, match="does not take the option idempotency_key"):
        await engine.map(noted.with_options(idempotency_key="x"), [1]).results()


def test_a_blocking_program_has_typed_functions() -> None:
    engine = make_engine("memory://")
    doubled = engine.task("double")(square)

    @engine.function
    async def flow(order: Order) -> Order:
        return order

    with engine.blocking() as e:
        e.start_worker()
        assert e.enqueue(doubled, 3).result() == 9
        assert e.result(e.enqueue(doubled.with_options(priority=-1), 4)) == 16
        assert e.start(flow, ORDER).result() == ORDER
        assert list(e.map(doubled, [1, 2, 3], ordered=True)) == [1, 4, 9]
        mapped = e.map(doubled, [1, 2])
        assert mapped.results() == [1, 4]
        assert mapped.progress.done == 2
        for each in e.map(doubled, range(50), in_flight=2):
            assert each == 0
            break


engine_of_module = Engine("memory://")


@engine_of_module.task(isolation="process")
def in_process(order: Order) -> Order:
    return Order(order.id, order.due, order.lines * 2)


async def test_a_typed_task_runs_in_a_process() -> None:
    async with engine_of_module as engine, engine.worker():
        assert await (await engine.enqueue(in_process, ORDER)).result() == Order(ORDER.id, ORDER.due, ORDER.lines * 2)


async def test_options_that_a_call_does_not_take_are_refused(engine: Engine) -> None:
    task = engine.task("square")(square)
    with pytest.raises(InvalidPayload, match=r"square\.with_options\(delay=\.\.\.\)"):
        await engine.enqueue(task, 3, delay=5)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="enqueue does not take the option key"):
        await engine.enqueue(task.with_options(key="x"), 3)


class Measured(pydantic.BaseModel):
    x: float | None


class Unquoted(Measured):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")


@pytest.mark.parametrize("number", [math.nan, math.inf])
async def test_a_number_that_json_does_not_have_fails_handlers_steps_and_functions(engine: Engine, number: float) -> None:
    async def measure() -> Unquoted:
        return Unquoted(x=number)

    @engine.handler("plain")
    async def plain(n: int) -> Measured:
        return Measured(x=number)

    @engine.handler("unquoted")
    async def unquoted(n: int) -> Unquoted:
        return Unquoted(x=number)

    @engine.function("returns")
    async def returns(n: int, ctx: FunctionContext) -> Unquoted:
        return Unquoted(x=number)

    @engine.function("steps")
    async def steps(n: int, ctx: FunctionContext) -> None:
        await ctx.step(measure)

    async with engine.worker():
        for handler in (plain, unquoted):
            with pytest.raises(TaskFailed, match="NaN or an infinity"):
                await (await engine.enqueue(handler, n=1)).result()
        for function in (returns, steps):
            with pytest.raises(RunFailed, match="NaN or an infinity"):
                await (await engine.start(function, n=1)).result()
