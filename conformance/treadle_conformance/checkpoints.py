"""Claims that stay: units that write under a claim and leave the task as it is, any number of them in one call."""

from __future__ import annotations

import asyncio

import pytest

from treadle.kernel.store.units import DONE, BlockRun, Keep, PutSteps, RunGuard, Unit
from treadle.kernel.store.verify import verify
from treadle.model.tasks import Claim
from treadle_conformance.record_steps import begin_function, write
from treadle_conformance.run_steps import get_run, new_step, new_task
from treadle_conformance.task_steps import claim, get, put_and_claim, requeue, seen, settle, succeed


def checkpoint(task, *steps):
    return Unit(task.claim, rows=(PutSteps(steps[0].run_id, steps, len(steps)),))


async def documents(store, run):
    return {step.name: step.document for step in await store.runs.list_steps(run.id, None, 1000)}


async def test_a_checkpoint_stores_steps_and_leaves_the_task_and_the_run_alone(store, clock):
    run, task = await begin_function(store)
    await clock.advance(5)
    step = new_step(run, "pay", inbox=None)
    assert await store.commit([checkpoint(task, step)]) == [DONE]
    (stored,) = await store.runs.list_steps(run.id, None, 10)
    assert (stored.id, stored.document, stored.created_at) == (step.id, step.document, clock.now())
    assert await get(store, task.id) == task
    assert await get_run(store, run.id) == run


async def test_many_checkpoints_of_many_tasks_go_in_one_call(store):
    begun = [await begin_function(store) for _ in range(3)]
    units = [checkpoint(task, new_step(run, f"s{n}"), new_step(run, f"t{n}")) for n in range(50) for run, task in begun]
    assert await store.commit(units) == [DONE] * len(units)
    for run, task in begun:
        assert len(await store.runs.list_steps(run.id, None, 1000)) == 100
        assert await settle(store, task.claim, succeed()) == "done"


async def test_of_a_step_that_several_checkpoints_put_the_last_is_stored(store):
    run, task = await begin_function(store)
    units = [checkpoint(task, new_step(run, "s", document=f'{{"n":{n}}}')) for n in range(3)]
    assert await store.commit(units) == [DONE] * 3
    assert await documents(store, run) == {"s": '{"n":2}'}


async def test_a_checkpoint_of_a_lost_claim_is_not_stored(store):
    run, task = await begin_function(store)
    other = Claim(task.id, task.claim_version, "owner-2")
    older = Claim(task.id, task.claim_version - 1, "owner-1")
    units = [
        checkpoint(task, new_step(run, "s", document='{"first":1}')),
        Unit(other, rows=(PutSteps(run.id, (new_step(run, "s", document='{"stranger":1}'), new_step(run, "t")), 2),)),
        Unit(older, rows=(PutSteps(run.id, (new_step(run, "u"),), 1),)),
    ]
    answers = await store.commit(units)
    assert [answer.verdict for answer in answers] == ["done", "claim_lost", "claim_lost"]
    assert await documents(store, run) == {"s": '{"first":1}'}


@pytest.mark.parametrize("mixed", [False, True])
async def test_a_checkpoint_of_a_paused_run_is_stored_and_reports_the_pause(store, mixed):
    run, task = await begin_function(store)
    free, other = await begin_function(store)
    await write(store, BlockRun(run.id, blocked=True))
    units = [checkpoint(task, new_step(run, "s")), checkpoint(other, new_step(free, "s"))]
    if mixed:
        units.append(Unit(tasks=(new_task(),)))
    answers = await store.commit(units)
    assert [(answer.verdict, answer.run_paused) for answer in answers[:2]] == [("done", True), ("done", False)]
    assert answers[1] == DONE
    assert list(await documents(store, run)) == ["s"]


async def test_checkpoints_and_other_units_of_one_task_are_done_in_their_order(store):
    run, task = await begin_function(store)
    units = [
        checkpoint(task, new_step(run, "s1")),
        checkpoint(task, new_step(run, "s2")),
        Unit(task.claim, succeed()),
        checkpoint(task, new_step(run, "s3")),
    ]
    assert [answer.verdict for answer in await store.commit(units)] == ["done", "done", "done", "claim_lost"]
    assert set(await documents(store, run)) == {"s1", "s2"}


async def test_checkpoints_share_a_commit_with_other_units(store):
    run, task = await begin_function(store)
    other, own = await begin_function(store)
    child = new_task(run_id=run.id, root_id=run.id)
    units = [
        Unit(task.claim, requeue(task, delay=1000), run=RunGuard(run.id, run.version)),
        checkpoint(own, new_step(other, "s")),
        Unit(tasks=(child,)),
        checkpoint(task, new_step(run, "late")),
    ]
    assert [answer.verdict for answer in await store.commit(units)] == ["done", "done", "done", "claim_lost"]
    assert list(await documents(store, other)) == ["s"]
    assert await documents(store, run) == {}
    assert [each.id for each in await claim(store)] == [child.id]


