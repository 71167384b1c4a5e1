"""The examples with agents do what their READMEs say, with a scripted model."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

from tests.limits import BOUND

from treadle.engine import use_store
from treadle.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(example: str, module: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{example}_{module}", EXAMPLES / example / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


async def approve(engine: Any) -> Any:
    async with asyncio.timeout(BOUND):
        while not (pending := await engine.approvals.list()):  # noqa: ASYNC110 - the store changes
            await asyncio.sleep(0.01)
    await engine.approvals.decide(pending[0].id, "approve", actor="ann")
    return pending[0].approval.request


async def test_the_langgraph_agent_publishes_after_an_approval() -> None:
    agent = load("langgraph_agent", "agent")
    use_store(agent.engine, "memory://", Settings())
    async with agent.engine, agent.engine.worker():
        run = await agent.engine.start(agent.research, {"topic": "looms"})
        asked = await approve(agent.engine)
        assert asked.title == "Publish this article?"
        result = await run.result(timeout=BOUND)
        assert (len(result["notes"]), result["article"], result["published"]) == (3, asked.context["value"]["article"], True)
        said = [entry.value["node"] async for entry in agent.engine.stream(run.id, "messages")]
        assert sorted(said) == ["explain", "explain", "explain", "plan", "write"]
        assert len(await agent.engine.kernel.store.list_usage(run.id)) == 5
