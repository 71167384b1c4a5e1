"""Ingestion: enqueue an issue, once for each delivery, and print the id of its job. `python ingest.py issue.json [DELIVERY]`"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from treadle import Engine
from treadle.dispatch import AgentCoordinator


async def main(issue: dict[str, Any], delivery: str = "delivery-1") -> None:
    async with Engine() as engine:
        print(await AgentCoordinator(engine).enqueue(issue, idempotency_key=delivery))


asyncio.run(main(json.loads(Path(sys.argv[1]).read_text()), *sys.argv[2:]))
