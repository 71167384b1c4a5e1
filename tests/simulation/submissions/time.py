"""Sources that start work by themselves: schedules, and watchers of files."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from tests.simulation.submissions.submission import Submission

from treadle import Engine
from treadle.model.errors import InvalidSchedule, Refused


def schedule(rng: random.Random, key: str) -> Submission:
    """Ticks for a while."""
    lasts, every = rng.choice((4, 12)), rng.choice((1, 3))

    ends: list[datetime] = []

    async def send(engine: Engine) -> str:
        ends.append(
            datetime.fromtimestamp(engine.kernel.clock.now() / 1000 + lasts, UTC)
        )  # the first is meant, however often it is sent
        options: dict[str, Any] = {"every": every, "end": ends[0], "task": "tick", "inputs": {"key": key}}
        try:
            await engine.schedules.create(key, **options, overlap="allow", catch_up="all", catch_up_limit=1000)
        except Refused as error:
            if error.code != "schedule_exists":  # it was there, and the answer was lost
                raise
        except InvalidSchedule:
            pass  # the clock went past its end
        return key

    return Submission(key, "schedule", send, options={"every": every})


def watch(rng: random.Random, key: str) -> Submission:
    """A directory into which files are put, bit by bit; each version of a file that stays is told of once."""
    count = rng.choice((1, 3, 6))

    async def send(engine: Engine) -> str:
        options: dict[str, Any] = {"directory": f"/{key}", "every": every, "settle": settle, "existing": "new"}
        try:
            await engine.watchers.create(key, **options, changes=("created", "modified", "deleted"), task="noticed")
        except Refused as error:
            if error.code != "watcher_exists":  # it was there, and the answer was lost
                raise
        return key

    every, settle = rng.choice((1, 3)), rng.choice((0, 2))
    return Submission(key, "watch", send, options={"files": count, "settle": settle})
