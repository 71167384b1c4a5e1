"""Events: late, twice, unknown, in batches; and what a call needs to see."""

from __future__ import annotations

from tests.evaluator.stored import StoredRun, pack, unpack

from treadle.evaluator import (
    BlobRef,
    Changes,
    Errored,
    Finished,
    Limits,
    LoadedRows,
    Need,
    Resend,
    RunRef,
    Started,
    State,
    Updated,
    advance,
)
from treadle.model.outcomes import Problem
from treadle.model.states import RunState
from treadle.testing.workflows import compile_program

TWO = """
event facet E(n: Json = 0) => (r: Json)
workflow W(n: Json) => (x: Json) andThen { a = E(n = $.n) b = E(n = a.r) yield W(x = b.r) }
"""
SCRIPTED = """
event facet E(n: Long) => (r: Long) script { result["n"] = params["n"] + 1 }
workflow W() => (x: Json) andThen { e = E(n = 1) yield W(x = e.r) }
"""


def start(source: str = TWO, **inputs: object) -> StoredRun:
    run = StoredRun(compile_program(source), "W")
    run.apply(Started(inputs))
    return run


def test_a_second_start_is_ignored() -> None:
    run = start(n=1)
    changes = run.apply(Started({"n": 2}))
    assert [each.reason for each in changes.ignored] == ["the run has already started"]
    assert (changes.created, changes.updated, changes.tasks, changes.status) == ([], [], [], None)


def test_finishing_a_step_that_is_not_waiting_is_ignored_with_a_reason() -> None:
    run = start(n=1)
    step = run.row("W.a").id
    run.apply(Finished(step, {"r": 1}))
    for event in (Finished(step, {"r": 2}), Errored(step, Problem("x", "late")), Updated(step, {"r": 3})):
        changes = run.apply(event)
        assert changes.ignored[0].reason == "`W.a` is not waiting, it is in state.statement.Complete"
        assert not changes.updated
    assert run.row("W.a").returns == {"r": 1}


def test_an_event_for_a_block_or_an_unknown_step_is_ignored() -> None:
    run = start(n=1)
    assert "is not waiting" in run.apply(Finished(run.row("W/block-0").id)).ignored[0].reason
    assert run.apply(Finished(run.run.id)).ignored[0].reason == "there is no such step"


def test_a_repeated_pre_script_result_is_not_mistaken_for_the_handlers() -> None:
    run = start(SCRIPTED)
    [script] = run.tasks.values()
    assert script.is_script
    run.apply(Finished(script.step_id, {"n": 2}, script.id))
    [task] = run.tasks.values()
    assert task.payload == {"n": 2}
    changes = run.apply(Finished(script.step_id, {"n": 2}, script.id))
    assert changes.ignored[0].reason == "`W.e` waits for another task"
    run.apply(Finished(task.step_id, {"r": 5}, task.id))
    assert run.outputs == {"x": 5}


def test_partial_results_are_kept_and_the_final_result_is_laid_over_them() -> None:
    run = start(n=1)
    step = run.row("W.a").id
    run.apply(Updated(step, {"progress": 1, "r": 0}))
    assert (run.row("W.a").state, run.row("W.a").returns) == (State.EVENT_TRANSMIT, {"progress": 1, "r": 0})
    run.apply(Finished(step, {"r": 2}))
    assert run.row("W.a").returns == {"progress": 1, "r": 2}


def test_several_events_of_one_call_are_applied_in_order() -> None:
    source = (
        "event facet E() => (r: Json)\nworkflow W() => (x: Json) andThen { a = E() b = E() c = E() yield W(x = [a.r, b.r, c.r]) }"
    )
    run = start(source)
    events = [Finished(run.row(f"W.{name}").id, {"r": name}) for name in "cab"]
    changes = run.apply(*events, events[0])
    assert len(changes.ignored) == 1
    assert run.outputs == {"x": ["a", "b", "c"]}


def test_a_batch_requests_no_task_for_a_step_that_it_finishes() -> None:
    from treadle.evaluator import RetryStep

    run = start(n=1)
    step = run.row("W.a").id
    run.apply(Errored(step, Problem("x", "no")))
    changes = run.apply(RetryStep(step), Finished(step, {"r": 1}))
    assert [task.step_id for task in changes.tasks] == [run.row("W.b").id]


def test_a_call_requests_the_missing_rows_of_all_events_together() -> None:
    run = start("event facet E()\nworkflow W() andThen { a = E() b = E() }")
    ids = (run.row("W.a").id, run.row("W.b").id)
    answer = advance(run.program, run.run, LoadedRows(), [Finished(each) for each in ids], Limits())
    assert answer == Need(rows=ids)


def test_every_view_that_is_enough_gives_the_same_changes() -> None:
    run = start(n=1)
    event = Finished(run.row("W.a").id, {"r": 1})
    expected = run.decide([event])
    view = LoadedRows()
    while isinstance(answer := advance(run.program, run.run, view, [event]), Need):
        stored = {row.id: row for row in run.rows()}
        for each in answer.rows:
            view.add(stored[each]) if each in stored else view.add_absent(each)
        assert not answer.children_of
    assert answer == expected


