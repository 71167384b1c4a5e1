"""Traps that others fell into, each with its number in the language's description."""

from __future__ import annotations

import pytest
from tests.evaluator.stored import StoredRun

from treadle.evaluator import Errored, Finished, Limits, RetryStep, Started
from treadle.model.outcomes import Problem
from treadle.model.states import RunState
from treadle.testing.workflows import WorkflowFailed, compile_program, run_workflow


def test_t5_a_run_that_a_limit_stopped_is_never_reported_completed() -> None:
    source = "workflow W(l: Json) => (x: Json) andThen foreach e in $.l { yield W(x = e) }"
    run = StoredRun(compile_program(source), "W", limits=Limits(expand=2))
    changes = run.apply(Started({"l": [1, 2, 3]}))
    assert (changes.status, changes.outputs) == (RunState.RUNNING, None)


def test_t6_a_yield_runs_no_script() -> None:
    source = """
    workflow W(text: String) => (n: Long) script { result["m"] = len(params["text"]) }
    andThen { yield W(n = $.m) }
    """
    run = StoredRun(compile_program(source), "W")
    run.apply(Started({"text": "abc"}))
    [task] = run.tasks.values()
    run.apply(Finished(task.step_id, {"m": 3}, task.id))
    assert (run.outputs, run.tasks) == ({"n": 3}, {})


def test_t7_a_reference_below_a_minus_is_a_dependency() -> None:
    source = """
    event facet E() => (r: Long)
    facet N(v: Long)
    workflow W() => (x: Long) andThen { e = E() n = N(v = -e.r) yield W(x = -n.v) }
    """
    assert run_workflow(source, "W", handlers={"E": lambda p: {"r": 4}}) == {"x": 4}


@pytest.mark.parametrize(
    ("default", "value"), [("null", None), ("[1, 2]", [1, 2]), ("#{a: 1}", {"a": 1}), ("-3", -3), ("1 + 2", 3)]
)
def test_t8_defaults_of_the_started_workflow_are_evaluated(default: str, value: object) -> None:
    assert run_workflow(f"workflow W(a: Json = {default}) => (x: Json) andThen {{ yield W(x = $.a) }}", "W") == {"x": value}


def test_t9_a_null_result_can_be_read_and_differs_from_a_missing_one() -> None:
    source = "event facet E() => (r: Json)\nworkflow W() => (x: Json) andThen { e = E() yield W(x = e.r) }"
    assert run_workflow(source, "W", handlers={"E": lambda p: {"r": None}}) == {"x": None}
    with pytest.raises(WorkflowFailed, match="step `e` has no `r`: `E` declares it, but nothing gave it a value"):
        run_workflow(source, "W", handlers={"E": lambda p: {}})


def test_t10_a_foreach_reads_step_references_in_its_own_scope_and_persists_its_values() -> None:
    source = """
    event facet List() => (items: Json)
    event facet Use(v: Json) => (r: Json)
    facet Each(list: Json) => (out: Json) andThen foreach e in $.list { u = Use(v = e.k) yield Each(out = [u.r]) }
    workflow W(list: Json) => (x: Json) andThen { l = List() each = Each(list = l.items) yield W(x = each.out) }
    """
    handlers = {"List": lambda p: {"items": [{"k": 1}, {"k": 2}]}, "Use": lambda p: {"r": p["v"] * 10}}
    assert run_workflow(source, "W", {"list": [9, 9, 9]}, handlers) == {"x": [10, 20]}


def test_t11_outputs_hold_only_yielded_values() -> None:
    source = 'workflow W(a: Long = 1, b: String = "x") => (r: Long) andThen { yield W(r = $.a) }\nimplicit i = W(b = "y")'
    assert run_workflow(source, "W") == {"r": 1}


def test_t12_the_top_level_error_has_the_root_cause_and_the_path() -> None:
    source = "event facet Pay() => (ok: Boolean)\nworkflow Checkout() andThen { pay = Pay() }"
    run = StoredRun(compile_program(source), "Checkout")
    run.apply(Started())
    run.apply(Errored(run.row("Checkout.pay").id, Problem("declined", "card declined")))
    assert run.error is not None
    assert run.error.text == "Checkout.pay: handler failed: card declined"


def test_t13_a_retry_resets_the_chain_and_dependents_then_run() -> None:
    source = (
        "event facet E(n: Json = 0) => (r: Long)\nworkflow W() => (x: Long) andThen { a = E() b = E(n = a.r) yield W(x = b.r) }"
    )
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    run.apply(Errored(run.row("W.a").id, Problem("x", "no")))
    run.apply(RetryStep(run.row("W.a").id))
    run.apply(Finished(run.row("W.a").id, {"r": 1}))
    run.apply(Finished(run.row("W.b").id, {"r": 2}))
    assert (run.status, run.outputs) == (RunState.COMPLETED, {"x": 2})


def test_t14_partial_and_final_results_have_one_shape() -> None:
    source = "event facet E() => (r: Json)\nworkflow W() => (x: Json) andThen { e = E() yield W(x = e.r) }"
    from treadle.evaluator import Updated

    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    run.apply(Updated(run.row("W.e").id, {"r": [1]}))
    run.apply(Finished(run.row("W.e").id))
    assert run.outputs == {"x": [1]}


def test_t16_two_concurrent_results_are_both_applied() -> None:
    source = "event facet E() => (r: Long)\nworkflow W() => (x: Long) andThen { a = E() b = E() yield W(x = a.r + b.r) }"
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    run.apply(Finished(run.row("W.b").id, {"r": 2}), Finished(run.row("W.a").id, {"r": 1}))
    assert run.outputs == {"x": 3}


def test_t17_a_failed_handler_ends_the_run() -> None:
    run = StoredRun(compile_program("event facet E()\nworkflow W() andThen { e = E() }"), "W")
    run.apply(Started())
    assert run.apply(Errored(run.row("W.e").id, Problem("x", "no"))).status is RunState.FAILED


def test_t21_a_called_facet_may_have_several_blocks() -> None:
    source = """
    facet F(n: Long) => (a: Long, b: Long, c: Long) andThen { yield F(a = $.n) } andThen { yield F(b = $.n + 1) }
    andThen { n = G(v = $.n + 2) yield F(c = n.v) }
    facet G(v: Long)
    workflow W() => (x: Json) andThen { f = F(n = 1) yield W(x = [f.a, f.b, f.c]) }
    """
    assert run_workflow(source, "W") == {"x": [1, 2, 3]}
