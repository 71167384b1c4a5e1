"""Yields: lazy, merged at capture, landing on the owner of the block; what scripts give merges alike."""

from __future__ import annotations

from tests.evaluator.stored import StoredRun

from treadle.evaluator import Finished, Started, State
from treadle.model.states import RunState
from treadle.testing.workflows import compile_program, run_workflow

TWO = """
event facet E(n: Long) => (r: Long)
workflow W() => (x: Long, y: Long) andThen { a = E(n = 1) b = E(n = 2) yield W(x = a.r) }
"""


def test_a_yield_waits_for_all_steps_of_its_block_even_for_those_it_does_not_read() -> None:
    run = StoredRun(compile_program(TWO), "W")
    run.apply(Started())
    run.apply(Finished(run.row("W.a").id, {"r": 5}))
    assert run.row("W/block-0").returns == {}
    run.apply(Finished(run.row("W.b").id, {"r": 6}))
    assert run.row("W/block-0").returns == {"x": 5}
    assert run.outputs == {"x": 5}


def test_the_owner_is_not_touched_while_its_blocks_run() -> None:
    source = "event facet E()\nworkflow W() => (x: Long) andThen { yield W(x = 1) } andThen { e = E() }"
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    assert run.row("W/block-0").state is State.STATEMENT_COMPLETE
    assert (run.row("W").returns, run.row("W").open) == ({}, 1)
    run.apply(Finished(run.row("W.e").id))
    assert run.outputs == {"x": 1}


def test_later_blocks_win_and_lists_are_joined_in_block_order() -> None:
    source = """
    workflow W() => (one: Json, many: Json, mixed: Json) andThen { yield W(one = 1, many = [1], mixed = [1]) }
    andThen { yield W(one = 2, many = [2, 3], mixed = 2) }
    """
    assert run_workflow(source, "W") == {"one": 2, "many": [1, 2, 3], "mixed": 2}


def test_a_null_is_a_value_that_wins_like_any_other() -> None:
    source = "workflow W() => (x: Json) andThen { yield W(x = 1) } andThen { yield W(x = null) }"
    assert run_workflow(source, "W") == {"x": None}


def test_yields_are_laid_over_a_handlers_results_and_not_joined_with_them() -> None:
    source = """
    event facet E() => (items: Json, other: Json) andThen { yield E(items = ["body"]) }
    workflow W() => (x: Json, y: Json) andThen { e = E() yield W(x = e.items, y = e.other) }
    """
    assert run_workflow(source, "W", handlers={"E": lambda p: {"items": ["handler"], "other": 1}}) == {"x": ["body"], "y": 1}


def test_a_yield_in_a_step_body_that_names_the_declaration_lands_on_the_step() -> None:
    source = """
    facet F() => (r: Long)
    workflow W() => (r: Long, x: Json) andThen { f = F() andThen { yield W(r = 5) } yield W(x = f.r) }
    """
    assert run_workflow(source, "W") == {"x": 5}


def test_results_of_script_blocks_merge_like_yields() -> None:
    source = """
    workflow W(n: Long) => (x: Json, l: Json) andThen script { result["x"] = params["n"]; result["l"] = [1] }
    andThen { yield W(l = [2]) } andThen script { result["l"] = [3] }
    """
    assert run_workflow(source, "W", {"n": 4}) == {"x": 4, "l": [1, 2, 3]}


def test_a_script_block_of_an_event_facet_sees_the_handlers_results() -> None:
    source = """
    event facet E(n: Long) => (r: Long, twice: Long) andThen script { result["twice"] = params["r"] * 2 + params["n"] }
    workflow W() => (x: Long) andThen { e = E(n = 1) yield W(x = e.twice) }
    """
    assert run_workflow(source, "W", handlers={"E": lambda p: {"r": 10}}) == {"x": 21}


def test_an_empty_block_yields_no_value() -> None:
    run = StoredRun(compile_program("workflow W() andThen { }"), "W")
    run.apply(Started())
    assert (run.status, run.outputs) == (RunState.COMPLETED, {})


def test_a_workflow_without_a_body_completes_with_no_outputs() -> None:
    assert run_workflow("workflow W(a: Long = 1)", "W") == {}


def test_logs_are_emitted_once_their_steps_complete_and_never_fail_the_run() -> None:
    source = """
    event facet E() => (r: Json, s: Json)
    workflow W() andThen {
        a = E() b = E()
        sys.log(start = 1)
        sys.log(sum = a.r + b.r, missing = a.s)
    }
    """
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    assert [entry.values for entry in run.logs] == [{"start": 1}]
    run.apply(*(Finished(run.row(f"W.{name}").id, {"r": 2}) for name in "ab"))
    assert run.status is RunState.COMPLETED
    [_, sums] = [entry for entry in run.logs if entry.warning is None]
    assert sums.values["sum"] == 4
    assert "step `a` has no `s`" in sums.values["missing"]
    assert (sums.path, sums.line) == ("W", 6)
