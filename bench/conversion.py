"""The cost of typed arguments and results, compared with a drain of the same JSON without types.

A handler takes an order and returns it: an id, a time, a price, a name and two items. *Raw* is the handler without annotations,
the others have a dataclass or a pydantic model. *Conversion* is the CPU time that a task costs its worker in addition to
reading and writing the same JSON: the payload becomes an object, the result is checked and written. It is measured after the
drain of its kind; *share of the drain* is its part of the time per task of the raw drain of the same round, *share of the CPU
time* its part of the CPU time per task of that drain's worker. *Caller* is the additional time of `enqueue` for the arguments.
Drains have one worker process, with full history; a worker imports pydantic when it loads the handler, during the drain.
"""

from __future__ import annotations

import statistics
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pydantic

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged, ratios
from bench.queue import drain
from treadle import Engine, TaskSpec
from treadle.model.values import decode, encode
from treadle.settings import Settings
from treadle.workers.signatures import signature_of

NAME = "conversion"
TITLE = "Typed values"
STORES = BOTH


@dataclass
class Order:
    id: UUID
    due: datetime
    price: Decimal
    customer: str
    items: list[str]


class OrderModel(pydantic.BaseModel):
    id: UUID
    due: datetime
    price: Decimal
    customer: str
    items: list[str]


FIELDS: dict[str, Any] = {
    "id": UUID("01997a1c-0c1e-7000-8000-000000000007"),
    "due": datetime(2026, 11, 16, 12, tzinfo=UTC),
    "price": Decimal("19.90"),
    "customer": "Ada",
    "items": ["ink", "paper"],
}
ORDERS: dict[str, Any] = {"dataclass": Order(**FIELDS), "pydantic": OrderModel(**FIELDS)}


@dataclass(frozen=True)
class Sizes:
    """`tasks` are drained for each kind of handler in each of `rounds`."""

    tasks: int = 10_000
    rounds: int = 5


SIZES = Sizes()
QUICK = Sizes(tasks=500, rounds=1)


async def measure(url: str, sizes: Sizes) -> Figures:
    """In every round: a drain of each kind, and the cost of each conversion."""
    found: dict[str, list[float]] = {}
    payload = {"order": decode(encode(signature("dataclass").dump_result(ORDERS["dataclass"])))}
    for number in range(1, sizes.rounds + 1):
        for kind in ("raw", *ORDERS):
            name = f"bench.typed.{kind}.{number}" if kind in ORDERS else f"bench.untyped.{number}"
            async with Engine(url, settings=Settings()) as engine:
                await engine.enqueue_many(TaskSpec(name=name, payload=payload) for _ in range(sizes.tasks))
            drained = await drain(url, name, sizes.tasks, 1)
            found.setdefault(f"drain_{kind}", []).append(drained[""])
            found.setdefault(f"cpu_{kind}", []).append(drained["_cpu_us"])
            if kind in ORDERS:
                worker, caller = costs(kind)
                found.setdefault(f"worker_{kind}", []).append(worker)
                found.setdefault(f"caller_{kind}", []).append(caller)
        say(f"round {number} of {sizes.rounds}: {found['drain_raw'][-1]:,.0f}/s raw, {found['drain_dataclass'][-1]:,.0f}/s typed")
    for kind in ORDERS:
        found[f"share_{kind}"] = [
            cost * drained / 1e4 for cost, drained in zip(found[f"worker_{kind}"], found["drain_raw"], strict=True)
        ]
        found[f"cpu_share_{kind}"] = [each * 100 for each in ratios(found[f"worker_{kind}"], found["cpu_raw"])]
        found[f"ratio_{kind}"] = ratios(found[f"drain_{kind}"], found["drain_raw"])
    return {"tasks": sizes.tasks, "rounds": sizes.rounds, **found}


def signature(kind: str) -> Any:
    def handler(order: Any) -> Any:
        return order

    handler.__annotations__ = {"order": type(ORDERS[kind]), "return": type(ORDERS[kind])}
    return signature_of(kind, handler)


def costs(kind: str) -> tuple[float, float]:
    """Microseconds that conversion adds for the worker and for the caller, to what raw JSON costs them."""
    typed, order = signature(kind), ORDERS[kind]
    payload = dict(typed.dump((order,), {}))
    result, text = payload["order"], encode(payload)

    def worker() -> None:
        typed.load(text, None)
        encode(typed.dump_result(order, as_text=True), "result")

    def raw_worker() -> None:
        decode(text)
        encode(result, "result")

    return (
        microseconds(worker) - microseconds(raw_worker),
        microseconds(lambda: encode(typed.dump((order,), {}))) - microseconds(lambda: encode(payload)),
    )


def microseconds(call: Callable[[], object]) -> float:
    return statistics.median(timeit.repeat(call, timer=time.process_time, number=200, repeat=100)) / 200 * 1e6


ROWS = (
    Row("drain, raw JSON", "drain_raw", "/s"),
    Row("drain, raw JSON, CPU time per task", "cpu_raw", " µs"),
    *(
        row
        for kind in ORDERS
        for row in (
            Row(f"drain, {kind}", f"drain_{kind}", "/s"),
            Row(f"drain, {kind}, of the raw one", f"ratio_{kind}"),
            Row(f"conversion, {kind}", f"worker_{kind}", " µs"),
            Row(f"conversion, {kind}, share of the raw drain", f"share_{kind}", " %"),
            Row(f"conversion, {kind}, share of the CPU time of its worker", f"cpu_share_{kind}", " %"),
            Row(f"caller, {kind}", f"caller_{kind}", " µs"),
        )
    ),
)
AIMS = tuple(Aim(f"conversion, {kind}, share of the raw drain", f"share_{kind}", " %", at_most=5) for kind in ORDERS)


def show(found: Found) -> str:
    """Figures and aims."""
    each = next(iter(found.values()))
    told = f"{each['tasks']:,} tasks in each of {each['rounds']} rounds. Medians (minimum to maximum)."
    return f"{told}\n\n{by_store(found, ROWS)}\n\n{judged(found, AIMS)}"
