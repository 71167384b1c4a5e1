"""New runs in units: several in one unit, sent twice, and none of a unit that is refused."""

from __future__ import annotations

from treadle.kernel.store.records import PutRecord
from treadle.kernel.store.units import PutRun, RunTransition, Unit
from treadle.kernel.store.verify import verify
from treadle_conformance.record_steps import begin_function, new_record, new_schedule, put_record
from treadle_conformance.run_steps import begin, get_run, new_run, unit_of


def started(run):
    return PutRun(run), RunTransition(run.id, "start", "pending", "running")


async def test_a_unit_may_start_several_runs(store):
    parent, task = await begin_function(store)
    children = [new_run(parent_id=parent.id, parent_step_id=parent.id, root_id=parent.id) for _ in range(3)]
    (answer,) = await store.commit([Unit(task.claim, rows=tuple(row for run in children for row in started(run)))])
    assert answer.verdict == "done"
    assert await store.runs.list_children(parent.id) == sorted(run.id for run in children)
    assert [(await get_run(store, run.id)).state for run in children] == ["running"] * 3


async def test_a_unit_starts_no_run_when_the_key_of_one_is_taken(store):
    holder = await begin(store, idempotency_key="k")
    first, second = new_run(), new_run(idempotency_key="k")
    (answer,) = await store.commit([Unit(rows=(*started(first), *started(second)))])
    assert (answer.verdict, answer.existing) == ("done", {"k": holder.id})
    assert await store.runs.find(first.id) is None
    assert await store.runs.find(second.id) is None


async def test_a_unit_that_is_sent_twice_in_one_call_starts_its_run_once(store):
    run = new_run()
    unit = Unit(rows=started(run))
    assert [answer.verdict for answer in await store.commit([unit, unit])] == ["done", "done"]
    assert (await get_run(store, run.id)).transitions == 1


async def test_a_unit_deferred_by_a_preceding_unit_starts_no_run(store):
    parent = await begin(store)
    first, second = new_run(), new_run()
    units = [unit_of(parent, rows=started(first)), unit_of(parent, rows=started(second))]
    assert [answer.verdict for answer in await store.commit(units)] == ["done", "deferred"]
    assert (await get_run(store, first.id)).state == "running"
    assert await store.runs.find(second.id) is None


async def test_units_that_depend_on_a_refused_unit_are_judged_without_it(store):
    """The first is refused for its key or name; the second assumes its effects, the third the state before it."""
    holder, schedule = await begin(store, idempotency_key="k"), await put_record(store, new_schedule())
    for refused in (started(new_run(idempotency_key="k")), (PutRecord(new_schedule()),)):
        parent = await begin(store)
        after, instead = new_run(), new_run()
        units = [
            unit_of(parent, rows=refused),
            unit_of(parent, version=parent.version + 1, rows=(*started(after), PutRecord(new_record()))),
            unit_of(parent, rows=started(instead)),
        ]
        answers = await store.commit(units)
        assert [answer.verdict for answer in answers] == ["done", "deferred", "done"]
        assert set(answers[0].existing.values()) <= {holder.id, schedule.id}
        assert await store.runs.find(after.id) is None
        assert (await get_run(store, instead.id)).state == "running"
        assert (await get_run(store, parent.id)).version == parent.version + 1
    assert (await verify(store)).problems == ()
