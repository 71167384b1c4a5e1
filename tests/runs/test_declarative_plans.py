"""Declarative plans: steps in order, arguments from earlier results, checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.functions.driver import function_scene
from tests.limits import BOUND

from treadle.model.errors import InvalidPlan, RunFailed
from treadle.model.plans import read_plan, resolve


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ALL)
async def test_a_plan_executes_its_steps_in_order(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    async with make_engine(url_of(kind, request, tmp_path)) as engine:
        attempts: list[str] = []

        @engine.handler("pick")
        async def pick(payload: dict[str, Any]) -> dict[str, Any]:
            return {"items": [{"sku": payload["sku"], "price": 7}]}

        @engine.handler("charge")
        async def charge(payload: dict[str, Any]) -> dict[str, Any]:
            attempts.append("charge")
            if len(attempts) < 2:
                raise OSError("not yet")
            return {"paid": payload["amount"]}

        steps = [
            {"name": "pick", "handler": "pick", "arguments": {"sku": {"$from": "inputs.sku"}}},
            {
                "name": "charge",
                "handler": "charge",
                "arguments": {"amount": {"$from": "pick.items.0.price"}, "as": {"$value": {"$from": "is text"}}},
                "retry": {"retries": 1, "first_for": 1},
            },
        ]
        async with engine.worker():
            started = await engine.start_plan(steps, {"sku": "tea"})
            result = await engine.run_result(started, timeout=BOUND)
        assert result == {"pick": {"items": [{"sku": "tea", "price": 7}]}, "charge": {"paid": 7}}
        shown = await engine.kernel.run_reads.list_steps(started.id)
        assert [(each.row.path, each.row.facet) for each in shown] == [("pick", "call"), ("charge", "call")]


async def test_a_plan_that_fails_is_retried_from_the_step_that_failed():
    async with function_scene() as scene:
        steps = [{"name": name, "handler": name} for name in ("one", "two")]
        started = await scene.engine.start_plan(steps)
        process = scene.process(warm=0)
        broken = True

        def answer(name: str, payload: dict[str, Any]) -> dict[str, Any]:
            if broken and name == "two":
                raise ValueError("two is broken")
            return {"by": name}

        await process.quiet(answer)
        with pytest.raises(RunFailed, match="two is broken"):
            await scene.engine.run_result(started)
        broken = False
        await scene.engine.runs.retry(started.id)
        await process.quiet(answer)
        assert await scene.engine.run_result(started) == {"one": {"by": "one"}, "two": {"by": "two"}}


async def test_a_reference_to_a_missing_field_fails_the_run():
    async with function_scene() as scene:
        started = await scene.engine.start_plan(
            [{"name": "one", "handler": "one"}, {"name": "two", "handler": "two", "arguments": {"x": {"$from": "one.nothing"}}}]
        )
        await scene.process().quiet(lambda name, payload: {"n": 1})
        with pytest.raises(RunFailed, match="one has no 'nothing'"):
            await scene.engine.run_result(started)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "one or more steps"),
        ("charge", "one or more steps"),
        (["charge"], "Step 1 of the plan must be an object"),
        ([{"name": "a"}], "Step 1 of the plan has no handler"),
        ([{"handler": "h"}], "Step 1 of the plan has no name"),
        ([{"name": "a", "handler": ""}], "not a valid handler name"),
        ([{"name": "a b", "handler": "h"}], "not a valid step name"),
        ([{"name": "a.b", "handler": "h"}], "no dot"),
        ([{"name": "inputs", "handler": "h"}], "'inputs'"),
        ([{"name": "a", "handler": "h"}, {"name": "a", "handler": "h"}], "appears twice"),
        ([{"name": "a", "handler": "h", "then": 1}], "unknown key 'then'"),
        ([{"name": "a", "handler": "h", "arguments": [1]}], "arguments must be an object"),
        ([{"name": "a", "handler": "h", "arguments": {"x": {"$from": "b.c"}}}], "no earlier step is called 'b'"),
        ([{"name": "a", "handler": "h", "arguments": {"x": [{"$from": "a"}]}}], "no earlier step is called 'a'"),
        ([{"name": "a", "handler": "h", "arguments": {"x": {"$from": "b", "y": 1}}}], "nothing else"),
        ([{"name": "a", "handler": "h", "retry": -1}], "retries must be"),
        ([{"name": "a", "handler": "h", "retry": "often"}], "retry must be"),
        ([{"name": "a", "handler": "h", "approval": "yes"}], "approval must be true, false"),
    ],
)
async def test_an_invalid_plan_is_rejected_before_it_starts(steps: Any, said: str):
    async with make_engine("memory://") as engine:
        with pytest.raises(InvalidPlan, match=said):
            await engine.start_plan(steps)
        assert await engine.kernel.run_reads.list_runs() == []


def test_references_reach_into_objects_and_lists():
    known = {"a": {"b": [{"c": 1}]}, "inputs": {}}
    assert resolve({"x": {"$from": "a.b.0.c"}, "y": [{"$from": "a"}], "z": {"$value": {"$from": "a"}}}, known) == {
        "x": 1,
        "y": [{"b": [{"c": 1}]}],
        "z": {"$from": "a"},
    }
    (step,) = read_plan([{"name": "a", "handler": "h", "approval": True}])
    assert step.approval == {}
