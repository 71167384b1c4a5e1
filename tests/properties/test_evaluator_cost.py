"""A foreach costs per item the same however many items there are; counted in rows read and written, not in seconds."""

from __future__ import annotations

import pytest
from tests.evaluator.stored import StoredRun

from treadle.evaluator import Errored, Finished, Limits, RetryStep, Started
from treadle.model.outcomes import Problem
from treadle.model.states import RunState
from treadle.testing.workflows import compile_program

SOURCE = """
event facet Work(n: Json) => (r: Json)
facet Wrap(n: Json) => (r: Json) andThen { w = Work(n = $.n) yield Wrap(r = w.r) }
workflow Wide(list: Json) => (out: Json) andThen foreach x in $.list { w = Work(n = x) yield Wide(out = [w.r]) }
workflow Deep(list: Json) => (out: Json) andThen { a = Wrap(n = 0) } andThen foreach x in $.list {
    one = Wrap(n = x)
    two = Wrap(n = one.r)
    yield Deep(out = [two.r])
}
"""
PROGRAM = compile_program(SOURCE)


def play(workflow: str, items: int) -> StoredRun:
    run = StoredRun(PROGRAM, workflow)
    run.apply(Started({"list": list(range(items))}))
    run.settle()
    while run.tasks:
        task = next(iter(run.tasks.values()))
        run.apply(Finished(task.step_id, {"r": task.payload["n"]}, task.id))
    assert run.status is RunState.COMPLETED
    assert run.outputs == {"out": list(range(items))}
    return run


@pytest.mark.parametrize(
    ("workflow", "items", "reads", "writes"),
    [("Wide", 100, 8, 6), ("Wide", 1000, 8, 6), ("Wide", 10_000, 8, 6), ("Deep", 100, 30, 22), ("Deep", 1000, 30, 22)],
)
def test_rows_read_and_written_per_item_are_bounded(workflow: str, items: int, reads: int, writes: int) -> None:
    run = play(workflow, items)
    assert run.reads / items <= reads
    assert run.writes / items <= writes


def test_finishing_one_of_many_items_touches_a_handful_of_rows() -> None:
    run = StoredRun(PROGRAM, "Wide")
    run.apply(Started({"list": [f"element {n}" for n in range(2000)]}))
    run.settle()
    step = run.row("Wide[1234].w").id
    run.reads = run.writes = run.blob_reads = run.calls = 0
    changes = run.apply(Finished(step, {"r": 1}))
    assert [row.place for row in changes.updated] == ["Wide/block-0/foreach-1234/w", "Wide/block-0/foreach-1234", "Wide/block-0"]
    assert (run.reads, run.writes, run.blob_reads, run.calls) == (4, 3, 0, 1)


def test_failing_and_retrying_one_of_many_items_touches_a_handful_of_rows() -> None:
    run = StoredRun(PROGRAM, "Wide", limits=Limits(expand=2000))
    run.apply(Started({"list": list(range(2000))}))
    run.settle()
    step = run.row("Wide[77].w").id
    run.reads = run.writes = 0
    run.apply(Errored(step, Problem("x", "no")))
    run.apply(RetryStep(step))
    assert run.reads <= 12
    assert run.writes <= 8


def test_retrying_all_steps_of_a_run_reads_level_by_level() -> None:
    run = StoredRun(PROGRAM, "Deep", limits=Limits(expand=2000))
    run.apply(Started({"list": list(range(300))}))
    run.apply(*(Errored(task.step_id, Problem("x", "no")) for task in list(run.tasks.values())))
    assert run.status is RunState.FAILED
    run.calls = 0
    run.apply(RetryStep(run.row("Deep").id))
    assert len(run.tasks) == 301
    assert run.calls <= 6


def test_a_foreach_without_yields_never_loads_its_items() -> None:
    source = "event facet Work(n: Json)\nworkflow W(list: Json) andThen foreach x in $.list { w = Work(n = x) }"
    run = StoredRun(compile_program(source), "W")
    run.apply(Started({"list": list(range(300))}))
    *others, last = run.tasks.values()
    run.apply(*(Finished(task.step_id) for task in others))
    run.reads = 0
    run.apply(Finished(last.step_id))
    assert (run.status, run.reads <= 5) == (RunState.COMPLETED, True)


def test_ten_thousand_results_are_applied_in_one_call() -> None:
    run = StoredRun(PROGRAM, "Wide", limits=Limits(expand=10_000, rows=100_000))
    run.apply(Started({"list": list(range(5_000))}))
    run.writes = 0
    run.apply(*(Finished(task.step_id, {"r": 1}) for task in list(run.tasks.values())))
    assert run.status is RunState.COMPLETED
    assert run.writes == 2 * 5_000 + 2
