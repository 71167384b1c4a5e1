"""Issues for agents, as webhooks bring them: delivered again and again, each is one job."""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.submissions.submission import Submission

from treadle import Engine
from treadle.dispatch import AgentCoordinator, DispatchConfig

CONFIG = DispatchConfig(task_timeout=20, poll_interval=2, max_concurrent_tasks=2)


def issue(rng: random.Random, key: str) -> Submission:
    """An issue that is opened once, whatever GitHub sends."""
    number = int(key[1:]) + 1
    opened: dict[str, Any] = {
        "id": number,
        "number": number,
        "title": key,
        "body": rng.choice(("quick", "slow", "failing")),
        "repository": {
            "id": 1,
            "name": "loom",
            "full_name": "ada/loom",
            "owner": {"login": "ada"},
            "clone_url": "https://example.org/loom.git",
            "default_branch": "main",
        },
    }

    async def send(engine: Engine) -> str:
        made = await AgentCoordinator(engine, CONFIG).submit(
            opened,
            metadata={"key": key},
            unique_key=f"github:1:{number}",
            idempotency_key=f"github:{key}",
            trace_id=key,
        )
        return made.id

    return Submission(key, "task", send, {"key": key}, needs="agents")
