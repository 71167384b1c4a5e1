"""Forks, purely: which rows survive, under which ids, and what is asked for again."""

from __future__ import annotations

import msgspec
from tests.evaluator.examples import EXAMPLES
from tests.evaluator.stored import StoredRun

from treadle.evaluator import Changes, Finished, RunRef, Started, State, StepRow, fork
from treadle.model.ids import derived_id, uuid7
from treadle.model.states import RunState
from treadle.testing.workflows import compile_program

NEW = uuid7(1_800_000_000_000, b"0123456789")


def forked(run: StoredRun, place: str, **inputs: object) -> tuple[Changes, dict[str, StepRow]]:
    before = [msgspec.json.encode(row) for row in run.rows()]
    rows = run.rows()
    ref = RunRef(id=NEW, workflow=run.run.workflow)
    changes = fork(run.program, ref, rows, run.row(place).id, {"kilos": 10, **inputs}, inputs)
    assert isinstance(changes, Changes)
    assert [msgspec.json.encode(row) for row in rows] == before  # what it was given stays as it was
    assert changes.updated == []
    return changes, {row.place: row for row in changes.created}


def baked() -> StoredRun:
    run = StoredRun(compile_program(EXAMPLES["E10"]), "mill.Bake")
    run.apply(Started({"kilos": 10}))
    run.apply(Finished(run.row("Bake.coarse").id, {"flour": 9}))
    run.apply(Finished(run.row("Bake.fine").id, {"flour": 8}))
    assert run.status is RunState.COMPLETED
    return run


def test_ids_are_those_of_the_new_run() -> None:
    _, rows = forked(baked(), "Bake.fine")
    assert set(rows) == {"Bake", "Bake/block-0", "Bake/block-0/coarse", "Bake/block-0/fine"}
    for place, row in rows.items():
        assert (row.id, row.run_id) == (derived_id(NEW, place), NEW)
        assert row.parent_id == (derived_id(NEW, place.rpartition("/")[0]) if "/" in place else None)


def test_a_fork_keeps_earlier_steps_and_drops_later_ones() -> None:
    changes, rows = forked(baked(), "Bake.fine")
    assert rows["Bake/block-0/coarse"].state is State.STATEMENT_COMPLETE
    assert rows["Bake/block-0/coarse"].returns == {"flour": 9}
    assert rows["Bake/block-0"].state is State.BLOCK_EXECUTION_CONTINUE
    assert (rows["Bake"].state, rows["Bake"].returns) == (State.STATEMENT_BLOCKS_CONTINUE, {})
    assert [row.open for row in (rows["Bake"], rows["Bake/block-0"])] == [1, 1]
    assert [(task.payload, task.step_id) for task in changes.tasks] == [({"kilos": 9, "fine": True}, rows["Bake/block-0/fine"].id)]
    assert changes.status is RunState.RUNNING
    changes, rows = forked(baked(), "Bake.coarse")
    assert "Bake/block-0/fine" not in rows
    assert [task.payload for task in changes.tasks] == [{"kilos": 10, "fine": False}]


def test_repeated_steps_see_changed_inputs() -> None:
    changes, rows = forked(baked(), "Bake.coarse", kilos=20)
    assert rows["Bake"].params == {"kilos": 20}
    assert [task.payload["kilos"] for task in changes.tasks] == [20]


def test_a_fork_from_the_root_keeps_no_step() -> None:
    changes, rows = forked(baked(), "Bake", kilos=30)
    assert set(rows) == {"Bake", "Bake/block-0", "Bake/block-0/coarse"}
    assert [task.payload["kilos"] for task in changes.tasks] == [30]


def test_an_event_step_with_a_repeated_body_keeps_its_handler_result() -> None:
    run = StoredRun(compile_program(EXAMPLES["E13"]), "desk.Letter")
    run.apply(Started({"text": "hej"}))
    run.apply(Finished(run.row("Letter.t").id, {"out": "hi"}))
    changes, rows = forked(run, "Letter/block-0/t/block-0")
    assert (changes.status, changes.outputs, changes.tasks) == (RunState.COMPLETED, {"final": "draft:hi:hej"}, [])
    assert rows["Letter/block-0/t"].returns == {"out": "hi", "note": "draft:hi:hej"}


def test_a_step_is_repeated_when_its_body_reads_a_repeated_step() -> None:
    run = StoredRun(compile_program(EXAMPLES["E13"]), "desk.Letter")
    run.apply(Started({"text": "hej"}))
    run.apply(Finished(run.row("Letter.t").id, {"out": "hi"}))
    changes, rows = forked(run, "Letter.tag")
    assert rows["Letter/block-0/t"].state is State.EVENT_TRANSMIT
    assert [task.payload for task in changes.tasks] == [{"text": "hej"}]
