"""Limits: rows per call, nesting, rows of a run; nothing is lost at a limit and nothing runs without end."""

from __future__ import annotations

import pytest
from tests.evaluator.stored import StoredRun

from treadle.evaluator import Limits, RetryStep, Started, State
from treadle.model.states import RunState
from treadle.testing.workflows import WorkflowFailed, compile_program, run_workflow

TREE = """
facet Leaf(n: Long) => (s: Json) andThen { yield Leaf(s = [$.n]) }
facet Branch(n: Long) => (s: Json) andThen {
    a = Leaf(n = $.n)
    b = Leaf(n = $.n + 1)
    yield Branch(s = [a.s[0], b.s[0]])
}
workflow W(list: Json) => (out: Json) andThen foreach x in $.list { b = Branch(n = x) yield W(out = b.s) }
"""


ENDLESS = {
    "itself": ("facet A() andThen { a = A() }", "`A` call itself endlessly?"),
    "itself twice": ("facet A() andThen { a = A() b = A() }", "`A` call itself endlessly?"),
    "itself twice, one after the other": (
        "facet A(n: Long) => (n: Long) andThen { a = A(n = $.n) b = A(n = a.n) yield A(n = b.n) }",
        "`A` call itself endlessly?",
    ),
    "through another": (
        "facet A() andThen { b = B() c = B() } facet B() andThen { a = A() b = A() }",
        "`A` call itself endlessly through `B`?",
    ),
    "in a foreach": (
        "facet A(list: Json) andThen foreach x in $.list { a = A(list = $.list) b = A(list = $.list) }",
        "`A` call itself endlessly?",
    ),
    "in a case": ("facet A() andThen when { case 1 == 1 => { a = A() b = A() } case _ => { } }", "`A` call itself endlessly?"),
    "in a catch": (
        "facet A() andThen { sys.assert(1 == 2) } catch { a = A() b = A() }",
        "`A` call itself endlessly?",
    ),
    "in a body": (
        "facet B() facet A() andThen { b = B() andThen { a = A() } c = B() andThen { a = A() } }",
        "`A` call itself endlessly through `B`?",
    ),
    "in a signature": ("facet A() with A() as a", "`A` call itself endlessly?"),
    "and catches": ("facet A() andThen { a = A() b = A() } catch { c = A() }", "`A` call itself endlessly?"),
}


@pytest.mark.parametrize("shape", ENDLESS)
def test_an_endless_recursion_stops_the_run_and_names_the_facets(shape: str) -> None:
    facets, named = ENDLESS[shape]
    given = {"n": "n = 1", "list": "list = $.list"}
    args = next((given[name] for name in given if f"A({name}:" in facets), "")
    source = f"{facets}\nworkflow W(list: Json) andThen {{ a = A({args}) b = A({args}) }} catch {{ c = A({args}) }}"
    run = StoredRun(compile_program(source), "W")
    run.apply(Started({"list": list(range(40))}))
    run.settle()
    assert run.status is RunState.FAILED
    assert run.error is not None
    assert (run.error.type, len(run.error.path) <= 160) == ("too_deep", True)
    assert f"steps are nested more than 100 deep; does {named}" in run.error.text
    assert run.writes <= 15_000
    assert run.row("W").error == run.error
    assert run.apply(RetryStep(run.run.root_id)).ignored[0].reason == "the run was stopped at a limit; start it again"


def test_an_endless_recursion_with_growing_values_stops_the_run() -> None:
    source = """
    facet A(x: Json) andThen { a = A(x = $.x ++ $.x) b = A(x = $.x ++ $.x) } catch { c = A(x = $.x) }
    workflow W(x: Json) andThen { a = A(x = $.x) }
    """
    run = StoredRun(compile_program(source), "W")
    run.apply(Started({"x": "0123456789"}))
    run.settle()
    assert run.error is not None
    assert run.error.type == "value_too_large"
    assert "the limit is 16777216; does `A` call itself endlessly?" in run.error.text
    assert run.writes < 200


def test_a_stopped_run_keeps_its_stored_rows_and_requests_no_tasks() -> None:
    source = """
    event facet E(n: Long)
    facet A(n: Long) andThen { e = E(n = $.n) a = A(n = $.n + 1) b = A(n = $.n + 2) }
    workflow W() andThen { e = E(n = 0) } andThen { a = A(n = 1) }
    """
    run = StoredRun(compile_program(source), "W")
    changes = run.apply(Started({}))
    assert (changes.stopped, changes.status, changes.tasks, changes.again) == (True, RunState.FAILED, [], [])
    rows = {row.place: row.state for row in run.rows()}
    assert set(rows.values()) == {State.STATEMENT_ERROR}
    assert len(rows) == 203  # the workflow, its block, and 101 steps, each but the last with a block


def test_a_recursion_that_ends_is_fine() -> None:
    source = """
    facet Down(n: Long) => (x: Long) andThen when {
        case $.n > 0 => { d = Down(n = $.n - 1) yield Down(x = d.x + 1) }
        case _ => { yield Down(x = 0) }
    }
    workflow W() => (x: Long) andThen { d = Down(n = 90) yield W(x = d.x) }
    """
    assert run_workflow(source, "W") == {"x": 90}


def test_a_run_of_too_many_rows_is_stopped() -> None:
    facets = "\n".join(f"facet F{n}() andThen {{ a = F{n + 1}() b = F{n + 1}() }}" for n in range(30))
    source = f"{facets}\nfacet F30()\nworkflow W() andThen {{ f = F0() }} catch {{ f = F0() }}"
    run = StoredRun(compile_program(source), "W", limits=Limits(rows=500, total_rows=3000))
    run.apply(Started({}))
    run.settle()
    assert run.status is RunState.FAILED
    assert run.error is not None
    assert "the run has more than 3000 rows (steps, blocks and items); the latest calls `F" in run.error.text
    assert run.error.type == "too_many_rows"
    assert len(run.rows()) <= 3000


def test_a_foreach_that_would_exceed_the_rows_of_a_run_fails_immediately() -> None:
    with pytest.raises(WorkflowFailed, match="foreach `x` has 50 elements; a run may have 40 rows"):
        run_workflow(TREE, "W", {"list": list(range(50))}, limits=Limits(total_rows=40))


@pytest.mark.parametrize("rows", [1, 3, 10, 50, 10_000])
@pytest.mark.parametrize("expand", [1, 4, 500])
def test_the_limits_of_a_call_do_not_change_the_outputs(rows: int, expand: int) -> None:
    items = list(range(12))
    expected = [each for n in items for each in (n, n + 1)]
    assert run_workflow(TREE, "W", {"list": items}, limits=Limits(rows=rows, expand=expand)) == {"out": expected}


def test_a_call_that_is_full_leaves_blocks_for_later_and_the_run_running() -> None:
    run = StoredRun(compile_program(TREE), "W", limits=Limits(rows=20))
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
