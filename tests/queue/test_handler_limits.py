"""Limits declared with a handler: the keys of its tasks, however they are enqueued, and their maxima in the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, url_of
from tests.limits import BOUND

from treadle import Engine, FunctionContext, Limit, TaskSpec
from treadle.engine.engine import twin_of
from treadle.model.errors import InvalidInput, InvalidPolicy
from treadle.settings import Settings
from treadle.workers.context import make_handler

LIMITS = [Limit("customer", by="customer", max=2), Limit("api", max=3, rate=1_000)]
KEYS = ["api", "customer:7"]


@pytest.fixture(params=SHARED)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return Engine(url_of(request.param, request, tmp_path), settings=Settings())


async def _maxima(engine: Engine) -> dict[str, int | None]:
    return {limit.key: limit.max_running for limit in (await engine.kernel.lists.limits()).limits}


async def test_tasks_of_all_customers_obey_all_limits_of_their_handler(engine: Engine) -> None:
    running: Counter[str] = Counter()

    @engine.handler("send", limits=LIMITS)
    async def send(payload: dict[str, Any]) -> None:
        keys = ("api", payload["customer"])
        running.update(keys)
        assert running["api"] <= 3
        assert running[payload["customer"]] <= 2
        await asyncio.sleep(0)
        running.subtract(keys)

    async with engine, engine.worker(), engine.worker():
        tasks = [await engine.enqueue(send, {"customer": customer}) for customer in ("ada", "bob", "eve") * 8]
        for task in tasks:
            await engine.result(task, timeout=BOUND)
        assert await _maxima(engine) == {"api": 3, "customer:ada": 2, "customer:bob": 2, "customer:eve": 2}


async def test_every_way_to_enqueue_in_a_process_with_the_handler_counts_under_its_keys(engine: Engine) -> None:
    payload = {"customer": 7}

    @engine.handler("mail.Send", limits=LIMITS)
    async def send(payload: dict[str, Any]) -> None: ...

    @engine.function("campaign")
    async def campaign(payload: dict[str, Any], ctx: FunctionContext) -> None:
        await ctx.call("mail.Send", payload)

    async def by_schedule() -> str:
        await engine.schedules.create("daily", cron="0 0 * * *", task="mail.Send", inputs=payload)
        return (await engine.schedules.run_now("daily")).id

    async def in_batch() -> str:
        return (await engine.enqueue_many([TaskSpec(name="mail.Send", payload=payload)]))[0].id

    ways: list[Callable[[], Awaitable[Any]]] = [
        lambda: engine.enqueue(send, payload),
        lambda: engine.enqueue("mail.Send", payload),
        lambda: engine.start(campaign, payload),
        in_batch,
        by_schedule,
    ]
    async with engine, engine.worker():
        for way in ways:
            await engine.result(await way(), timeout=BOUND)
        tasks = (await engine.tasks.list(name="mail.Send", every=True)).tasks
        assert len(tasks) == len(ways)
        assert [task.limit_keys for task in [await engine.tasks.get(task.id) for task in tasks]] == [KEYS] * len(ways)


async def test_an_operators_maximum_of_a_value_is_kept_and_a_new_one_in_code_is_stored(engine: Engine) -> None:
    async with engine:
        for most in (2, 5):
            engine.kernel.registry.put(_handler(most))
            await engine.kernel.lists.limit_key("customer:eve", 1)
            for customer in ("ada", "eve"):
                await engine.enqueue("send", {"customer": customer})
            assert await _maxima(engine) == {"customer:ada": most, "customer:eve": 1}


async def _rates(engine: Engine) -> dict[str, float | None]:
    return {limit.key: limit.rate for limit in (await engine.kernel.lists.limits()).limits}


async def test_all_tasks_of_values_with_rates_start(engine: Engine) -> None:
    engine.handler("send", limits=[Limit("customer", by="customer", rate=50)])(_noop)
    async with engine, engine.worker():
        tasks = await engine.enqueue_many([TaskSpec(name="send", payload={"customer": n % 2}) for n in range(120)])
        assert await _rates(engine) == {"customer:0": 50, "customer:1": 50}
        for task in tasks:
            await engine.result(task, timeout=BOUND)


async def test_an_operators_rate_of_a_value_is_kept_and_a_new_one_in_code_is_stored(engine: Engine) -> None:
    async with engine:
        for rate in ("2/s", 5.0):
            limits = [Limit("customer", by="customer", rate=rate)]
            engine.kernel.registry.put(make_handler("send", _noop, limits=limits))
            await engine.kernel.lists.limit_key_rate("customer:eve", 1)
            for customer in ("ada", "eve"):
                await engine.enqueue("send", {"customer": customer})
        assert await _rates(engine) == {"customer:ada": 5, "customer:eve": 1}
        await engine.kernel.lists.limit_key_rate("customer:eve", None)
        await engine.enqueue("send", {"customer": "eve"})
        assert await _rates(engine) == {"customer:ada": 5, "customer:eve": 5}


async def test_a_process_without_the_handler_uses_the_key_that_its_worker_stored(engine: Engine) -> None:
    engine.handler("send", limits=LIMITS)(_noop)
    async with engine, engine.worker(), twin_of(engine) as other:
        task = await other.enqueue("send", {"customer": "ada"})
        await engine.result(task, timeout=BOUND)
        assert (await engine.tasks.get(task.id)).limit_keys == ["api"]


@pytest.mark.parametrize(
    ("payload", "options", "keys"),
    [
        ({"customer": "a b"}, {}, ["api", "customer:a b"]),
        ({"customer": None}, {}, ["api"]),
        ({}, {}, ["api"]),
        (None, {}, ["api"]),
        ({"customer": "ada"}, {"limit_key": "other"}, ["other"]),
    ],
)
async def test_the_keys_of_a_payload(payload: Any, options: Any, keys: list[str]) -> None:
    async with Engine("memory://") as engine:
        engine.handler("send", limits=LIMITS)(_noop)
        task = await engine.enqueue("send", payload, **options)
        assert (await engine.tasks.get(task.id)).limit_keys == keys


@pytest.mark.parametrize("value", [True, 1.5, [], {}, "a\nb", "x" * 600])
async def test_a_value_that_cannot_be_a_key_is_refused(value: Any) -> None:
    async with Engine("memory://") as engine:
        engine.handler("send", limits=LIMITS)(_noop)
        with pytest.raises(InvalidInput):
            await engine.enqueue("send", {"customer": value})


@pytest.mark.parametrize(
    ("declare", "error"),
    [
        (lambda: Limit(""), InvalidInput),
        (lambda: Limit("a", by=""), InvalidInput),
        (lambda: Limit("a", max=0), InvalidInput),
        (lambda: Limit("a", rate="often"), InvalidInput),
        (lambda: Limit("a", by="b", rate=0), InvalidPolicy),
        (lambda: Engine("memory://").handler("send", limits=["a"])(_noop), InvalidPolicy),
        (lambda: Engine("memory://").handler("send", limits=[Limit(str(n)) for n in range(11)])(_noop), InvalidPolicy),
        (lambda: Engine("memory://").handler("send", limits=LIMITS, limit_key="a")(_noop), InvalidPolicy),
    ],
)
def test_invalid_limits_are_refused(declare: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        declare()


async def _noop(payload: dict[str, Any]) -> None: ...


def _handler(most: int) -> Any:
    return make_handler("send", _noop, limits=[Limit("customer", by="customer", max=most)])
