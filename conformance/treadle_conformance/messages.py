"""Messages: delivered once to unfinished runs, in order of arrival; they wake a function that awaits no more of them."""

from __future__ import annotations

import asyncio

from treadle.kernel.store.records import Await, PutMessage, TakeMessages
from treadle.kernel.store.units import BlockRun, CancelRunTasks, PutSteps, RunGuard, RunTransition, Unit
from treadle.kernel.store.verify import verify
from treadle_conformance.record_steps import asleep, begin_function, new_message, tell, wait_for_messages, write
from treadle_conformance.run_steps import begin, get_run, new_step, step_task, unit_of
from treadle_conformance.task_steps import MINUTE, UNKNOWN_ID, WORK, claim, get, new_task, succeed


async def queue_of_work(store):
    return (await store.tasks.queue_ids([WORK]))[WORK]


async def test_messages_are_listed_unchanged_in_the_order_of_arrival(store, clock):
    run = await begin(store, "W/block-0/one")
    (step,) = await store.runs.list_steps(run.id, None, 1)
    first, second = new_message(run, step_id=step.id), new_message(run, name="signal", document='{"ü":2}')
    await tell(store, second)
    await clock.advance(3)
    await tell(store, first)
    found = await store.records.list_messages(run.id, 10)
    assert [(m.id, m.step_id, m.name, m.document) for m in found] == [
        (second.id, None, "signal", '{"ü":2}'),
        (first.id, step.id, None, '{"told":1}'),
    ]
    assert [message.at for message in found] == [clock.now() - 3, clock.now()]
    assert 0 < found[0].seq < found[1].seq
    assert await store.records.list_messages(run.id, 1) == found[:1]
    assert await store.records.list_messages(run.id, 10, found[0].seq) == found[1:]
    assert await store.records.list_messages(UNKNOWN_ID, 10) == []


async def test_each_message_raises_the_version_and_is_stored_once(store):
    run = await begin(store)
    message = new_message(run)
    await tell(store, message, new_message(run))
    assert (await get_run(store, run.id)).version == run.version + 2
    assert (await tell(store, message)).verdict == "done"
    assert (await get_run(store, run.id)).version == run.version + 2
    assert len(await store.records.list_messages(run.id, 10)) == 2


async def test_a_message_twice_in_one_unit_is_stored_once(store):
    run = await begin(store)
    message = new_message(run)
    await tell(store, message, message)
    assert (await get_run(store, run.id)).version == run.version + 1
    assert len(await store.records.list_messages(run.id, 10)) == 1


async def test_a_message_to_a_finished_or_unknown_run_is_dropped(store):
    run = await begin(store)
    await write(store, RunTransition(run.id, "complete", "running", "completed"))
    before = await get_run(store, run.id)
    answer = await tell(store, new_message(run), new_message(run, run_id=UNKNOWN_ID))
    assert answer.verdict == "done"
    assert await store.records.list_messages(run.id, 10) == await store.records.list_messages(UNKNOWN_ID, 10) == []
    assert await get_run(store, run.id) == before


async def test_a_run_that_ends_in_the_same_call_receives_no_message(store):
    run = await begin(store)
    units = [Unit(rows=(PutMessage(new_message(run)),)), Unit(rows=(RunTransition(run.id, "complete", "running", "completed"),))]
    assert [answer.verdict for answer in await store.commit(units)] == ["done", "done"]
    assert await store.records.list_messages(run.id, 10) == []


async def test_a_guard_for_a_live_run_defers_the_unit_after_the_end(store):
    ends = RunTransition((run := await begin(store)).id, "complete", "running", "completed")
    signal = Unit(run=RunGuard(run.id, None, live=True), rows=(PutMessage(new_message(run)),))
    assert [answer.verdict for answer in await store.commit([signal, Unit(rows=(ends,)), signal])] == ["done", "done", "deferred"]
    assert (await store.commit([signal]))[0].verdict == "deferred"
    assert (await store.commit([Unit(run=RunGuard(run.id, None))]))[0].verdict == "done"


