"""An operator's retry: the step waits again, so do all failed ancestors, and the run can still finish."""

from __future__ import annotations

import pytest
from tests.evaluator.stored import StoredRun

from treadle.evaluator import Errored, Finished, RetryStep, Started, State
from treadle.model.outcomes import Problem
from treadle.model.states import RunState
from treadle.testing.workflows import compile_program

NESTED = """
event facet E(n: Json = 0) => (r: Json)
facet Mid(n: Json) => (r: Json) andThen { e = E(n = $.n) yield Mid(r = [e.r]) }
workflow W(list: Json) => (x: Json) andThen foreach each in $.list {
    m = Mid(n = each)
    last = E(n = m.r)
    yield W(x = [last.r])
}
"""


def start(source: str, inputs: dict[str, object] | None = None) -> StoredRun:
    run = StoredRun(compile_program(source), "W")
    run.apply(Started(inputs or {}))
    return run


def err(run: StoredRun, path: str, message: str = "no") -> None:
    run.apply(Errored(run.row(path).id, Problem("x", message)))


def finish(run: StoredRun, path: str, **result: object) -> None:
    run.apply(Finished(run.row(path).id, result))


def test_a_retried_step_gets_a_new_task_and_its_failed_ancestors_wait_again() -> None:
    run = start(NESTED, {"list": [1]})
    first = run.row("W[0].m.e").task_id
    err(run, "W[0].m.e")
    assert run.status is RunState.FAILED
    run.apply(RetryStep(run.row("W[0].m.e").id))
    assert run.status is RunState.RUNNING
    states = {path: run.row(path).state for path in ("W", "W/block-0", "W/block-0/foreach-0", "W[0].m", "W[0].m.e")}
    assert states == {
        "W": State.STATEMENT_BLOCKS_CONTINUE,
        "W/block-0": State.BLOCK_EXECUTION_CONTINUE,
        "W/block-0/foreach-0": State.BLOCK_EXECUTION_CONTINUE,
        "W[0].m": State.STATEMENT_BLOCKS_CONTINUE,
        "W[0].m.e": State.EVENT_TRANSMIT,
    }
    assert all(row.error is None and row.failed == 0 for row in run.rows())
    [task] = run.tasks.values()
    assert task.id != first
    finish(run, "W[0].m.e", r=5)
    finish(run, "W[0].last", r=6)
    assert (run.status, run.outputs) == (RunState.COMPLETED, {"x": [6]})


def test_retrying_one_of_several_failures_leaves_the_others_and_shows_the_next_one() -> None:
    run = start(NESTED, {"list": [0, 1, 2]})
    for n in range(3):
        err(run, f"W[{n}].m.e", f"error {n}")
    run.apply(RetryStep(run.row("W[0].m.e").id))
    finish(run, "W[0].m.e", r=5)
    finish(run, "W[0].last", r=6)
    assert run.status is RunState.FAILED
    assert run.error is not None
    assert run.error.text == "W[1].m.e: handler failed: error 1"


@pytest.mark.parametrize("path", ["W", "W/block-0"])
def test_retrying_a_container_retries_everything_that_failed_below_it(path: str) -> None:
    run = start(NESTED, {"list": [0, 1, 2]})
    finish(run, "W[1].m.e", r=1)
    err(run, "W[0].m.e")
    err(run, "W[2].m.e")
    err(run, "W[1].last")
    assert run.status is RunState.FAILED
    run.apply(RetryStep(run.row(path).id))
    assert {run.row(each).state for each in ("W[0].m.e", "W[2].m.e", "W[1].last")} == {State.EVENT_TRANSMIT}
    assert run.row("W/block-0").open == 3
    finish(run, "W[0].m.e", r=0)
    finish(run, "W[2].m.e", r=2)
    for n in range(3):
        finish(run, f"W[{n}].last", r=n)
    assert run.outputs == {"x": [0, 1, 2]}


def test_a_step_can_be_retried_while_other_branches_still_run() -> None:
    run = start("event facet E() => (r: Long)\nworkflow W() => (x: Json) andThen { a = E() b = E() yield W(x = [a.r, b.r]) }")
    err(run, "W.a")
    changes = run.apply(RetryStep(run.row("W.a").id))
    assert changes.status is None
    finish(run, "W.b", r=2)
    finish(run, "W.a", r=1)
    assert run.outputs == {"x": [1, 2]}


def test_failing_again_after_a_retry_fails_the_run_again() -> None:
    run = start(NESTED, {"list": [1]})
    for message in ("one", "two", "three"):
        err(run, "W[0].m.e", message)
        assert run.status is RunState.FAILED
        assert run.error is not None
        assert run.error.message == message
        run.apply(RetryStep(run.row("W[0].m.e").id))
        assert run.status is RunState.RUNNING


def test_only_failed_steps_can_be_retried() -> None:
    run = start(NESTED, {"list": [1]})
    reasons = [run.apply(RetryStep(run.row(path).id)).ignored[0].reason for path in ("W[0].m.e", "W")]
    assert reasons == ["`W[0].m.e` has not failed", "`W` has not failed"]
    assert run.apply(RetryStep(run.run.id)).ignored[0].reason == "there is no such step"


