"""Work of remote workers: programs that hold what they do through a server, and never see the store."""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.crew.flows import SOURCES
from tests.simulation.crew.handlers import OFTEN
from tests.simulation.submissions.submission import Submission, enqueued

from treadle import Engine


def far(rng: random.Random, key: str) -> Submission:
    """A task that they complete, fail, put off, release or ask about on the way."""
    payload: dict[str, Any] = {
        "key": key,
        "takes": rng.choice((0, 0.5, 5)),
        "first": rng.choice(("fail", "release", "wait", "partial", "ask", "complete", "complete")),
    }
    options: dict[str, Any] = rng.choice(({}, {"limit_key": "few", "limit": 2}))
    submission = enqueued(key, "out.Do", payload, {"key": key}, retry=OFTEN, **options)
    submission.needs = "remote_workers"
    if payload["first"] == "ask":
        submission.may = ("completed", "failed")
    return submission


def far_flow(rng: random.Random, key: str) -> Submission:
    """A workflow whose steps they do."""
    count = rng.choice((1, 3))

    async def send(engine: Engine) -> str:
        return (await engine.start_run(SOURCES, "sim.Far", {"items": list(range(count))}, idempotency_key=key)).id

    return Submission(key, "run", send, {"outs": [2 * each for each in range(count)]}, needs="remote_workers")