async def test_a_unit_that_did_not_see_the_message_is_deferred(store):
    run, task = await begin_function(store)
    await tell(store, new_message(run))
    unit = Unit(task.claim, asleep(task), run=RunGuard(run.id, run.version), rows=(Await(run.id, 1),))
    (answer,) = await store.commit([unit])
    assert answer.verdict == "deferred"
    assert (await get(store, task.id)).owner_id == "owner-1"
    assert (await get_run(store, run.id)).awaiting == 0


async def test_a_function_is_woken_by_the_last_awaited_message(store, clock):
    run, task = await begin_function(store)
    run = await wait_for_messages(store, run, task, 3)
    assert run.awaiting == 3
    assert (await tell(store, new_message(run), new_message(run))).queue_ids == ()
    assert (await get_run(store, run.id)).awaiting == 1
    assert await claim(store) == []
    assert (await tell(store, new_message(run))).queue_ids == (await queue_of_work(store),)
    assert (await get_run(store, run.id)).awaiting == 0
    woken = await get(store, task.id)
    assert (woken.wake_at, woken.due_at) == (None, task.due_at)
    assert [each.id for each in await claim(store)] == [task.id]
    assert (await verify(store)).problems == ()


async def test_a_function_without_awaited_messages_is_woken_by_the_first(store):
    run, task = await begin_function(store)
    run = await wait_for_messages(store, run, task, 0)
    assert (await tell(store, new_message(run))).queue_ids == (await queue_of_work(store),)
    assert (await get_run(store, run.id)).awaiting == 0
    assert [each.id for each in await claim(store)] == [task.id]


async def test_surplus_messages_do_no_harm(store):
    run, task = await begin_function(store)
    run = await wait_for_messages(store, run, task, 2)
    await tell(store, *(new_message(run) for _ in range(5)))
    assert (await get_run(store, run.id)).awaiting == 0
    assert len(await claim(store)) == 1


async def test_the_awaited_count_is_stored_with_the_new_steps(store):
    run, task = await begin_function(store)
    unit = Unit(task.claim, asleep(task), run=RunGuard(run.id, run.version), rows=(Await(run.id, 4, added=3),))
    await store.commit([unit])
    found = await get_run(store, run.id)
    assert (found.awaiting, found.steps, found.version) == (4, run.steps + 3, run.version + 1)


async def test_a_message_and_the_wait_for_it_in_one_call_leave_the_function_ready(store):
    for order in (1, -1):
        run, task = await begin_function(store)
        waits = Unit(task.claim, asleep(task), run=RunGuard(run.id, run.version), rows=(Await(run.id, 1),))
        units = [waits, Unit(rows=(PutMessage(new_message(run)),))][::order]
        assert [answer.verdict for answer in await store.commit(units)] == ["done", "done"]
        found = await get_run(store, run.id)
        assert (found.version, found.awaiting) == (run.version + 2, 0)
        assert [each.id for each in await claim(store)] == [task.id]


async def test_only_the_runs_own_sleeping_task_is_woken(store, clock):
    run, task = await begin_function(store)
    child = new_task(run_id=run.id, step_id=UNKNOWN_ID, root_id=run.id, delay=MINUTE)
    await store.commit([Unit(tasks=(child,))])
    assert (await tell(store, new_message(run))).queue_ids == ()  # its task has an owner
    assert (await get(store, task.id)).owner_id == "owner-1"
    run = await wait_for_messages(store, await get_run(store, run.id), task, 1)
    await tell(store, new_message(run))
    assert (await get(store, child.id)).wake_at is not None
    assert [each.id for each in await claim(store)] == [task.id]


async def test_a_task_that_awaits_a_person_is_not_woken(store):
    run, task = await begin_function(store)
    run = await wait_for_messages(store, run, task, 1, transition="ask", state="awaiting_approval")
    assert (await tell(store, new_message(run))).queue_ids == ()
    assert (await get(store, task.id)).wake_at is not None


