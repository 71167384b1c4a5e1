"""Order without data (`after`), and the error modes of foreach: `failFast` and `collectErrors(name)`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.evaluator.stored import StoredRun

from treadle.evaluator import Errored, Finished, Limits, RetryStep, Started, State
from treadle.evaluator.fork import fork
from treadle.model.outcomes import Problem
from treadle.model.states import RunState
from treadle.testing.workflows import WorkflowFailed, compile_program, run_workflow

EVENT = "event facet E(n: Json = 0) => (r: Json)\n"


def start(source: str, inputs: dict[str, object] | None = None, limits: Limits | None = None) -> StoredRun:
    run = StoredRun(compile_program(EVENT + source), "W", limits=limits)
    run.apply(Started(inputs or {}))
    run.settle()
    return run


def err(run: StoredRun, path: str) -> None:
    run.apply(Errored(run.row(path).id, Problem("x", f"no {path}", "Broken")))
    run.settle()


def finish(run: StoredRun, path: str, result: object = 1) -> None:
    run.apply(Finished(run.row(path).id, {"r": result}))
    run.settle()


def retry(run: StoredRun, path: str) -> None:
    run.apply(RetryStep(run.row(path).id))
    run.settle()


def waiting(run: StoredRun) -> set[str]:
    return {row.path for row in run.rows() if row.id in run.tasks}


# --- after


def test_a_step_starts_after_the_steps_that_it_names_and_does_not_read_them() -> None:
    run = start("workflow W() andThen { a = E() c = E() b = E() after a, c\n sys.log(done = true) after b }")
    assert waiting(run) == {"W.a", "W.c"}
    finish(run, "W.a")
    assert waiting(run) == {"W.c"}
    finish(run, "W.c")
    assert (waiting(run), run.logs) == ({"W.b"}, [])
    finish(run, "W.b")
    assert (run.status, [entry.values for entry in run.logs]) == (RunState.COMPLETED, [{"done": True}])


def test_a_step_after_a_failed_step_does_not_start() -> None:
    run = start("workflow W() andThen { a = E() b = E() after a }")
    err(run, "W.a")
    assert run.status is RunState.FAILED
    assert {row.path for row in run.rows() if row.is_step} == {"W", "W.a"}
    retry(run, "W")
    finish(run, "W.a")
    finish(run, "W.b")
    assert run.status is RunState.COMPLETED


def test_a_step_in_a_body_may_follow_a_step_of_an_enclosing_block() -> None:
    run = start("facet P()\nworkflow W() andThen { a = E() p = P() andThen { b = E() after a } }")
    assert waiting(run) == {"W.a"}
    finish(run, "W.a")
    assert waiting(run) == {"W.p.b"}


# --- failFast

FAST = """
workflow W(xs: [Json]) => (all: [Json] = []) andThen foreach x in $.xs failFast {
    a = E(n = x)
    b = E(n = a.r)
    yield W(all = [b.r])
}
"""


def test_after_a_failed_item_no_new_step_starts_and_running_steps_end() -> None:
    run = start(FAST, {"xs": [1, 2, 3]})
    err(run, "W[1].a")
    assert (run.status, waiting(run)) == (RunState.RUNNING, {"W[0].a", "W[2].a"})
    finish(run, "W[0].a")
    assert (run.status, waiting(run)) == (RunState.RUNNING, {"W[2].a"})
    finish(run, "W[2].a")
    assert run.status is RunState.FAILED
    assert run.error is not None
    assert run.error.text == "W[1].a: handler failed: no W[1].a"  # not that of an item that did not start
    assert run.row("W[0].b").error.type == "not_started"  # type: ignore[union-attr]


def test_after_a_failed_item_no_more_items_are_created() -> None:
    source = "workflow W(xs: [Json]) andThen foreach x in $.xs failFast { a = E(n = x) sys.assert(x.ok) }"
    run = start(source, {"xs": [{"ok": n != 1} for n in range(50)]}, Limits(expand=2))
    items = {row.path for row in run.rows() if row.name.startswith("foreach-")}
    assert len(items) == 50  # handlers have not answered yet
    run = StoredRun(
        compile_program("facet F(n: Long)\n" + source.replace("E(n = x)", "F(n = x.ok.no)")), "W", limits=Limits(expand=2)
    )
    run.apply(Started({"xs": [{"ok": True}] * 50}))
    run.settle()
    assert run.status is RunState.FAILED
    assert len([row for row in run.rows() if row.name.startswith("foreach-")]) == 2
    assert run.error is not None
    assert run.error.path == "W[0].a"


def test_a_retry_of_the_failed_step_also_resumes_unstarted_steps() -> None:
    for path in ("W[1].a", "W"):
        run = start(FAST, {"xs": [1, 2, 3]})
        finish(run, "W[2].a")
        err(run, "W[1].a")
        finish(run, "W[0].a")
        finish(run, "W[2].b", "c")
        assert run.status is RunState.FAILED
        retry(run, path)
        assert waiting(run) == {"W[0].b", "W[1].a"}
        finish(run, "W[0].b", "a")
        finish(run, "W[1].a")
        finish(run, "W[1].b", "b")
        assert (run.status, run.outputs) == (RunState.COMPLETED, {"all": ["a", "b", "c"]})


def test_a_retry_of_one_of_two_failures_does_not_resume_the_others() -> None:
    run = start(FAST, {"xs": [1, 2, 3]})
    err(run, "W[1].a")
    err(run, "W[2].a")
    finish(run, "W[0].a")
    retry(run, "W[1].a")
    assert waiting(run) == {"W[1].a"}
    finish(run, "W[1].a")
    assert run.status is RunState.FAILED
    assert run.error is not None
    assert run.error.path == "W[2].a"


def test_a_retry_creates_the_items_that_were_left() -> None:
    source = "workflow W(xs: [Json]) => (all: [Json]) andThen foreach x in $.xs failFast { a = E(n = x) yield W(all = [a.r]) }"
    run = StoredRun(compile_program(EVENT + source), "W", limits=Limits(expand=2))
    run.apply(Started({"xs": [0, 1, 2, 3]}))
    err(run, "W[0].a")
    finish(run, "W[1].a", 1)
    assert run.status is RunState.FAILED
    retry(run, "W")
    assert waiting(run) == {"W[0].a", "W[2].a", "W[3].a"}
    for index in (3, 0, 2):
        finish(run, f"W[{index}].a", index)
    assert run.outputs == {"all": [0, 1, 2, 3]}


def test_a_catch_within_a_stopped_foreach_does_not_run_but_one_around_it_does() -> None:
    source = """
    workflow W(xs: [Json]) => (why: String = "") andThen foreach x in $.xs failFast {
        a = E(n = x) catch when { case a.error_type == "Other" => { } case _ => { t = E(n = 1) u = E(n = t.r) } }
        sys.assert(x != 1)
    } catch { yield W(why = $.error_type) }
    """
    run = start(source, {"xs": [1, 2]})
    finish(run, "W[0].a")
    err(run, "W[1].a")
    assert (run.status, run.outputs) == (RunState.COMPLETED, {"why": "assertion_failed"})


def test_a_nested_foreach_that_was_cut_does_not_complete() -> None:
    source = """
    facet P(ys: [Json]) => (got: [Json] = [], failed: [Json] = []) andThen foreach y in $.ys collectErrors(failed) {
        a = E(n = y)
        b = E(n = a.r)
        yield P(got = [b.r])
    }
    workflow W(xs: [Json]) => (got: [Json] = [], failed: [Json] = []) andThen foreach x in $.xs failFast {
        a = E(n = x)
        p = P(ys = [1, 2]) after a
        yield W(got = p.got, failed = p.failed)
    }
    """
    run = start(source, {"xs": [1, 2]})
    finish(run, "W[0].a")
    err(run, "W[0].p[0].a")
    err(run, "W[1].a")
    finish(run, "W[0].p[1].a")
    assert run.status is RunState.FAILED
    retry(run, "W[1].a")
    finish(run, "W[1].a")
    for path in ("W[0].p[1].b", "W[1].p[0].a", "W[1].p[1].a", "W[1].p[0].b", "W[1].p[1].b"):
        finish(run, path, path)
    assert run.status is RunState.COMPLETED
    assert run.outputs is not None
    assert (len(run.outputs["got"]), len(run.outputs["failed"])) == (3, 1)


def test_a_fork_at_the_failed_step_resumes_unstarted_steps() -> None:
    run = start(FAST, {"xs": [1, 2]})
    err(run, "W[1].a")
    finish(run, "W[0].a")
    other = StoredRun(run.program, "W", number=2)
    changes = fork(run.program, other.run, run.rows(), run.row("W[1].a").id, {"xs": [1, 2]})
    other.commit(changes)  # type: ignore[arg-type]
    assert waiting(other) == {"W[0].b", "W[1].a"}
    finish(other, "W[0].b", "a")
    finish(other, "W[1].a")
    finish(other, "W[1].b", "b")
    assert other.outputs == {"all": ["a", "b"]}


# --- collectErrors

COLLECT = """
workflow W(xs: [Json]) => (all: [Json] = [], failed: [Json]) andThen foreach x in $.xs collectErrors(failed) {
    a = E(n = x)
    yield W(all = [a.r])
}
"""


def handler(payload: dict[str, Any]) -> dict[str, Any]:
    if payload["n"] is None or payload["n"] < 0:
        raise ValueError(f"bad {payload['n']}")
    return {"r": payload["n"] * 2}


def test_failed_items_are_collected_in_their_order_and_do_not_fail_the_foreach() -> None:
    failed = [
        {"index": 0, "item": -1, "error": "bad -1", "error_type": "ValueError"},
        {"index": 2, "item": None, "error": "bad None", "error_type": "ValueError"},
    ]
    for order in (None, lambda tasks: len(tasks) - 1):
        outputs = run_workflow(EVENT + COLLECT, "W", {"xs": [-1, 1, None, 2]}, {"E": handler}, order=order)
        assert outputs == {"all": [2, 4], "failed": failed}


@pytest.mark.parametrize(("xs", "expected"), [([], {"all": [], "failed": []}), ([1], {"all": [2], "failed": []})])
def test_the_list_of_errors_is_empty_without_failures(xs: list[int], expected: object) -> None:
    assert run_workflow(EVENT + COLLECT, "W", {"xs": xs}, {"E": handler}) == expected


def test_collected_errors_need_no_yield_and_work_on_the_body_of_a_step() -> None:
    source = """
    facet Each(xs: [Json]) => (failed: [Json] = [])
    workflow W(xs: [Json]) => (failed: [Json]) andThen {
        each = Each(xs = $.xs) andThen foreach x in $.xs collectErrors(failed) { a = E(n = x) b = E(n = a.r) after a }
        yield W(failed = each.failed)
    }
    """
    outputs = run_workflow(EVENT + source, "W", {"xs": [-1, 1]}, {"E": handler})
    assert [each["index"] for each in outputs["failed"]] == [0]


def test_collected_failures_are_not_the_failure_of_the_run() -> None:
    run = start(COLLECT + "andThen { z = E() }", {"xs": [1]})
    err(run, "W[0].a")
    block = run.row("W/block-0")
    assert (block.state, block.error) == (State.STATEMENT_COMPLETE, None)
    err(run, "W.z")
    assert run.error is not None
    assert run.error.path == "W.z"
    retry(run, "W")
    assert waiting(run) == {"W.z"}
    run.apply(RetryStep(run.row("W[0].a").id))
    assert "has caught this failure and moved on" in run.ignored[-1]
    finish(run, "W.z")
    assert run.status is RunState.COMPLETED


def test_an_item_can_be_retried_while_the_others_run() -> None:
    run = start(COLLECT, {"xs": [1, 2]})
    err(run, "W[0].a")
    retry(run, "W[0].a")
    finish(run, "W[1].a", "b")
    finish(run, "W[0].a", "a")
    assert run.outputs == {"all": ["a", "b"], "failed": []}


def test_large_items_and_many_of_them_are_collected() -> None:
    xs = [{"text": "x" * 10_000, "n": n} for n in range(7)]
    source = "workflow W(xs: [Json]) => (failed: [Json]) andThen foreach x in $.xs collectErrors(failed) { sys.assert(x.n == 3) }"
    run = start(source, {"xs": xs}, Limits(expand=2))
    assert run.outputs is not None
    assert [each["item"]["n"] for each in run.outputs["failed"]] == [0, 1, 2, 4, 5, 6]


def test_a_list_that_is_none_still_fails_the_foreach() -> None:
    with pytest.raises(WorkflowFailed, match="needs a list"):
        run_workflow(EVENT + COLLECT.replace("xs: [Json]", "xs: Json"), "W", {"xs": 5}, {"E": handler})