async def test_a_unit_that_keeps_its_claim_may_insert_tasks(store):
    task = await put_and_claim(store)
    children = [new_task(), new_task()]
    answers = await store.commit([Unit(task.claim, tasks=(each,)) for each in children])
    assert [answer.verdict for answer in answers] == ["done", "done"]
    assert all(answer.queue_ids for answer in answers)
    assert {each.id for each in await claim(store)} == {each.id for each in children}
    assert await get(store, task.id) == task


async def test_a_unit_that_keeps_a_lost_claim_inserts_no_task(store):
    task = await put_and_claim(store)
    await settle(store, task.claim, succeed())
    (answer,) = await store.commit([Unit(task.claim, tasks=(new_task(),))])
    assert answer.verdict == "claim_lost"
    assert await claim(store) == []


async def test_a_unit_that_keeps_its_claim_may_advance_its_run(store):
    run, task = await begin_function(store)
    unit = Unit(task.claim, run=RunGuard(run.id, run.version), rows=(PutSteps(run.id, (new_step(run, "s"),), 1),))
    assert [answer.verdict for answer in await store.commit([unit, unit])] == ["done", "deferred"]
    found = await get_run(store, run.id)
    assert (found.version, found.steps) == (run.version + 1, 1)
    assert await get(store, task.id) == task


@pytest.mark.parametrize("rows", [False, True])
async def test_the_answer_to_a_unit_that_keeps_its_task_reports_a_paused_run(store, rows):
    run, task = await begin_function(store)
    more = (PutSteps(run.id, (new_step(run, "s"),), 1),) if rows else ()
    kept = Unit(task.claim, Keep('{"half":1}'), rows=more)
    assert await store.commit([kept]) == [DONE]
    await write(store, BlockRun(run.id, blocked=True))
    (answer,) = await store.commit([kept])
    assert (answer.verdict, answer.run_paused) == ("done", True)
    (answer,) = await store.commit([Unit(task.claim, tasks=(new_task(),))])
    assert (answer.verdict, answer.run_paused, len(answer.queue_ids)) == ("done", True, 1)
    await write(store, BlockRun(run.id, blocked=False))
    assert await store.commit([kept]) == [DONE]


async def test_a_keep_with_a_transition_leaves_it_in_the_log_once(store, clock):
    task = await put_and_claim(store)
    kept = Unit(task.claim, Keep('{"half":1}', "tool_call.unknown", '{"key":"a"}'))
    assert await store.commit([kept]) == [DONE]
    assert await store.commit([kept]) == [DONE]  # sent again
    (transition,) = await store.log.list_transitions(task.id)
    assert (transition.version, transition.transition, transition.from_state, transition.to_state, transition.data) == (
        1,
        "tool_call.unknown",
        "pending",
        "pending",
        '{"key":"a"}',
    )
    assert (transition.actor, transition.claim_version, transition.at) == ("owner-1", task.claim_version, clock.now())
    await store.commit([Unit(task.claim, Keep(None, "tool_call.unknown", '{"key":"b"}'))])
    found = await get(store, task.id)
    assert (found.version, found.checkpoint, found.owner_id) == (2, None, "owner-1")
    assert await settle(store, seen(task), succeed()) == "claim_lost"
    assert await settle(store, task.claim, succeed()) == "done"
    assert (await verify(store)).problems == ()


async def test_keeps_with_and_without_a_transition_go_together(store):
    tasks = [await put_and_claim(store) for _ in range(3)]
    lost = Claim(tasks[2].id, tasks[2].claim_version, "owner-2")
    units = [
        Unit(tasks[0].claim, Keep("1")),
        Unit(tasks[1].claim, Keep("2", "tool_call.unknown")),
        Unit(lost, Keep("3", "tool_call.unknown")),
    ]
    assert [answer.verdict for answer in await store.commit(units)] == ["done", "done", "claim_lost"]
    found = [await get(store, task.id) for task in tasks]
    assert [(task.checkpoint, task.version) for task in found] == [("1", 0), ("2", 1), (None, 0)]
    assert (await verify(store)).problems == ()


async def test_concurrent_checkpoints_do_not_deadlock(database, store):
    other = await database.open_store()
    begun = [await begin_function(store) for _ in range(6)]

    async def send(each, order):
        for n in range(10):
            units = [checkpoint(task, new_step(run, f"s{n}")) for run, task in begun[::order]]
            assert await each.commit(units) == [DONE] * 6

    await asyncio.gather(send(store, 1), send(other, -1), send(store, -1), send(other, 1))
    for run, _ in begun:
        assert len(await store.runs.list_steps(run.id, None, 100)) == 10