async def test_a_function_of_a_paused_run_wakes_on_resume(store):
    run, task = await begin_function(store)
    run = await wait_for_messages(store, run, task, 1)
    await write(store, BlockRun(run.id, blocked=True))
    assert (await tell(store, new_message(run))).queue_ids == ()
    assert (await get(store, task.id)).wake_at is None
    assert await claim(store) == []
    assert (await write(store, BlockRun(run.id, blocked=False))).queue_ids == (await queue_of_work(store),)
    assert [each.id for each in await claim(store)] == [task.id]


async def test_a_function_under_a_limit_is_admitted_when_it_is_woken(store):
    run = await begin(store)
    task, rival = new_task(run_id=run.id, root_id=run.id, limit_key="k", limit=1), new_task(limit_key="k")
    await store.commit([Unit(tasks=(task,))])
    (taken,) = await claim(store)
    run = await wait_for_messages(store, run, taken, 1)
    await store.commit([Unit(tasks=(rival,))])
    assert (await tell(store, new_message(run))).queue_ids == ()
    (other,) = await claim(store)
    assert other.id == rival.id
    await store.commit([Unit(other.claim, succeed())])
    assert [each.id for each in await claim(store)] == [task.id]


async def test_a_message_is_stored_with_the_settlement_that_sends_it(store):
    run, task = await begin_function(store)
    run = await wait_for_messages(store, run, task, 2)
    steps = [(await begin(store, "W/block-0/one"))]
    (step,) = await store.runs.list_steps(steps[0].id, None, 1)
    await store.commit([Unit(tasks=(step_task(step),))])
    (child,) = await claim(store)
    message = PutMessage(new_message(run, id=child.id, document='{"done":1}'))
    unit = Unit(child.claim, succeed(), rows=(message,))
    lost = Unit(child.claim, succeed(), rows=(PutMessage(new_message(run)),))
    answers = await store.commit([unit, lost])
    assert [answer.verdict for answer in answers] == ["done", "claim_lost"]
    assert [answer.verdict for answer in await store.commit([unit])] == ["done"]
    assert [each.id for each in await store.records.list_messages(run.id, 10)] == [child.id]
    assert (await get_run(store, run.id)).awaiting == 1


async def test_many_units_of_a_call_deliver_to_many_runs(store):
    begun = [await begin_function(store) for _ in range(3)]
    runs = [await wait_for_messages(store, run, task, count) for count, (run, task) in enumerate(begun, start=1)]
    units = [Unit(rows=tuple(PutMessage(new_message(run)) for run in runs)) for _ in range(2)]
    answers = await store.commit(units)
    assert {answer.queue_ids for answer in answers} == {(await queue_of_work(store),)}
    assert [(await get_run(store, run.id)).awaiting for run in runs] == [0, 0, 1]
    assert {task.run_id for task in await claim(store)} == {run.id for run in runs[:2]}


async def test_taking_messages_removes_only_those(store):
    run, other = await begin(store), await begin(store)
    first, second, third = new_message(run), new_message(run), new_message(other)
    await tell(store, first, second, third)
    run = await get_run(store, run.id)
    late = unit_of(run, version=run.version - 1, rows=(TakeMessages(run.id, (first.id, second.id)),))
    good = unit_of(run, rows=(TakeMessages(run.id, (first.id, third.id)),))
    assert [answer.verdict for answer in await store.commit([late, good])] == ["deferred", "done"]
    assert [each.id for each in await store.records.list_messages(run.id, 10)] == [second.id]
    assert [each.id for each in await store.records.list_messages(other.id, 10)] == [third.id]


async def test_steps_are_stored_and_messages_taken_together(store):
    run, task = await begin_function(store)
    await tell(store, message := new_message(run))
    run = await get_run(store, run.id)
    step = new_step(run, "pay")
    rows = (TakeMessages(run.id, (message.id,)), PutSteps(run.id, (step,), 1), Await(run.id, 0))
    unit = Unit(task.claim, succeed(), run=RunGuard(run.id, run.version), rows=rows)
    assert [(await store.commit([unit]))[0].verdict for _ in range(2)] == ["done", "done"]
    assert await store.records.list_messages(run.id, 10) == []
    assert [each.id for each in await store.runs.list_steps(run.id, None, 10)] == [step.id]
    assert (await get_run(store, run.id)).steps == 1


