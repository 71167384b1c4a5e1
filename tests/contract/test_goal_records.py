"""Writes that the database refuses in the goal pipeline: transitions outside of the table, and changes of write-once fields."""

from __future__ import annotations

import pytest

from treadle.kernel.store.records import ChangeRecord
from treadle.model.states import GOAL_MACHINES, MACHINES, StateMachine
from treadle_conformance.record_steps import get_record, new_record, put_record, write

WRITTEN_ONCE = [machine for machine in GOAL_MACHINES if not machine.transitions]
MOVING = [machine for machine in GOAL_MACHINES if machine.transitions]

reachable = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)


def test_four_artifacts_are_written_once() -> None:
    assert {machine.entity for machine in WRITTEN_ONCE} == {"context_snapshot", "output_bundle", "run_record", "pause_state"}


@pytest.mark.parametrize("machine", WRITTEN_ONCE, ids=lambda machine: machine.entity)
async def test_a_write_once_record_cannot_be_changed(store, machine: StateMachine) -> None:
    record = await put_record(store, new_record(entity=machine.entity, state=machine.initial))
    with pytest.raises(Exception, match="written once"):
        await write(store, ChangeRecord(record.id, 0, '{"other":1}'))
    assert await get_record(store, record.id) == record


@reachable
@pytest.mark.parametrize("machine", MOVING, ids=lambda machine: machine.entity)
async def test_the_database_refuses_every_transition_that_is_not_in_the_table(database, store, machine: StateMachine) -> None:
    legal = {(source, target) for (source, _), target in machine.transitions.items()}
    for source in machine.states:
        for target in machine.states:
            record = await put_record(store, new_record(entity=machine.entity, state=source))
            statement = f"update records set state = '{target}' where id = '{record.id}'"
            if source == target or (source, target) in legal:
                database.execute(statement)
                assert (await get_record(store, record.id)).state == target
            else:
                with pytest.raises(Exception, match="cannot"):
                    database.execute(statement)
                assert (await get_record(store, record.id)).state == source


def test_the_states_of_the_pipeline_are_those_of_its_words() -> None:
    assert set(MACHINES["objective"].states) == {"NEW", "TODO", "IN_PROGRESS", "BLOCKED", "DONE"}
    assert MACHINES["workorder"].transitions == {("CREATED", "execute"): "EXECUTED"}
    assert MACHINES["readiness_event"].transitions == {("unprocessed", "process"): "processed"}
