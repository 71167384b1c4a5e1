"""Requests with an idempotency key, for what has none of its own in the kernel."""

from __future__ import annotations

import random

from tests.simulation.submissions.submission import Submission

from treadle import Engine


def request(rng: random.Random, key: str) -> Submission:
    """A request whose repetition returns the first answer, once there is one."""

    async def send(engine: Engine) -> str:
        raise AssertionError("Requests go through a server.")

    return Submission(key, "request", send, {"n": 2})