async def test_concurrent_messages_are_counted_once_each(database, store):
    other = await database.open_store()
    run, task = await begin_function(store)
    run = await wait_for_messages(store, run, task, 20)
    messages = [new_message(run) for _ in range(20)]
    sent = [*zip([store, other] * 10, messages, strict=True), *zip([other, store] * 10, messages, strict=True)]
    answers = await asyncio.gather(*(tell(each, message) for each, message in sent))
    found = await get_run(store, run.id)
    assert (found.version, found.awaiting) == (run.version + 20, 0)
    # the message that woke the task reports its queue; later ones may have held the ready task, and then report it too
    assert {queue_id for answer in answers for queue_id in answer.queue_ids} == {task.queue_id}
    listed = await store.records.list_messages(run.id, 100)
    assert {each.id for each in listed} == {each.id for each in messages}
    assert len(await claim(store)) == 1


async def test_a_waiter_either_sees_a_concurrent_message_or_is_woken(database, store):
    other = await database.open_store()
    for _ in range(10):
        run, task = await begin_function(store)
        waits = Unit(task.claim, asleep(task), run=RunGuard(run.id, run.version), rows=(Await(run.id, 1),))
        answers, told = await asyncio.gather(store.commit([waits]), tell(other, new_message(run)))
        if answers[0].verdict == "done":
            assert told.queue_ids
            (task,) = await claim(store)
        else:
            assert answers[0].verdict == "deferred"
        await store.commit([Unit(task.claim, succeed())])


async def test_children_are_the_unfinished_runs_that_steps_have_started(store):
    run = await begin(store, "W/block-0/one")
    (step,) = await store.runs.list_steps(run.id, None, 1)
    child = await begin(store, parent_id=run.id, parent_step_id=step.id, root_id=run.id)
    ended = await begin(store, parent_id=run.id, parent_step_id=step.id, root_id=run.id)
    await begin(store, parent_id=run.id)
    await write(store, RunTransition(ended.id, "complete", "running", "completed"))
    assert await store.runs.list_children(run.id) == [child.id]
    assert await store.runs.list_children(child.id) == []
    assert ((await get_run(store, child.id)).parent_step_id, child.awaiting) == (step.id, 0)
    below = await begin(store, parent_id=ended.id, parent_step_id=step.id, root_id=run.id)
    deeper = await begin(store, parent_id=below.id, parent_step_id=step.id, root_id=run.id)
    assert await store.runs.list_children(run.id) == sorted([child.id, below.id])  # through the one that has ended
    assert await store.runs.list_children(below.id) == [deeper.id]


async def test_the_leases_of_dead_servers_expire_immediately(store, clock):
    for _ in range(3):
        await store.commit([Unit(tasks=(new_task(),))])
    (first,), (second,), (third,) = [await claim(store, owner=owner, limit=1) for owner in ("dead", "gone", "alive")]
    await clock.advance(10)
    assert await store.tasks.expire_leases_of(["dead", "gone", "nobody"]) == 2
    assert await store.tasks.expire_leases_of([]) == 0
    woken = await store.tasks.wake(10)
    assert (woken.count, woken.expired) == (2, 2)
    assert {task.id for task in await claim(store)} == {first.id, second.id}
    assert (await get(store, third.id)).owner_id == "alive"


async def test_runs_that_message_each_other_do_not_deadlock(database, store):
    """Each settles its own task and tells the other's run: locking tasks in no particular order would deadlock."""
    other = await database.open_store()
    for _ in range(10):
        (one, own), (two, its) = await begin_function(store), await begin_function(store)
        first = Unit(own.claim, asleep(own), rows=(PutMessage(new_message(two)),))
        second = Unit(its.claim, asleep(its), rows=(PutMessage(new_message(one)),))
        answers = await asyncio.gather(store.commit([first]), other.commit([second]))
        assert [answer.verdict for (answer,) in answers] == ["done", "done"]
        for task in await claim(store):
            await store.commit([Unit(task.claim, succeed())])
        await store.commit([Unit(rows=(CancelRunTasks(run.id, "ann", "{}"),)) for run in (one, two)])
