"""The worked examples E1 to E16 give the outputs that the language promises."""

from __future__ import annotations

from typing import Any

import pytest
from tests.evaluator.examples import EXAMPLES
from tests.evaluator.stored import StoredRun

from treadle.evaluator import Errored, Finished, Started, State
from treadle.model.outcomes import Problem
from treadle.model.states import RunState
from treadle.testing.workflows import Handler, WorkflowFailed, compile_program, run_workflow

CASES: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Handler]]] = [
    ("E1", "Price", {"net": 4.0}, {"total": 9.5, "label": "2 x 4.0"}, {}),
    ("E2", "Mix", {"n": 12}, {"out": 4}, {}),
    ("E3", "Plant", {"by": 3}, {"normal": 4, "forced": 200}, {}),
    ("E4", "Report", {"words": ["sun", "moon"]}, {"count": 2, "first": "sun", "upper": ["SUN", "MOON"]}, {}),
    ("E5", "Vote", {}, {"winner": "blue", "tally": 1}, {}),
    ("E6", "Load", {"boxes": [{"kg": 5}, {"kg": 2}]}, {"heaviest": 3}, {}),
    ("E7", "Send", {}, {"a": "relay", "b": "direct", "r": 0}, {}),
    ("E8", "Plan", {}, {"flat": 10, "nested": {"limit": 99}, "city": "Oslo"}, {}),
    ("E9", "shop.Order", {"sku": "pen"}, {"text": "6 of pen"}, {}),
    ("E10", "mill.Bake", {"kilos": 10}, {"loaves": 16}, {"mill.Grind": lambda p: {"flour": p["kilos"] - 1}}),
    ("E11", "lab.Test", {"sample": " s1 "}, {"v": 1.5, "note": "sample s1"}, {"lab.Measure": lambda p: {"value": 1.5}}),
    ("E12", "House", {}, {"floor": 36}, {}),
    ("E13", "desk.Letter", {"text": "hej"}, {"final": "draft:hi:hej"}, {"desk.Translate": lambda p: {"out": "hi"}}),
    ("E14", "south.Hello", {}, {"word": "ciao"}, {}),
    ("E15", "Sheet", {}, {"sum": -8, "none": None}, {}),
    ("E16", "Range", {"text": "41"}, {"lo": 40, "hi": 42}, {}),
]


@pytest.mark.parametrize(("name", "workflow", "inputs", "outputs", "handlers"), CASES, ids=[case[0] for case in CASES])
def test_the_example_gives_its_outputs(
    name: str, workflow: str, inputs: dict[str, Any], outputs: dict[str, Any], handlers: dict[str, Handler]
) -> None:
    assert run_workflow(EXAMPLES[name], workflow, inputs, handlers) == outputs


def test_e10_stops_at_each_event_with_its_task() -> None:
    run = StoredRun(compile_program(EXAMPLES["E10"]), "mill.Bake")
    run.apply(Started({"kilos": 10}))
    [task] = run.tasks.values()
    assert (task.facet, task.payload, task.task_list, task.is_script) == (
        "mill.Grind",
        {"kilos": 10, "fine": False},
        "default",
        False,
    )
    assert run.status is RunState.RUNNING
    assert run.row("Bake.coarse").state is State.EVENT_TRANSMIT
    run.apply(Finished(task.step_id, {"flour": 9}))
    [task] = run.tasks.values()
    assert task.payload == {"kilos": 9, "fine": True}
    run.apply(Finished(task.step_id, {"flour": 8}))
    assert (run.status, run.outputs) == (RunState.COMPLETED, {"loaves": 16})


def test_e10_with_a_failing_second_handler_ends_in_error_without_outputs() -> None:
    run = StoredRun(compile_program(EXAMPLES["E10"]), "mill.Bake")
    run.apply(Started({"kilos": 10}))
    run.apply(Finished(run.row("Bake.coarse").id, {"flour": 9}))
    run.apply(Errored(run.row("Bake.fine").id, Problem("error", "jammed")))
    assert (run.status, run.outputs) == (RunState.FAILED, None)
    assert run.row("Bake.coarse").state is State.STATEMENT_COMPLETE
    assert {run.row(path).state for path in ("Bake.fine", "Bake/block-0", "Bake")} == {State.STATEMENT_ERROR}
    assert run.error is not None
    assert run.error.text == "Bake.fine: handler failed: jammed"


def test_e11_passes_the_pre_script_result_to_the_task() -> None:
    seen: list[dict[str, Any]] = []
    run_workflow(EXAMPLES["E11"], "lab.Test", {"sample": " s1 "}, {"Measure": lambda p: seen.append(p) or {"value": 1.5}})
    assert seen == [{"sample": "s1"}]


def test_a_failing_handler_raises_with_the_whole_path() -> None:
    def fail(payload: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("card declined")

    with pytest.raises(WorkflowFailed, match=r"^Bake\.coarse: handler failed: card declined$"):
        run_workflow(EXAMPLES["E10"], "Bake", {"kilos": 1}, {"Grind": fail})
