"""The example agents of frameworks, killed at their writes: no recorded model request, tool call or approval is repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from tests.crash.child import load_example
from tests.crash.scene import Scene, until
from tests.limits import BOUND
from tests.sizes import left_out

from treadle.testing.llm import ModelServer

POINTS = ("function.before_commit", "function.after_commit")
WRITES = 12
QUICK = {("sqlite", "pydantic_ai_agent", POINTS[1], 6), ("postgres", "openai_agent", POINTS[1], 3)}
"""The cases that `make test` runs."""
EXAMPLES = {
    "pydantic_ai_agent": ("support.Answer", ["find_order 7", "stock teapot", "refund 7 40"]),
    "openai_agent": ("support.Answer", ["find_order 7", "stock teapot", "refund 7 40"]),
}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as made:
        yield made


ALL = [
    case if case in QUICK else left_out(case) for case in product(("sqlite", "postgres"), EXAMPLES, POINTS, range(1, WRITES + 1))
]


@pytest.mark.parametrize(("scene", "example", "point", "number"), ALL, indirect=["scene"])
async def test_an_agent_killed_at_any_write_repeats_no_recorded_step(
    scene: Scene, server: ModelServer, tmp_path: Path, example: str, point: str, number: int
) -> None:
    function, effects = EXAMPLES[example]
    script = load_example(example, "model").SCRIPT
    server.conversation(*script)
    run = await scene.engine.start_function(function, {"question": "Where is my order 7?"}, version=1)
    options = ("--example", example, "--model", server.url)
    first = scene.start("agent", *options, "--crash-at", f"{point}:{number}")

    async def decided_or_over() -> bool:
        for asked in (await scene.engine.approvals.list()).approvals:
            await scene.engine.approvals.decide(asked.id, "approve", actor="ada")
        return first.exit_code is not None or (await scene.engine.kernel.runs.get_run(run.id)).finished

    await until(decided_or_over, first)
    recorded: list[str] = []
    if first.exit_code is not None:
        steps = await scene.engine.kernel.store.runs.list_steps(run.id, None, 100)
        recorded = [step.name for step in steps if step.state == "completed"]
        await scene.died(first)
        first = scene.start("agent", *options)
        await until(decided_or_over, first)
    said = await scene.engine.run_result(run.id, timeout=BOUND)
    assert said == "Your teapot is out of stock, so I refunded $40."
    made = Counter((tmp_path / "shop.log").read_text().splitlines())
    assert set(made) == set(effects)
    requests = sum(".model" in name for name in recorded)
    assert all(server.counts["", turn] == 1 for turn in range(requests)), (recorded, server.counts)
    for name in ("find_order", "check_stock", "refund"):
        if any(f"{kind}:{name} " in step for step in recorded for kind in ("tool", "task")):
            line = next(line for line in effects if line.startswith(name.replace("check_", "")))
            assert made[line] == 1, (recorded, made)
    assert sum(server.counts.values()) - len(script) + sum(made.values()) - len(effects) <= 2, (
        "more was repeated than one write can hold"
    )
    assert len((await scene.engine.approvals.list(every=True)).approvals) == 1
    assert (await scene.engine.kernel.verify()).problems == ()
