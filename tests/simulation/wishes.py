"""What users want of a history, how they ask for it until they are answered, and what it must have come to in the end."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.simulation.crew import OFTEN, SOURCES

from treadle import Engine
from treadle.model.errors import InvalidSchedule, ScheduleExists


@dataclass(slots=True)
class Wish:
    """One wish. `send` may be called again and again, and names the same thing each time."""

    key: str
    kind: str
    """`task`, `run`, `schedule` or `objective`."""
    send: Callable[[Engine], Awaitable[str]]
    expected: Any = None
    """The result, for what has just one."""
    may: tuple[str, ...] = ("completed",)
    """The states in which it may end."""
    effects: tuple[str, ...] = ()
    """The effects that it makes, by their names in the world."""
    jobs: tuple[str, ...] = ()
    id: str | None = None
    """Once it was acknowledged."""
    options: dict[str, Any] = field(default_factory=dict)
    retried: bool = False
    """An operator let it be done again."""


def draw_wishes(dice: random.Random, count: int, named: Collection[str] = ()) -> list[Wish]:
    """So many wishes, of a few kinds, or of those named: those that meet one another say more than a bit of everything."""
    kinds = [kind for kind in KINDS if kind.__name__.removeprefix("_") in named]
    kinds = kinds or dice.sample(KINDS, dice.choice((1, 2, 4, len(KINDS))))
    return [dice.choice(kinds)(dice, f"w{number}") for number in range(count)]


def _task(key: str, name: str, payload: dict[str, Any], expected: Any, **options: Any) -> Wish:
    async def send(engine: Engine) -> str:
        return (await engine.enqueue(name, payload, idempotency_key=key, **options)).id

    return Wish(key, "task", send, expected)


def _work(dice: random.Random, key: str) -> Wish:
    n = dice.randrange(100)
    payload = {"key": key, "n": n, "takes": dice.choice((0, 0.1, 1, 4, 9)), "fails": dice.choice((0, 0, 0, 1, 3))}
    options: dict[str, Any] = {}
    expected: dict[str, Any] = {"n": 2 * n}
    if dice.random() < 0.2:
        expected["big"] = payload["big"] = "big" * 5000
    if dice.random() < 0.3:
        options["delay"] = dice.choice((0.5, 5))
    if dice.random() < 0.3:
        options["priority"] = dice.randrange(3)
    return _task(key, "work", payload, expected, **options)


def _late(dice: random.Random, key: str) -> Wish:
    return _task(key, "late", {"key": key}, {}, timeout=2, retry=OFTEN)


def _sync(dice: random.Random, key: str) -> Wish:
    n = dice.randrange(100)
    return _task(key, "sync", {"key": key, "n": n}, {"n": 2 * n})


def _nap(dice: random.Random, key: str) -> Wish:
    return _task(key, "nap", {"key": key}, {"slept": 2})


def _limited(dice: random.Random, key: str) -> Wish:
    n = dice.randrange(100)
    return _task(
        key, "work", {"key": key, "n": n, "takes": dice.choice((1, 5)), "fails": 0}, {"n": 2 * n}, limit_key="few", limit=2
    )


def _charge(dice: random.Random, key: str) -> Wish:
    wish = _task(key, "charge", {"key": key}, {"receipts": [f"receipt {key}/0", f"receipt {key}/1"]})
    wish.effects = (f"{key}/0", f"{key}/1")
    return wish


def _ask(dice: random.Random, key: str) -> Wish:
    wish = _task(key, "ask", {"key": key, "expires": dice.choice((3, 60))}, {"by": "ada"})
    wish.may = ("completed", "failed")
    return wish


def _print(dice: random.Random, key: str) -> Wish:
    wish = _task(key, "sim.Print", {"key": key, "takes": dice.choice((0, 2, 8))}, {"printed": key})
    wish.jobs = (key,)
    return wish


def _order(dice: random.Random, key: str) -> Wish:
    payload = {
        "key": key,
        "sleeps": dice.choice((0, 1, 7)),
        "waits": dice.random() < 0.5,
        "asks": dice.random() < 0.3,
        "prints": dice.random() < 0.3,
        "big": dice.random() < 0.3,
    }

    async def send(engine: Engine) -> str:
        return (await engine.start_function("order", payload, idempotency_key=key)).id

    wish = Wish(key, "run", send, _ordered(payload), effects=(f"{key}/f",), options=payload)
    if payload["asks"]:
        wish.may = ("completed", "failed")
    if payload["prints"]:
        wish.jobs = (f"{key}/p",)
    return wish


def _ordered(payload: dict[str, Any]) -> dict[str, Any]:
    """What an order comes to; `told` is left out, as that depends on who is faster."""
    key = payload["key"]
    return {
        "result": {
            "first": 1,
            "big": "big" * 5000 if payload["big"] else "",
            "receipt": f"receipt {key}/f",
            "doubled": [{"out": 2}, {"out": 4}, 5],
            "broken": True,
            "child": "done",
            "printed": {"printed": f"{key}/p"} if payload["prints"] else None,
            "approved": "ada" if payload["asks"] else None,
        }
    }


def _flow(dice: random.Random, key: str) -> Wish:
    items = [dice.randrange(10) for _ in range(dice.choice((0, 1, 4)))]

    async def send(engine: Engine) -> str:
        return (await engine.start_run(SOURCES, "sim.All", {"items": items, "key": key}, idempotency_key=key)).id

    expected = {"sum": 120, "printed": key} | ({"outs": [4 * each for each in items]} if items else {})
    return Wish(key, "run", send, expected, jobs=(key,))


def _broken_flow(dice: random.Random, key: str) -> Wish:
    async def send(engine: Engine) -> str:
        return (await engine.start_run(SOURCES, "sim.Broken", {"n": 1}, idempotency_key=key)).id

    return Wish(key, "run", send, may=("failed",))


def _schedule(dice: random.Random, key: str) -> Wish:
    lasts, every = dice.choice((4, 12)), dice.choice((1, 3))

    ends: list[datetime] = []

    async def send(engine: Engine) -> str:
        ends.append(datetime.fromtimestamp(engine.clock.now() / 1000 + lasts, UTC))  # the first is meant, however often it is sent
        options: dict[str, Any] = {"every": every, "end": ends[0], "task": "tick", "inputs": {"key": key}}
        try:
            await engine.schedules.create(key, **options, overlap="allow", catch_up="all", catch_up_limit=1000)
        except ScheduleExists:
            pass  # it was there, and the answer was lost
        except InvalidSchedule:
            pass  # the clock went past its end
        return key

    return Wish(key, "schedule", send, options={"every": every})


def _objective(dice: random.Random, key: str) -> Wish:
    failing = dice.choice((0, 0, 1, 5))

    async def send(engine: Engine) -> str:
        made = await engine.objectives.add(f"Do {key}", actor="ada", key=key, metadata={"failing": failing})
        await engine.objectives.approve(made.objective_id, actor="ada")
        return made.objective_id

    return Wish(key, "objective", send, may=("BLOCKED",) if failing > 2 else ("DONE",))


KINDS = (_work, _late, _sync, _nap, _charge, _charge, _ask, _limited, _order, _flow, _broken_flow, _print, _schedule, _objective)
