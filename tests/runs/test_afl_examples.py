"""The worked examples E1 to E16 through the engine, on every store, with a worker; E10 also step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.evaluator.examples import EXAMPLES
from tests.evaluator.test_examples import CASES
from tests.limits import BOUND
from tests.runs.driver import hands_on

from treadle.model.errors import RunFailed
from treadle.model.values import decode

BAKE = [("bake.afl", EXAMPLES["E10"])]


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.mark.postgres
async def test_the_examples_give_their_outputs(url: str) -> None:
    engine = make_engine(url)
    payloads: list[dict[str, Any]] = []

    def register(name: str, answer: Any) -> None:
        @engine.handler(name)
        async def handle(payload: dict[str, Any]) -> Any:
            payloads.append(payload)
            return answer(payload)

    for *_, handlers in CASES:
        for name, answer in handlers.items():
            register(name, answer)
    async with engine, engine.worker():
        started = {
            name: await engine.start_run([(f"{name}.afl", EXAMPLES[name])], workflow, inputs)
            for name, workflow, inputs, _, _ in CASES
        }
        outputs = {name: await engine.run_result(run, timeout=BOUND) for name, run in started.items()}
        assert outputs == {name: expected for name, _, _, expected, _ in CASES}
        for run in started.values():
            status = await engine.kernel.runs.status(run.id)
            assert (status.status, status.success) == ("COMPLETED", True)
        report = await engine.kernel.verify()
    assert report.problems == ()
    assert {"kilos": 10, "fine": False} in payloads
    assert {"sample": "s1"} in payloads


async def test_e10_step_by_step(url: str) -> None:
    async with hands_on(url) as hands:
        run = await hands.engine.start_run(BAKE, "mill.Bake", {"kilos": 10})
        status = await hands.engine.kernel.runs.status(run.id)
        assert (status.status, status.success, status.outputs, status.error) == ("PAUSED", True, {}, None)
        (task,) = await hands.live(run.id)
        assert (task.name, task.state, await hands.payload(task)) == ("mill.Grind", "pending", {"kilos": 10, "fine": False})
        assert await hands.states(run.id) == {"Bake": "Continue", "Bake/block-0": "Continue", "Bake.coarse": "EventTransmit"}
        await hands.settle(await hands.claim_one(), {"flour": 9})
        (task,) = await hands.live(run.id)
        assert await hands.payload(task) == {"kilos": 9, "fine": True}
        await hands.settle(await hands.claim_one(), {"flour": 8})
        status = await hands.engine.kernel.runs.status(run.id)
        assert (status.status, status.outputs, status.workflow_id) == ("COMPLETED", {"loaves": 16}, run.id)
        await hands.nothing_is_left(run.id)


async def test_e10_with_an_error_in_the_second_handler(url: str) -> None:
    engine = make_engine(url)

    @engine.handler("Grind")
    async def grind(payload: dict[str, Any]) -> dict[str, Any]:
        if payload["fine"]:
            raise ValueError("jammed")
        return {"flour": payload["kilos"] - 1}

    async with engine, engine.worker():
        run = await engine.start_run(BAKE, "mill.Bake", {"kilos": 10})
        with pytest.raises(RunFailed, match=r"Bake\.fine: handler failed: jammed$"):
            await engine.run_result(run, timeout=BOUND)
        status = await engine.kernel.runs.status(run.id)
        assert (status.status, status.success, status.outputs) == ("ERROR", False, {})
        assert status.error == "Bake.fine: handler failed: jammed"
        rows = {row.path if row.is_step else row.place: row for row in await engine.kernel.runs.list_steps(run.id)}
        ended = {place: row.state.rpartition(".")[2] for place, row in rows.items()}
        assert ended == {"Bake": "Error", "Bake/block-0": "Error", "Bake.coarse": "Complete", "Bake.fine": "Error"}
        found = await engine.kernel.runs.get_run(run.id)
        assert found.failed_step_id == rows["Bake.fine"].id
        assert decode(found.error) == {"code": "ValueError", "message": "Bake.fine: handler failed: jammed"}
