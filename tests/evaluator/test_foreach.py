"""foreach: one item per element, all at once, merged in the order of the elements."""

from __future__ import annotations

from typing import Any

import pytest
from tests.evaluator.stored import StoredRun

from treadle.evaluator import Errored, Expand, Finished, Limits, Started, State, StepKind
from treadle.model.outcomes import Problem
from treadle.model.states import RunState
from treadle.testing.workflows import WorkflowFailed, compile_program, run_workflow

COLLECT = """
event facet Work(n: Json) => (r: Json)
workflow W(list: Json) => (items: Json, last: Json) andThen foreach x in $.list {
    w = Work(n = x)
    yield W(items = [w.r], last = w.r)
}
"""


def collecting(items: Any, **limits: int) -> StoredRun:
    run = StoredRun(compile_program(COLLECT), "W", limits=Limits(**limits))
    run.apply(Started({"list": items}))
    return run


def test_items_run_concurrently_and_carry_their_variable() -> None:
    run = collecting([5, 6])
    assert [task.payload for task in run.tasks.values()] == [{"n": 5}, {"n": 6}]
    items = [row for row in run.rows() if row.kind is StepKind.ITEM]
    assert [(row.name, row.loop) for row in items] == [("foreach-0", {"x": 5}), ("foreach-1", {"x": 6})]


def test_lists_are_joined_in_element_order_and_the_last_element_wins_in_any_completion_order() -> None:
    outputs = run_workflow(
        COLLECT, "W", {"list": [1, 2, 3]}, {"Work": lambda p: {"r": p["n"] * 2}}, order=lambda tasks: len(tasks) - 1
    )
    assert outputs == {"items": [2, 4, 6], "last": 6}


@pytest.mark.parametrize("nothing", [None, []])
def test_a_foreach_over_an_empty_list_completes_immediately(nothing: Any) -> None:
    run = collecting(nothing)
    assert (run.status, run.outputs) == (RunState.COMPLETED, {})


@pytest.mark.parametrize(("value", "what"), [({"a": 1}, "a map"), ("abc", "a text"), (5, "a number"), (True, "a Boolean")])
def test_a_foreach_over_anything_but_a_list_is_an_error_that_names_the_variable(value: Any, what: str) -> None:
    with pytest.raises(WorkflowFailed, match=rf"^W: foreach `x` needs a list, this is {what}$"):
        run_workflow(COLLECT, "W", {"list": value})


def test_a_foreach_over_a_missing_input_is_an_error() -> None:
    with pytest.raises(WorkflowFailed, match=r"foreach `x`: `\$\.list` was never given"):
        run_workflow(COLLECT, "W", {})


def test_all_items_finish_before_the_block_fails_with_the_first_failure_by_element() -> None:
    run = collecting([0, 1, 2])
    steps = [run.row(f"W[{n}].w").id for n in range(3)]
    run.apply(Errored(steps[2], Problem("x", "two")))
    run.apply(Errored(steps[1], Problem("x", "one")))
    assert run.status is RunState.RUNNING
    run.apply(Finished(steps[0], {"r": 0}))
    assert run.status is RunState.FAILED
    assert run.error is not None
    assert run.error.text == "W[1].w: handler failed: one"
    assert run.row("W/block-0").failed == 2


def test_a_foreach_creates_a_bounded_number_of_items_per_call() -> None:
    run = collecting([1, 2, 3, 4, 5], expand=2)
    block = run.row("W/block-0")
    assert (len(run.tasks), list(run.again), block.expanded, block.total) == (2, [block.id], 2, 5)
    run.apply(Expand(block.id))
    assert len(run.tasks) == 4
    run.settle()
    assert (len(run.tasks), run.row("W/block-0").open) == (5, 5)
    assert run.apply(Expand(block.id)).ignored[0].reason == "`W` has nothing to expand"


def test_a_foreach_continues_when_its_first_items_complete_before_the_others_exist() -> None:
    run = collecting([1, 2, 3], expand=1)
    run.apply(Finished(run.row("W[0].w").id, {"r": 1}))
    assert run.status is RunState.RUNNING
    assert run.row("W/block-0").open == 0
    run.settle()
    run.apply(*(Finished(task.step_id, {"r": 9}) for task in list(run.tasks.values())))
    assert run.outputs == {"items": [1, 9, 9], "last": 9}


def test_a_foreach_in_a_facets_body_and_in_a_steps_body_read_their_own_scope() -> None:
    source = """
    facet Inner(list: Json) => (s: Json) andThen foreach x in $.list { yield Inner(s = [x]) }
    facet Num(v: Json) => (o: Json)
    workflow W(list: Json) => (a: Json, b: Json) andThen {
        i = Inner(list = [7])
        n = Num(v = [8, 9]) andThen foreach y in n.v { yield Num(o = [y]) }
        yield W(a = i.s, b = n.o)
    }
    """
    assert run_workflow(source, "W", {"list": [1, 2, 3]}) == {"a": [7], "b": [8, 9]}


def test_a_big_list_is_not_loaded_for_an_item() -> None:
    run = collecting([f"element {n} {'.' * 50}" for n in range(500)])
    assert run.row("W").params["list"].size > 8192
    run.blob_reads = 0
    run.apply(Finished(run.row("W[3].w").id, {"r": 1}))
    assert run.blob_reads == 0


def test_big_results_of_items_are_joined() -> None:
    big = ["x" * 9000]
    run = collecting([1, 2])
    for task in list(run.tasks.values()):
        run.apply(Finished(task.step_id, {"r": big}))
    assert run.outputs == {"items": [big, big], "last": big + big}


def test_an_item_that_fails_stays_visible_with_its_state() -> None:
    run = collecting([1])
    run.apply(Errored(run.row("W[0].w").id, Problem("x", "no")))
    assert run.row("W/block-0/foreach-0").state is State.STATEMENT_ERROR
