"""Goals that people set."""

from __future__ import annotations

import random

from tests.simulation.submissions.submission import Submission

from treadle import Engine


def objective(rng: random.Random, key: str) -> Submission:
    """A goal."""
    failing = rng.choice((0, 0, 1, 5))

    async def send(engine: Engine) -> str:
        made = await engine.goals.objectives.add(f"Do {key}", actor="ada", key=key, metadata={"failing": failing})
        await engine.goals.objectives.approve(made.objective_id, actor="ada")
        return made.objective_id

    return Submission(key, "objective", send, may=("BLOCKED",) if failing > 2 else ("DONE",))
