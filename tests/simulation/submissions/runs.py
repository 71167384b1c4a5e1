"""Runs of workflows and durable functions."""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.crew.flows import SOURCES
from tests.simulation.submissions.submission import Submission

from treadle import Engine


def order(rng: random.Random, key: str) -> Submission:
    """A function that does all that functions do."""
    payload = {
        "key": key,
        "sleeps": rng.choice((0, 1, 7)),
        "waits": rng.random() < 0.5,
        "asks": rng.random() < 0.3,
        "prints": rng.random() < 0.3,
        "big": rng.random() < 0.3,
    }

    async def send(engine: Engine) -> str:
        return (await engine.start_function("order", payload, idempotency_key=key)).id

    submission = Submission(key, "run", send, _ordered(payload), effects=(f"{key}/f",), options=payload)
    if payload["asks"]:
        submission.may = ("completed", "failed")
    if payload["prints"]:
        submission.jobs = (f"{key}/p",)
    return submission


def _ordered(payload: dict[str, Any]) -> dict[str, Any]:
    """The expected result of an order, without `told`, which depends on timing."""
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


def flow(rng: random.Random, key: str) -> Submission:
    """A workflow."""
    items = [rng.randrange(10) for _ in range(rng.choice((0, 1, 4)))]

    async def send(engine: Engine) -> str:
        return (await engine.start_run(SOURCES, "sim.All", {"items": items, "key": key}, idempotency_key=key)).id

    expected = {"sum": 120, "printed": key} | ({"outs": [4 * each for each in items]} if items else {})
    return Submission(key, "run", send, expected, jobs=(key,))


def broken_flow(rng: random.Random, key: str) -> Submission:
    """A workflow that fails."""

    async def send(engine: Engine) -> str:
        return (await engine.start_run(SOURCES, "sim.Broken", {"n": 1}, idempotency_key=key)).id

    return Submission(key, "run", send, may=("failed",))


def script_flow(rng: random.Random, key: str) -> Submission:
    """A workflow with scripts before, between and after."""
    words = [rng.choice(("sun", "moon", "star")) for _ in range(rng.choice((1, 3)))]

    async def send(engine: Engine) -> str:
        return (await engine.start_run(SOURCES, "sim.Report", {"words": words}, idempotency_key=key)).id

    expected = {"count": len(words), "twice": 2 * len(words), "upper": [word.upper() for word in words]}
    return Submission(key, "run", send, expected)


def collect(rng: random.Random, key: str) -> Submission:
    """A function that is told several things, while it waits and while its code executes; each is told it once, by its key."""
    payload = {
        "key": key,
        "count": rng.choice((1, 3, 6)),
        "takes": [rng.choice((0, 0.5, 3)) for _ in range(6)],
        "beside": rng.random() < 0.5,
        "anew": rng.random() < 0.3,
    }

    async def send(engine: Engine) -> str:
        return (await engine.start_function("collect", payload, idempotency_key=key)).id

    submission = Submission(key, "run", send, options={"tells": payload["count"], "told": {}})
    if not payload["anew"]:
        submission.expected = {"result": sorted(f"{key}/{number}" for number in range(payload["count"]))}
    return submission
