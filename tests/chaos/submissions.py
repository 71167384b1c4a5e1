"""The workload, drawn from a seed, so that the sender and the checker draw the same submissions."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Submission:
    """One submission. Sent again, it names the same thing."""

    key: str
    kind: str
    """`task`, `flow`, `function` or `objective`."""
    name: str
    payload: dict[str, Any]
    expected: Any = None
    """The result, for what has one."""
    ends: str = "completed"
    effects: tuple[str, ...] = ()
    """The effects that it makes, by their names at the service."""
    jobs: tuple[str, ...] = ()
    shape: str = ""
    """Runs of one shape have the same number of steps."""
    told: str | None = None
    """Signals sent to it while it waits."""
    asks: bool = False
    """It asks for an approval, which the client gives."""


def draw_submissions(seed: int, count: int) -> list[Submission]:
    """So many submissions."""
    rng = random.Random(f"submissions {seed}")
    drawn = rng.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS], k=count)
    return [kind(rng, f"w{seed}-{number}") for number, kind in enumerate(drawn)]


def _note(rng: random.Random, key: str) -> Submission:
    """Mostly short; a few take long enough for somebody else to begin while the first one, stopped, still holds on."""
    n = rng.randrange(1000)
    (takes,) = rng.choices((0, 0.02, 0.2, 2.0), (600, 200, 190, 10))
    return Submission(key, "task", "note", {"key": key, "n": n, "takes": takes}, {"n": 2 * n})


def _charge(rng: random.Random, key: str) -> Submission:
    effects = (f"{key}.0", f"{key}.1")
    name = rng.choice(("charge", "charge", "charge_blocking"))
    return Submission(key, "task", name, {"key": key}, {"receipts": [f"receipt {effect}" for effect in effects]}, effects=effects)


def _nap(rng: random.Random, key: str) -> Submission:
    return Submission(key, "task", "nap", {"key": key}, {"slept": 2})


def _print(rng: random.Random, key: str) -> Submission:
    return Submission(key, "task", "chaos.Print", {"key": key, "takes": rng.choice((0, 0.3, 1.5))}, {"printed": key}, jobs=(key,))


def _flow(rng: random.Random, key: str) -> Submission:
    prints = rng.random() < 0.25
    items = [rng.randrange(10) for _ in range(rng.choice((1, 3) if prints else (0, 1, 3)))]
    expected: dict[str, Any] = {"sum": 120, "receipt": f"receipt {key}"}
    expected |= {"outs": [4 * each for each in items]} if items else {}
    expected |= {"printed": key} if prints else {}
    name = "chaos.Printed" if prints else "chaos.All"
    jobs = (key,) if prints else ()
    shape = f"{name} of {len(items)}"
    return Submission(key, "flow", name, {"items": items, "key": key}, expected, effects=(key,), jobs=jobs, shape=shape)


def _order(rng: random.Random, key: str) -> Submission:
    waits, prints, asks = rng.random() < 0.4, rng.random() < 0.15, rng.random() < 0.25
    payload = {"key": key, "sleeps": rng.choice((0.05, 0.5)), "waits": waits, "prints": prints, "asks": asks}
    result = {
        "first": 1,
        "receipt": f"receipt {key}",
        "doubled": [{"out": 2}, {"out": 4}, 5],
        "told": f"told {key}" if waits else None,
        "printed": {"printed": key} if prints else None,
        "approved": "ada" if asks else None,
        "child": "done",
    }
    return Submission(
        key,
        "function",
        "order",
        payload,
        {"result": result},
        effects=(key,),
        jobs=(key,) if prints else (),
        shape=f"order{' waiting' * waits}{' printing' * prints}{' asking' * asks}",
        told=f"told {key}" if waits else None,
        asks=asks,
    )


def _objective(rng: random.Random, key: str) -> Submission:
    failing = rng.choice((0, 0, 0, 1, 5))
    return Submission(key, "objective", f"Do {key}", {"failing": failing}, ends="BLOCKED" if failing > 2 else "DONE")


KINDS: tuple[tuple[Callable[[random.Random, str], Submission], int], ...] = (
    (_note, 54),
    (_charge, 16),
    (_nap, 4),
    (_print, 8),
    (_flow, 8),
    (_order, 8),
    (_objective, 2),
)
"""Kinds of submissions, and how many of a hundred are of each."""
