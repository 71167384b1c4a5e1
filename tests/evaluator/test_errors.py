"""Errors: other branches go on, dependents stay uncreated, and the top shows the root cause with its path."""

from __future__ import annotations

import pytest
from tests.evaluator.stored import StoredRun

from treadle.evaluator import Errored, Finished, Started, State
from treadle.model.outcomes import Problem
from treadle.model.states import RunState
from treadle.testing.workflows import WorkflowFailed, compile_program, run_workflow

BRANCHES = """
event facet E(n: Json = 0) => (r: Long)
workflow Flow() => (x: Long) andThen {
    a = E()
    b = E()
    after_a = E(n = a.r)
    after_b = E(n = b.r)
    yield Flow(x = b.r)
}
"""


def branches() -> StoredRun:
    run = StoredRun(compile_program(BRANCHES), "Flow")
    run.apply(Started())
    return run


def test_other_branches_continue_and_dependents_of_a_failed_step_are_never_created() -> None:
    run = branches()
    run.apply(Errored(run.row("Flow.a").id, Problem("boom", "broken")))
    assert (run.status, run.row("Flow/block-0").state) == (RunState.RUNNING, State.BLOCK_EXECUTION_CONTINUE)
    run.apply(Finished(run.row("Flow.b").id, {"r": 1}))
    assert run.status is RunState.RUNNING
    run.apply(Finished(run.row("Flow.after_b").id, {"r": 1}))
    assert run.status is RunState.FAILED
    assert {row.name for row in run.rows()} == {"Flow", "block-0", "a", "b", "after_b"}
    assert run.row("Flow.after_b").state is State.STATEMENT_COMPLETE


def test_the_error_of_the_run_names_the_step_its_id_and_its_type() -> None:
    run = branches()
    failed = run.row("Flow.a").id
    run.apply(Errored(failed, Problem("boom", "broken", "Broken")), Errored(run.row("Flow.b").id, Problem("x", "later")))
    assert run.error is not None
    assert (run.error.text, run.error.step_id, run.error.type) == ("Flow.a: handler failed: broken", failed, "Broken")
    assert run.row("Flow").error == run.error


def test_a_failed_run_has_no_waiting_steps() -> None:
    run = branches()
    run.apply(Errored(run.row("Flow.a").id, Problem("x", "a")), Errored(run.row("Flow.b").id, Problem("x", "b")))
    assert run.status is RunState.FAILED
    assert not run.tasks
    assert all(row.is_terminal for row in run.rows())


def test_the_path_goes_through_facets_items_and_bodies() -> None:
    source = """
    event facet Pay(n: Long) => (ok: Boolean)
    facet Order(n: Long) andThen { pay = Pay(n = $.n) }
    workflow Shop(list: Json) andThen foreach each in $.list { order = Order(n = each) andThen { sub = Order(n = $.n) } }
    """

    def handler(payload: dict[str, int]) -> dict[str, int]:
        if payload["n"] == 7:
            raise ValueError("card declined")
        return {}

    with pytest.raises(WorkflowFailed, match=r"^Shop\[1\]\.order\.sub\.pay: handler failed: card declined$"):
        run_workflow(source, "Shop", {"list": [1, 7]}, {"Pay": handler})


def test_a_failing_argument_fails_its_step_only() -> None:
    source = "facet Num(v: Json)\nworkflow W(d: Long) => (x: Json) andThen { a = Num(v = 1 / $.d) b = Num(v = 1) }"
    run = StoredRun(compile_program(source), "W")
    run.apply(Started({"d": 0}))
    assert run.row("W.b").state is State.STATEMENT_COMPLETE
    assert run.error is not None
    assert run.error.text == "W.a: argument `v`: division by zero: 1 / 0"


def test_a_failing_assertion_fails_the_block_with_its_text_and_line() -> None:
    source = """facet Num(v: Json)
    workflow W(n: Long) => (x: Long) andThen {
        a = Num(v = $.n)
        sys.assert(a.v > 3)
        yield W(x = a.v)
    }"""
    assert run_workflow(source, "W", {"n": 4}) == {"x": 4}
    with pytest.raises(WorkflowFailed, match=r"^W: assertion failed: a\.v > 3 \(line 4\)$") as caught:
        run_workflow(source, "W", {"n": 3})
    assert caught.value.error.type == "assertion_failed"


def test_a_failing_script_names_the_line_in_the_source() -> None:
    source = "workflow W(n: Long) => (x: Long)\nandThen script {\n    a = 1\n    result['x'] = a / params['n']\n}"
    with pytest.raises(WorkflowFailed, match=r"^W: script failed: division by zero \(workflow.afl, line 4\)$"):
        run_workflow(source, "W", {"n": 0})


def test_a_failing_pre_script_fails_its_step() -> None:
    source = "facet F(n: Long) script { result['m'] = params['nope'] }\nworkflow W() andThen { f = F(n = 1) }"
    with pytest.raises(WorkflowFailed, match=r"^W\.f: script failed: 'nope'"):
        run_workflow(source, "W")


def test_a_failing_alias_fails_the_step() -> None:
    source = """
    event facet E() => (r: Long)
    facet F() with E() as e andThen { }
    workflow W() andThen { f = F() }
    """
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    assert run.row("W.f").state is State.MIXIN_BLOCKS_CONTINUE
    run.apply(Errored(run.row("W.f.e").id, Problem("x", "no")))
    assert run.error is not None
    assert run.error.text == "W.f.e: handler failed: no"


def test_a_failing_return_default_fails_the_step() -> None:
    with pytest.raises(WorkflowFailed, match=r"^W: default of `x`: division by zero"):
        run_workflow("workflow W(d: Long) => (x: Json = 1 / $.d) andThen { }", "W", {"d": 0})


def test_only_resting_states_are_ever_stored() -> None:
    from treadle.evaluator.states import RESTING

    run = branches()
    assert {row.state for row in run.rows()} <= RESTING
