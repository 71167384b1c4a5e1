"""The process of a LangGraph agent is killed at a write; the next one continues from the checkpoint: no recorded model request
and no recorded node is repeated, and a person approves after the restart."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.graphs import EFFECTS, add_graphs
from tests.crash.scene import Child, Scene, until
from tests.limits import BOUND
from tests.sizes import left_out

from treadle.testing.llm import ModelServer, text


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        server.conversation(text("Do it."), key="Plan looms")
        server.conversation(text("Looms."), key="Write ")
        yield server


THREAD: dict[str, tuple[int, ...]] = {"thread.before_commit": (), "thread.after_commit": (4,)}
FUNCTION: dict[str, tuple[int, ...]] = {"function.before_commit": (), "function.after_commit": ()}
"""The writes at which `make test` kills the process; each process takes seconds to import the frameworks."""
CASES = [
    (point, number) if number in always else left_out((point, number))
    for points, last in ((THREAD, 14), (FUNCTION, 8))
    for point, always in points.items()
    for number in range(1, last + 1)
]


@pytest.mark.postgres
@pytest.mark.parametrize(("point", "number"), CASES)
async def test_a_graph_repeats_no_recorded_step_after_a_kill_at_any_write(
    scene: Scene, model: ModelServer, point: str, number: int
) -> None:
    add_graphs(scene.engine, Path(os.devnull), model.url)  # only to start it
    run = await scene.engine.start_function("article", {"input": {"topic": "looms"}})
    first = scene.start("worker", "--graphs", model.url, "--crash-at", f"{point}:{number}")

    async def pending() -> bool:
        return first.exit_code is not None or bool((await scene.engine.approvals.list()).approvals)

    await until(pending, first)
    approved = first.exit_code is None
    if approved:  # the write is one of those after the approval
        await _approve(scene, run.id, first)

        async def over() -> bool:
            return first.exit_code is not None or (await scene.engine.kernel.runs.get_run(run.id)).finished

        await until(over, first)
    if first.exit_code is not None:
        await scene.died(first)
    second = await scene.start_worker("--graphs", model.url)
    if not approved:
        await _approve(scene, run.id, second)
    result = await scene.engine.run_result(run.id, timeout=BOUND)
    assert (result["plan"], result["text"], result["published"]) == ("Do it.", "Looms.", True)
    assert sorted(result["notes"]) == ["found", "has read"]
    counts = Counter(what for what, *_ in scene.effects())
    assert set(counts) == set(EFFECTS)
    again = {what for what, count in counts.items() if count > 1}
    in_flight = again <= {"search", "read"} or len(again) <= 1
    assert in_flight, counts
    assert max(counts.values()) <= 2
    if point.endswith("after_commit"):  # a write was recorded, so only parallel nodes can have been in flight
        assert again <= {"search", "read"}, counts
        assert len(again) <= 1, counts
        assert model.repeated() == {}
    assert (await scene.engine.kernel.verify()).problems == ()


async def _approve(scene: Scene, run_id: str, *children: Child) -> None:
    """Decide the approval as soon as it is asked, unless the run has ended."""

    async def decided() -> bool:
        pending = (await scene.engine.approvals.list()).approvals
        if pending:
            await scene.engine.approvals.decide(pending[0].id, "approve", actor="ada")
        return (
            bool(pending) or (await scene.engine.kernel.runs.get_run(run_id)).finished or any(each.exit_code for each in children)
        )

    await until(decided, *children)
