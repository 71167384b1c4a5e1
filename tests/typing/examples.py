"""Typed use of an engine, for mypy and pyright. A line that ends in `# E` is a mistake, which both must report; no other is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypedDict, assert_type

import msgspec
import pydantic
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from treadle import (
    BlockingFunctionContext,
    Context,
    Engine,
    Enqueued,
    Failed,
    Function,
    FunctionContext,
    Handle,
    Handler,
    Interceptor,
    Limit,
    Problem,
    Retry,
    RetryPolicy,
    TaskSpec,
    TreadleError,
)
from treadle.api.runs import RunDetail
from treadle.api.tasks import TaskDetail

engine = Engine("memory://")


@dataclass
class Order:
    sku: str
    price: float = 1.0


@dataclass
class Receipt:
    id: str


class Parcel(pydantic.BaseModel):
    weight: int


class Label(msgspec.Struct):
    text: str


class Note(TypedDict):
    text: str


# handlers: sync and async, with and without a context


@engine.handler("pack")
async def pack(order: Order) -> Receipt:
    return Receipt(order.sku)


@engine.handler("weigh", retry=3, timeout=timedelta(seconds=5))
def weigh(order: Order, copies: int = 1) -> Parcel:
    return Parcel(weight=copies)


@engine.handler("ship", retry=RetryPolicy.of(5, on=(TimeoutError, "billing.Busy"), never=[ValueError], should_retry=bool))
async def ship_order(order: Order) -> Receipt:
    return Receipt(order.sku)


tenant: ContextVar[str] = ContextVar("tenant")
with_context = Engine("memory://", propagate=[tenant])
Engine("memory://", propagate=["tenant"])  # E


class Timed(Interceptor):
    async def handler(self, ctx: Context, proceed: Callable[[Context], Awaitable[Any]]) -> Any:
        assert_type(ctx.attempt, int)
        return await proceed(ctx)

    async def enqueue(
        self, specs: Sequence[TaskSpec], proceed: Callable[[Sequence[TaskSpec]], Awaitable[list[Enqueued]]]
    ) -> list[Enqueued]:
        return await proceed([*specs])


engine.intercept(Timed())
engine.intercept(Timed)  # E

RetryPolicy.of(5, on=(int,))  # E
RetryPolicy.of(5, should_retry=7)  # E


@engine.handler("label")
async def label(order: Order, ctx: Context) -> Label:
    return Label(order.sku)


@engine.handler("print")
def print_it(ctx: Context, order: Order, *, copies: int = 1) -> Note:
    return {"text": order.sku}


@engine.handler("raw")
async def raw(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    return payload


@engine.handler("raw.sync")
def raw_sync(payload: dict[str, Any]) -> dict[str, int]:
    return {"n": len(payload)}


@engine.handler("batch", batch=100, within=0.2, key="sku")
async def batch(orders: list[Order]) -> list[Receipt | Exception]:
    return [Receipt(order.sku) for order in orders]


@engine.handler("batch.sync", batch=100, retry=3)
def batch_sync(orders: list[Order], contexts: list[Context]) -> list[Receipt]:
    return [Receipt(order.sku) for order in orders]


@engine.handler("batch.raw", batch=10)
async def batch_raw(payloads: list[dict[str, Any]]) -> list[dict[str, int]]:
    return [{"n": len(payload)} for payload in payloads]


@engine.handler("limited", limits=[Limit("customer", by="sku", max=20), Limit("api", rate="100/min")])
async def limited(order: Order) -> Receipt:
    return Receipt(order.sku)


@engine.function("limited.runs", limits=[Limit("imports", max=5)])
async def limited_runs(order: Order) -> Receipt:
    return Receipt(order.sku)


@engine.handler("limited.wrongly", limits=["api"])  # E
async def limited_wrongly(order: Order) -> Receipt:
    return Receipt(order.sku)


@engine.handler("batch.one", batch=10)  # E
async def batch_one(order: Order) -> Receipt:
    return Receipt(order.sku)


@engine.handler("maybe")
async def maybe(order: Order) -> Receipt | Retry | Failed | None:
    return Failed(Problem("never", "never"))


@engine.handler
def nothing() -> None:
    return None


@engine.handler("counts")  # E
async def counts(payload: dict[str, Any]) -> int:
    return 1


@engine.handler("counts.sync")  # E
def counts_sync(order: Order) -> list[int]:
    return [1]


@engine.handler("pack", retries=3)  # E
async def misspelt(order: Order) -> Receipt:
    return Receipt(order.sku)


# tasks: any result


@engine.task
def add(a: int, b: int = 2) -> int:
    return a + b


@engine.task
def add_one(n: int) -> int:
    return n + 1


@engine.task("multiply", retry=1)
async def multiply(ctx: Context, a: int, b: int) -> int:
    return a * b


# functions


async def charge(order: Order, currency: str = "usd") -> Receipt:
    return Receipt(order.sku + currency)


def refund(order: Order, amount: int) -> Label:
    return Label(order.sku * amount)


def store_order(session: Session, order: Order) -> Receipt:
    return Receipt(order.sku)


async def store_order_async(session: AsyncSession, order: Order) -> Receipt:
    return Receipt(order.sku)


@engine.function("order_flow")
async def order_flow(order: Order, ctx: FunctionContext) -> Receipt:
    assert_type(await ctx.step(charge, order), Receipt)
    assert_type(await ctx.step(charge, order, "eur"), Receipt)
    assert_type(await ctx.step(charge, order, currency="eur"), Receipt)
    assert_type(await ctx.step(charge, order, retry=3, key="charge"), Receipt)
    assert_type(await ctx.step(refund, order, 3, timeout=5), Label)
    assert_type(await ctx.step(refund, order, amount=3), Label)
    assert_type(await ctx.step(partial(refund, order, amount=3), retry=1), Label)
    assert_type(await ctx.step(lambda: 1, retry=1), int)
    assert_type(await ctx.transaction(engine, store_order, order), Receipt)
    assert_type(await ctx.transaction(engine, store_order, order, retry=3, key="store"), Receipt)
    assert_type(await ctx.transaction(engine, store_order_async, order), Receipt)
    await ctx.transaction(engine, store_order, "order")  # E
    await ctx.transaction(engine, store_order_async)  # E
    await ctx.step(charge, "order")  # E
    await ctx.step(charge, "order", retry=3)  # E
    await ctx.step(charge)  # E
    await ctx.step(refund, order, "3")  # E
    await ctx.step(refund, order, "3", retry=1)  # E
    await ctx.step(refund, order, amount="3")  # E
    await ctx.step(refund, order, amounts=3)  # E
    await ctx.step(refund, order)  # E
    assert_type(await ctx.call(pack, order), Receipt)
    assert_type(await ctx.call(pack.with_options(retry=3, key="p"), order), Receipt)
    assert_type(await ctx.call(weigh, order, copies=2), Parcel)
    assert_type(await ctx.call(label, order), Label)
    assert_type(await ctx.call(print_it, order, copies=2), Note)
    assert_type(await ctx.call(add, 1), int)
    assert_type(await ctx.call("pack", {"order": {"sku": "x"}}, retry=3), dict[str, Any])
    won = await ctx.first(ctx.call(pack, order), ctx.step(refund, order, amount=3))
    assert_type(won.value, Receipt | Label)
    assert_type(won.name, str)
    assert_type((await ctx.first(ctx.call(add, 1), ctx.call(add, 2), ctx.call(label, order))).value, int | Label)
    assert_type((await ctx.first(ctx.sleep(1), answer=ctx.wait_for("answer"))).value, Any)
    print(won.values)  # E
    assert_type(await ctx.effect("charge", partial(charge, order), retry=3), Receipt)
    assert_type(await ctx.effect("refund", lambda: 1), int)
    await ctx.effect("refund", 3)  # E
    assert_type(await ctx.gather(ctx.call(label, order), ctx.sleep(1), ctx.step(charge, order)), tuple[Label, None, Receipt])
    assert_type(await ctx.gather(*[ctx.step(refund, order, 1)]), list[Label])
    assert_type(await ctx.gather(ctx.call(label, order), return_exceptions=True), list[Label | Exception])
    await ctx.gather(order)  # E
    await ctx.first(answer=order)  # E
    await ctx.call(pack, "order")  # E
    await ctx.call(pack)  # E
    await ctx.call(pack, order, retry=3)  # E
    await ctx.call(label, 3)  # E
    await ctx.call(order_flow, order)  # E
    await ctx.call("pack", {}, retries=3)  # E
    child = await ctx.start(ship, order, fast=True)
    assert_type(await child.result(), Label)
    await ctx.start(ship, order, quick=True)  # E
    await ctx.start(pack, order)  # E
    assert_type(await ctx.wait_for("paid", type=Receipt), Receipt)
    update = await ctx.update("pay", type=Receipt)
    assert_type(update.value, Receipt)
    await update.reply(update.value)
    ctx.publish("receipt", update.value)
    await ctx.sleep("soon")  # E
    wrong: int = await ctx.call(pack, order)  # E
    return Receipt(str(wrong))


@engine.function()
async def ship(ctx: FunctionContext, order: Order, fast: bool = False) -> Label:
    return Label(order.sku)


@engine.function("totals", version=2)
async def totals(payload: dict[str, Any], ctx: FunctionContext) -> int:
    return 1


@engine.function("sync")
def sync_flow(order: Order, ctx: BlockingFunctionContext) -> Receipt:
    assert_type(ctx.step(charge, order, retry=3), Receipt)
    assert_type(ctx.transaction(engine, store_order, order), Receipt)
    assert_type(ctx.transaction(engine, store_order_async, order, retry=3), Receipt)
    ctx.transaction(engine, store_order, "order")  # E
    assert_type(ctx.step(refund, order, amount=3), Label)
    assert_type(ctx.call(weigh, order, copies=2), Parcel)
    assert_type(ctx.effect("charge", partial(charge, order), retry=3), Receipt)
    assert_type(ctx.effect("refund", lambda: 1), int)
    both = ctx.gather(lambda: ctx.call(label, order), lambda: ctx.sleep(1))
    assert_type(both, tuple[Label, None])
    assert_type(ctx.gather(*[lambda: ctx.step(refund, order, 1)]), list[Label])
    assert_type(ctx.gather(lambda: ctx.step(refund, order, 1), return_exceptions=True), list[Label | Exception])
    won = ctx.first(lambda: ctx.call(pack, order), lambda: ctx.step(refund, order, amount=3))
    assert_type(won.value, Receipt | Label)
    child = ctx.start(ship, order, fast=True)
    assert_type(child.result(), Label)
    assert_type(ctx.wait_for("paid", type=Receipt), Receipt)
    update = ctx.update("pay", type=Receipt)
    assert_type(update.value, Receipt)
    update.reply(update.value)
    ctx.step(charge, "order")  # E
    ctx.step(refund, order, amount="3")  # E
    ctx.gather(ctx.step(charge, order))  # E
    ctx.first(ctx.step(charge, order), lambda: 1)  # E
    ctx.call(label, 3)  # E
    ctx.sleep("soon")  # E
    wrong: int = ctx.call(pack, order)  # E
    return Receipt(str(wrong))


# callers


async def main() -> None:
    handle = await engine.enqueue(pack, Order("x"))
    assert_type(handle, Handle[Receipt])
    assert_type(await handle.result(timeout=1), Receipt)
    assert_type(await engine.result(handle), Receipt)
    assert_type(await engine.enqueue(weigh, order=Order("x"), copies=2), Handle[Parcel])
    assert_type(await engine.enqueue(pack.with_options(delay=60, priority=-1), Order("x")), Handle[Receipt])
    assert_type(await engine.enqueue(print_it, Order("x"), copies=2), Handle[Note])
    assert_type(await engine.enqueue(batch, Order("x")), Handle[Receipt])
    assert_type(await engine.enqueue(batch_sync, Order("x")), Handle[Receipt])
    await engine.enqueue(batch_raw, {"any": 1})
    await engine.enqueue(batch, [Order("x")])  # E
    await engine.enqueue(raw, {"any": 1})
    await engine.enqueue(raw_sync, {"any": 1})
    await engine.enqueue(nothing)
    assert_type(await engine.enqueue(add, 1, b=2), Handle[int])
    assert_type(await engine.enqueue(multiply, 1, b=2), Handle[int])
    assert_type(await engine.result(await engine.enqueue("pack", {"order": {}}, delay=60)), dict[str, Any])
    await engine.enqueue(pack, "order")  # E
    await engine.enqueue(pack)  # E
    await engine.enqueue(pack, Order("x"), Order("y"))  # E
    await engine.enqueue(pack, Order("x"), delay=60)  # E
    await engine.enqueue(pack, ordr=Order("x"))  # E
    await engine.enqueue(weigh, Order("x"), copies="2")  # E
    await engine.enqueue(label, Order)  # E
    await engine.enqueue(add, "1")  # E
    await engine.enqueue(pack.with_options(delays=60), Order("x"))  # E
    await engine.enqueue("pack", {"order": {}}, dealy=60)  # E
    await engine.enqueue(order_flow, Order("x"))  # E
    await engine.enqeue(pack, Order("x"))  # E
    assert_type(await engine.map(pack, [Order("x")]).results(), list[Receipt])
    async for number_of in engine.map(add_one, [1, 2], ordered=False, key="job"):
        assert_type(number_of, int)
    assert_type(await engine.map(add_one, range(3), errors="collect").results(), list[int | TreadleError])
    engine.map(pack, ["x"])  # E
    engine.map(pack, [Order("x")], in_flights=3)  # E
    run = await engine.start(order_flow, Order("x"))
    assert_type(await run.query("receipt", type=Receipt), Receipt)
    assert_type(await run.update("pay", Receipt("r"), type=Receipt, timeout=5), Receipt)
    assert_type(await run.update("pay", type=Receipt), int)  # E
    assert_type(await run.result(), Receipt)
    assert_type(await engine.start(ship.with_options(priority=1), Order("x"), fast=True), Handle[Label])
    await engine.start(totals, {"any": 1})
    await engine.start("order_flow", {"order": {}}, version=1)
    await engine.start(order_flow, 1)  # E
    await engine.start(ship.with_options(unique_key="k", on_conflict="debounce", delay=5, max_wait=60), Order("x"))
    await engine.start(
        ship.with_options(signal="go", signal_payload=1, limit=3, start_at=datetime(2040, 1, 1, tzinfo=UTC)), Order("x")
    )
    await engine.start(ship.with_options(unique_key="k", on_conflict="other"), Order("x"))  # E
    assert_type(await run.query("receipt", wait=5, type=Receipt), Receipt)
    await engine.start(order_flow)  # E
    await engine.start(ship, Order("x"), fast="yes")  # E
    await engine.start(pack, Order("x"))  # E
    assert_type(await engine.start("order_flow", {"order": {}}, budget=1.5), Handle[Any])
    assert_type(await engine.start([("a.afl", "")], {}, workflow="a.B", lenient=True), Handle[Any])
    await engine.start("order_flow", {"order": {}}, prority=1)  # E
    by_id = engine.handle(run.id, ship)
    assert_type(by_id, Handle[Label])
    assert_type(await by_id.result(), Label)
    assert_type(await engine.result(engine.handle("last", pack)), Receipt)
    assert_type((await by_id.why()).text, str)
    assert_type([step.path for step in await by_id.steps()], list[str])
    await by_id.cancel(reason="late", actor="ada")
    await by_id.retry(step="Checkout.pay")
    await by_id.pause(reasons="late")  # E
    engine.handle(run.id, charge)  # E
    await engine.cancel(by_id)
    assert_type(await engine.tasks.find(handle), TaskDetail | None)
    assert_type(await engine.runs.get(run), RunDetail)
    await engine.runs.list(where="state = failed", states=["failed"])  # E
    text: str = await run.result()  # E
    number: int = await handle.result()  # E
    print(text, number)


def blocking() -> None:
    with engine.blocking() as e:
        assert_type(e.enqueue(pack, Order("x")).result(), Receipt)
        assert_type(e.result(e.enqueue(add, 1)), int)
        assert_type(e.start(order_flow, Order("x")).result(timeout=3), Receipt)
        assert_type(e.result(e.enqueue("pack", {})), dict[str, Any])
        assert_type(e.map(add_one, [1]).results(), list[int])
        assert_type(e.handle("last", ship).result(), Label)
        e.handle("last").cancel(reason="late")
        e.handle("last").cancel(reasons="late")  # E
        e.map(add_one, ["1"])  # E
        e.enqueue(pack, "order")  # E
        e.start(order_flow, "order")  # E
        number: int = e.enqueue(pack, Order("x")).result()  # E
        print(number)


async def submit(handler: Handler[[Order], Receipt], function: Function[[Order], Receipt]) -> AsyncIterator[Receipt]:
    yield await (await engine.enqueue(handler, Order("x"))).result()
    yield await (await engine.start(function, Order("x"))).result()


async def submit_both() -> None:
    async for each in submit(pack, order_flow):
        assert_type(each, Receipt)
    submit(weigh, order_flow)  # E
    submit(pack, ship)  # E