def test_a_caught_failure_cannot_be_retried() -> None:
    source = """
    event facet E() => (r: Long)
    facet Mid() andThen { e = E() }
    workflow W() andThen { m = Mid() catch { other = E() } }
    """
    run = start(source)
    err(run, "W.m.e")
    caught = "`W.m` has caught this failure and moved on"
    assert run.apply(RetryStep(run.row("W.m.e").id)).ignored[0].reason == caught
    finish(run, "W.m.catch.other")
    assert run.status is RunState.COMPLETED
    assert run.apply(RetryStep(run.row("W.m.e").id)).ignored[0].reason == caught


def test_after_a_failed_catch_the_original_step_can_be_retried_and_caught_again() -> None:
    source = """
    event facet E() => (r: Json)
    workflow W() => (x: Json) andThen { e = E() catch { c = E() yield E(r = $.error ++ c.r) } yield W(x = e.r) }
    """
    run = start(source)
    err(run, "W.e", "first")
    err(run, "W.e.catch.c", "in catch")
    assert run.error is not None
    assert run.error.text == "W.e.catch.c: handler failed: in catch"
    run.apply(RetryStep(run.row("W.e").id))
    assert run.row("W.e").state is State.EVENT_TRANSMIT
    err(run, "W.e", "second")
    finish(run, "W/block-0/e/catch-1-1/c", r="!")
    assert run.outputs == {"x": "second!"}


def test_a_step_inside_a_failed_catch_can_be_retried() -> None:
    source = """
    event facet E() => (r: Json)
    workflow W() => (x: Json) andThen { e = E() catch { c = E() yield E(r = e.error ++ c.r) } yield W(x = e.r) }
    """
    run = start(source)
    err(run, "W.e", "first")
    err(run, "W.e.catch.c", "in catch")
    run.apply(RetryStep(run.row("W.e.catch.c").id))
    assert run.row("W.e").state is State.CATCH_CONTINUE
    finish(run, "W.e.catch.c", r="!")
    assert run.outputs == {"x": "first!"}


def test_a_step_inside_the_failed_catch_of_a_declaration_can_be_retried() -> None:
    source = """
    event facet E() => (r: Json)
    workflow W() => (x: Json) andThen { e = E() } catch { c = E() yield W(x = $.error ++ c.r) }
    """
    run = start(source)
    err(run, "W.e", "first")
    err(run, "W.catch.c", "in catch")
    assert run.status is RunState.FAILED
    run.apply(RetryStep(run.row("W.catch.c").id))
    finish(run, "W.catch.c", r="!")
    assert run.outputs == {"x": "first!"}


def test_a_step_inside_a_catch_of_an_earlier_round_cannot_be_retried() -> None:
    source = """
    event facet E() => (r: Json)
    facet Mid() andThen { e = E() }
    workflow W() andThen { m = Mid() catch { c = E() } }
    """
    run = start(source)
    err(run, "W.m.e")
    err(run, "W.m.catch.c")
    old = run.row("W.m.catch.c").id
    run.apply(RetryStep(run.row("W.m.e").id))
    assert run.apply(RetryStep(old)).ignored[0].reason == "`W.m` has been retried since"
    err(run, "W.m.e")
    err(run, "W/block-0/m/catch-1-1/c")
    assert run.apply(RetryStep(old)).ignored[0].reason == "`W.m` has been retried since"
    run.apply(RetryStep(run.row("W/block-0/m/catch-1-1/c").id))
    finish(run, "W/block-0/m/catch-1-1/c")
    assert run.status is RunState.COMPLETED


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("facet F() script { result['a'] = 1 } andThen { }\nworkflow W() => (x: Json) andThen { f = F() yield W(x = f.a) }", "W.f"),
        ("workflow W() => (x: Json) andThen script { result['x'] = 1 }", "W/block-0"),
    ],
)
def test_a_failed_script_is_run_again(source: str, path: str) -> None:
    run = start(source)
    [first] = run.tasks.values()
    err(run, path)
    assert run.status is RunState.FAILED
    run.apply(RetryStep(run.row(path).id))
    [task] = run.tasks.values()
    assert task.is_script
    assert task.id != first.id
    finish(run, path, a=1, x=1)
    assert run.status is RunState.COMPLETED


def test_an_alias_that_failed_can_be_retried() -> None:
    run = start(
        """
    event facet E() => (r: Long)
    facet F() with E() as e andThen { }
    workflow W() => (x: Json) andThen { f = F() yield W(x = f.e.r) }
    """
    )
    err(run, "W.f.e")
    run.apply(RetryStep(run.row("W").id))
    assert run.row("W.f").state is State.MIXIN_BLOCKS_CONTINUE
    finish(run, "W.f.e", r=3)
    assert run.outputs == {"x": 3}


@pytest.mark.parametrize(
    "source",
    [
        "facet N(v: Json)\nworkflow W() andThen { a = N(v = 1 / 0.0) }",
        "workflow W() => (x: Json) andThen { yield W(x = 1 % 0) }",
        "workflow W(l: Json = 3) andThen foreach x in $.l { }",
        "workflow W() => (x: Json = 1 / 0) andThen { }",
    ],
)
def test_a_retry_after_an_evaluation_error_fails_with_the_same_error(source: str) -> None:
    run = start(source)
    before = run.error
    assert before is not None
    changes = run.apply(RetryStep(before.step_id))
    assert (changes.status, run.error) == (RunState.FAILED, before)
