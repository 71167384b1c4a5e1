"""Tasks: what plain handlers do."""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.crew.handlers import OFTEN
from tests.simulation.submissions.submission import Submission, enqueued


def work(rng: random.Random, key: str) -> Submission:
    """Takes its time, fails for a while, is big, late, or more important than others."""
    n = rng.randrange(100)
    payload = {"key": key, "n": n, "takes": rng.choice((0, 0.1, 1, 4, 9)), "fails": rng.choice((0, 0, 0, 1, 3))}
    options: dict[str, Any] = {}
    expected: dict[str, Any] = {"n": 2 * n}
    if rng.random() < 0.2:
        expected["big"] = payload["big"] = "big" * 5000
    if rng.random() < 0.3:
        options["delay"] = rng.choice((0.5, 5))
    if rng.random() < 0.3:
        options["priority"] = rng.randrange(3)
    return enqueued(key, "work", payload, expected, **options)


def late(rng: random.Random, key: str) -> Submission:
    """Takes too long the first time."""
    return enqueued(key, "late", {"key": key}, {}, timeout=2, retry=OFTEN)


def sync(rng: random.Random, key: str) -> Submission:
    """A sync handler."""
    n = rng.randrange(100)
    return enqueued(key, "sync", {"key": key, "n": n}, {"n": 2 * n})


def nap(rng: random.Random, key: str) -> Submission:
    """Sleeps in between."""
    return enqueued(key, "nap", {"key": key}, {"slept": 2})


def limited(rng: random.Random, key: str) -> Submission:
    """Of these, two run at once."""
    n = rng.randrange(100)
    return enqueued(
        key, "work", {"key": key, "n": n, "takes": rng.choice((1, 5)), "fails": 0}, {"n": 2 * n}, limit_key="few", limit=2
    )


def charge(rng: random.Random, key: str) -> Submission:
    """Two effects."""
    submission = enqueued(key, "charge", {"key": key}, {"receipts": [f"receipt {key}/0", f"receipt {key}/1"]})
    submission.effects = (f"{key}/0", f"{key}/1")
    return submission


def doomed(rng: random.Random, key: str) -> Submission:
    """Fails permanently, until an operator lets it be done again; who discards it has it canceled."""
    submission = enqueued(key, "doomed", {"key": key, "times": rng.choice((1, 2))}, {"key": key})
    submission.may = ("completed", "failed")
    return submission
