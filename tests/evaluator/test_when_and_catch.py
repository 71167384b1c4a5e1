"""when runs all true cases; catch deals with errors of a step, of its body and of a declaration."""

from __future__ import annotations

from typing import Any

import pytest
from tests.evaluator.stored import StoredRun

from treadle.evaluator import Errored, Finished, Started, State
from treadle.model.outcomes import Problem
from treadle.model.states import RunState
from treadle.testing.workflows import WorkflowFailed, compile_program, run_workflow

WHEN = """
workflow W(n: Json) => (hit: Json) andThen when {
    case $.n > 1 => { yield W(hit = ["big"]) }
    case $.n > 10 => { yield W(hit = ["huge"]) }
    case _ => { yield W(hit = ["small"]) }
}
"""
CATCH = """
event facet Pay(n: Long) => (ok: Boolean, why: String)
facet Num(v: Json)
"""


def fail(payload: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("card declined")


@pytest.mark.parametrize(("n", "hit"), [(0, ["small"]), (5, ["big"]), (50, ["big", "huge"])])
def test_all_true_cases_run_and_the_default_only_if_none_did(n: int, hit: list[str]) -> None:
    assert run_workflow(WHEN, "W", {"n": n}) == {"hit": hit}


def test_a_condition_that_is_not_boolean_fails_the_block() -> None:
    source = "workflow W(n: Json) andThen when { case $.n => { } case _ => { } }"
    with pytest.raises(WorkflowFailed, match=r"^W: case 1 needs a Boolean, this is a number$"):
        run_workflow(source, "W", {"n": 1})


def test_cases_have_rows_of_their_own_and_see_the_enclosing_steps() -> None:
    source = """
    facet Num(v: Json) => (o: Json)
    workflow W() => (x: Json) andThen {
        a = Num(v = 3)
        b = Num(v = 4) andThen when {
            case a.v == 3 => { c = Num(v = a.v + b.v) yield Num(o = c.v) }
            case _ => { yield Num(o = 0) }
        }
        yield W(x = b.o)
    }
    """
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    assert run.outputs == {"x": 7}
    assert run.row("W/block-0/b/block-0/when-case-0/c").params == {"v": 7}


def test_a_step_catches_the_error_of_its_handler() -> None:
    source = (
        CATCH
        + """
    workflow W() => (x: Json) andThen {
        p = Pay(n = 1) catch { yield Pay(ok = false, why = $.error ++ "/" ++ p.error_type) }
        after = Num(v = p.why)
        yield W(x = [p.ok, after.v, p.error])
    }
    """
    )
    assert run_workflow(source, "W", handlers={"Pay": fail}) == {"x": [False, "card declined/ValueError", "card declined"]}


def test_a_step_that_did_not_fail_has_no_error_and_runs_no_catch() -> None:
    source = (
        CATCH
        + """
    workflow W() => (x: Json) andThen {
        p = Pay(n = 1) catch { yield Pay(ok = false) }
        yield W(x = [p.ok, p.error, p.error_type])
    }
    """
    )
    assert run_workflow(source, "W", handlers={"Pay": lambda p: {"ok": True}}) == {"x": [True, None, None]}


def test_a_step_that_catches_an_error_keeps_the_yields_of_completed_blocks() -> None:
    source = (
        CATCH
        + """
    facet Both() => (a: Long, b: Long) andThen { yield Both(a = 1) } andThen { p = Pay(n = 2) yield Both(b = 2) }
    workflow W() => (x: Json) andThen {
        s = Both() catch { yield Both(b = 9) }
        yield W(x = [s.a, s.b, s.error])
    }
    """
    )
    assert run_workflow(source, "W", handlers={"Pay": fail}) == {"x": [1, 9, "card declined"]}


def test_a_declaration_catches_its_errors_before_its_caller_does() -> None:
    source = (
        CATCH
        + """
    facet Safe(n: Long) => (r: String) andThen { p = Pay(n = $.n) yield Safe(r = "paid") } catch { yield Safe(r = $.error) }
    workflow W() => (x: Json) andThen {
        s = Safe(n = 1) catch { yield Safe(r = "outer") }
        yield W(x = s.r)
    } catch { yield W(x = "outermost") }
    """
    )
    assert run_workflow(source, "W", handlers={"Pay": fail}) == {"x": "card declined"}


def test_a_workflow_catches_its_own_failure() -> None:
    source = (
        CATCH
        + """
    workflow W() => (x: Json) andThen { p = Pay(n = 1) } catch { n = Num(v = $.error_type) yield W(x = n.v) }
    """
    )
    assert run_workflow(source, "W", handlers={"Pay": fail}) == {"x": "ValueError"}


def test_catch_when_chooses_by_the_error() -> None:
    source = (
        CATCH
        + """
    workflow W() => (x: Json) andThen {
        p = Pay(n = 1) catch when {
            case $.error contains "declined" => { yield Pay(why = "declined") }
            case _ => { yield Pay(why = "other") }
        }
        yield W(x = p.why)
    }
    """
    )
    assert run_workflow(source, "W", handlers={"Pay": fail}) == {"x": "declined"}


def test_a_catch_that_fails_goes_to_the_next_catch_outwards() -> None:
    source = (
        CATCH
        + """
    facet Inner() => (r: Json) andThen { p = Pay(n = 1) } catch { q = Pay(n = 2) }
    workflow W() => (x: Json) andThen {
        s = Inner() catch { yield Inner(r = s.error) }
        yield W(x = s.r)
    }
    """
    )
    seen: list[int] = []

    def count(payload: dict[str, Any]) -> dict[str, Any]:
        seen.append(payload["n"])
        raise ValueError(f"failed {payload['n']}")

    assert run_workflow(source, "W", handlers={"Pay": count}) == {"x": "failed 2"}
    assert seen == [1, 2]


def test_a_catch_that_fails_permanently_fails_the_step_with_its_own_error() -> None:
    source = CATCH + "workflow W() andThen { p = Pay(n = 1) catch { q = Pay(n = 2) } }"
    with pytest.raises(WorkflowFailed, match=r"^W\.p\.catch\.q: handler failed: card declined$"):
        run_workflow(source, "W", handlers={"Pay": fail})


def test_a_steps_own_catch_also_sees_errors_of_its_arguments() -> None:
    source = (
        CATCH
        + """
    workflow W(d: Json) => (x: Json) andThen {
        n = Num(v = 1 / $.d) catch { }
        yield W(x = n.error)
    }
    """
    )
    assert run_workflow(source, "W", {"d": 0}) == {"x": "argument `v`: division by zero: 1 / 0"}


def test_a_step_rests_in_catch_continue_while_its_catch_runs() -> None:
    source = CATCH + "workflow W() andThen { p = Pay(n = 1) catch { q = Pay(n = 2) } }"
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    run.apply(Errored(run.row("W.p").id, Problem("declined", "no")))
    assert run.row("W.p").state is State.CATCH_CONTINUE
    assert run.row("W/block-0/p/catch-1").open == 1
    run.apply(Finished(run.row("W.p.catch.q").id))
    assert (run.status, run.row("W.p").state) == (RunState.COMPLETED, State.STATEMENT_COMPLETE)