def test_the_evaluator_does_not_modify_its_view() -> None:
    run = start(n=1)
    view = LoadedRows()
    for row in run.rows():
        view.add_children(row.id, [each for each in run.rows() if each.parent_id == row.id])
        view.add(row)
    before = {key: pack(row, lambda *_: None) for key, row in view.rows.items() if row}
    first = advance(run.program, run.run, view, [Finished(run.row("W.a").id, {"r": 1})])
    assert {key: pack(row, lambda *_: None) for key, row in view.rows.items() if row} == before
    assert isinstance(first, Changes)
    assert advance(run.program, run.run, view, [Finished(run.row("W.a").id, {"r": 1})]) == first


def test_ids_are_derived_from_the_run_and_the_place() -> None:
    first, second = start(n=1), start(n=1)
    assert [row.id for row in first.rows()] == [row.id for row in second.rows()]
    other = StoredRun(compile_program(TWO), "W", number=2)
    other.apply(Started({"n": 1}))
    assert not {row.id for row in first.rows()} & {row.id for row in other.rows()}
    assert first.run.root_id == first.row("W").id


def test_a_big_value_is_passed_on_without_being_loaded() -> None:
    big = ["x" * 100] * 200
    run = start(n=big)
    [task] = run.tasks.values()
    assert run.row("W").params["n"].size > 8192
    run.blob_reads = 0
    run.apply(Finished(task.step_id, {"r": {"deep": big}}))
    [task] = run.tasks.values()
    assert task.payload["n"] == {"deep": big} or isinstance(task.payload["n"], BlobRef)
    run.apply(Finished(task.step_id, {"r": big}))
    assert run.blob_reads == 0
    assert run.outputs == {"x": big}


def test_a_big_value_is_loaded_when_an_expression_reads_its_parts() -> None:
    source = "event facet E() => (r: Json)\nworkflow W() => (x: Json) andThen { a = E() b = E() yield W(x = a.r.list[3]) }"
    run = start(source)
    run.apply(Finished(run.row("W.a").id, {"r": {"list": ["y" * 5000] * 4}}))
    assert isinstance(run.row("W.a").returns["r"], BlobRef)
    run.apply(Finished(run.row("W.b").id))
    assert (run.outputs, run.blob_reads) == ({"x": "y" * 5000}, 1)


def test_packing_a_row_round_trips_and_mistakes_no_value_for_a_reference() -> None:
    blobs: dict[str, str] = {}
    run = start(n={"digest": "abc", "size": 3})
    for row in run.rows():
        assert unpack(pack(row, blobs.__setitem__)) == row
    assert not blobs


def test_resending_a_lost_task_yields_the_same_task() -> None:
    run = start(SCRIPTED)
    for result in ({"n": 2}, {"r": 5}):
        [task] = run.tasks.values()
        assert run.decide([Resend(task.step_id)]).tasks == [task]
        run.apply(Finished(task.step_id, result, task.id))
    assert run.outputs == {"x": 5}
    assert "is not waiting" in run.apply(Resend(task.step_id)).ignored[0].reason


def test_a_users_map_that_looks_like_a_step_reference_is_only_a_map() -> None:
    source = "workflow W(n: Json) => (x: Json) andThen { yield W(x = $.n.facet) }"
    run = start(source, n={"$step": "; drop table", "facet": "F"})
    assert run.outputs == {"x": "F"}


def test_a_reference_to_an_unknown_step_is_an_error() -> None:
    source = "workflow W(n: Json) => (x: Json) andThen { yield W(x = $.n.r) }"
    run = start(source, n={"$step": start(n=1).run.id, "facet": "F"})
    assert run.error is not None
    assert run.error.message == "yield of `x`: `$.n` refers to a step that does not exist"


def test_big_lists_are_requested_together_and_other_big_values_not_at_all() -> None:
    source = """
    event facet E(n: Json) => (r: Json, t: Json)
    workflow W(n: Json) => (all: Json, last: Json) andThen foreach e in $.n { w = E(n = e) yield W(all = w.r, last = w.t) }
    """
    run = start(source, n=list(range(50)))
    big = [["x" * 9000], "y" * 9000]
    for task in list(run.tasks.values()):
        run.blob_reads = run.calls = 0
        run.apply(Finished(task.step_id, {"r": big[0], "t": big[1]}))
    assert run.outputs == {"all": big[0] * 50, "last": big[1]}
    assert (run.calls, run.blob_reads) == (3, 1)


def test_the_run_of_an_unknown_workflow_is_a_programming_error() -> None:
    import pytest

    run = start(n=1)
    view = LoadedRows()
    ref = RunRef(id=run.run.id, workflow="Nope")
    view.add_absent(ref.root_id)
    with pytest.raises(LookupError, match="no workflow Nope"):
        advance(run.program, ref, view, [Started()])
    assert run.status is RunState.RUNNING
