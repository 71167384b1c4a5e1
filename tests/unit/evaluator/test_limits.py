"""Limits: rows per call, nesting, rows of a run; nothing is lost at a limit and nothing runs without end."""

from __future__ import annotations

import pytest

from treadle.evaluator import Limits, Started, State
from treadle.model.states import RunState
from treadle.testing.workflows import SimulatedRun, WorkflowFailed, compile_program, run_workflow

TREE = """
facet Leaf(n: Long) => (s: Json) andThen { yield Leaf(s = [$.n]) }
facet Branch(n: Long) => (s: Json) andThen {
    a = Leaf(n = $.n)
    b = Leaf(n = $.n + 1)
    yield Branch(s = [a.s[0], b.s[0]])
}
workflow W(list: Json) => (out: Json) andThen foreach x in $.list { b = Branch(n = x) yield W(out = b.s) }
"""


def test_a_workflow_that_calls_itself_without_end_fails_with_a_clear_error() -> None:
    source = "workflow W(n: Long) => (x: Long) andThen { w = W(n = $.n + 1) yield W(x = w.x) }"
    with pytest.raises(WorkflowFailed, match="nested more than 100 deep; does `W` call itself endlessly") as caught:
        run_workflow(source, "W", {"n": 0})
    assert caught.value.error.type == "too_deep"
    assert caught.value.error.path.startswith("W.w.w.w")


def test_a_recursion_that_ends_is_fine() -> None:
    source = """
    facet Down(n: Long) => (x: Long) andThen when {
        case $.n > 0 => { d = Down(n = $.n - 1) yield Down(x = d.x + 1) }
        case _ => { yield Down(x = 0) }
    }
    workflow W() => (x: Long) andThen { d = Down(n = 90) yield W(x = d.x) }
    """
    assert run_workflow(source, "W") == {"x": 90}


def test_a_recursion_that_branches_without_end_stops_at_the_rows_of_a_run() -> None:
    source = "workflow W(n: Long) andThen { a = W(n = 1) b = W(n = 2) }"
    with pytest.raises(WorkflowFailed, match="the run has more than 3000 rows"):
        run_workflow(source, "W", {"n": 0}, limits=Limits(rows=500, total_rows=3000))


def test_a_foreach_that_would_exceed_the_rows_of_a_run_fails_at_once() -> None:
    with pytest.raises(WorkflowFailed, match="foreach `x` has 50 elements; a run may have 40 rows"):
        run_workflow(TREE, "W", {"list": list(range(50))}, limits=Limits(total_rows=40))


@pytest.mark.parametrize("rows", [1, 3, 10, 50, 10_000])
@pytest.mark.parametrize("expand", [1, 4, 500])
def test_the_outputs_are_the_same_whatever_the_limits_of_a_call(rows: int, expand: int) -> None:
    items = list(range(12))
    expected = [each for n in items for each in (n, n + 1)]
    assert run_workflow(TREE, "W", {"list": items}, limits=Limits(rows=rows, expand=expand)) == {"out": expected}


def test_a_call_that_is_full_leaves_blocks_for_later_and_the_run_running() -> None:
    run = SimulatedRun(compile_program(TREE), "W", limits=Limits(rows=20))
    changes = run.apply(Started({"list": list(range(100))}))
    assert changes.status is RunState.RUNNING
    assert 20 <= len(changes.created) < 60
    assert run.again
    waiting = [row for row in run.rows() if row.id in run.again and row.total is None]
    assert {row.state for row in waiting} == {State.BLOCK_EXECUTION_BEGIN}
    run.settle()
    assert run.status is RunState.COMPLETED


def test_many_statements_in_one_block_cost_no_stack() -> None:
    lines = "\n".join(f"s{n} = N(v = s{n - 1}.v + 1)" for n in range(1, 1500))
    source = f"facet N(v: Long)\nworkflow W() => (x: Long) andThen {{\ns0 = N(v = 0)\n{lines}\nyield W(x = s1499.v)\n}}"
    assert run_workflow(source, "W") == {"x": 1499}
