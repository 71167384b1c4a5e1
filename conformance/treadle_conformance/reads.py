"""Reads: one task, lists with filters and cursors, depths, counts, histories."""

from __future__ import annotations

import pytest

from treadle.kernel.store.queries import FinishedCounts, TaskFilter
from treadle.kernel.store.units import Finish, Redrive
from treadle.kernel.store.verify import check_history, verify
from treadle.model.names import QueueKey
from treadle.model.states import BlockReason
from treadle_conformance.task_steps import (
    MINUTE,
    OTHER,
    UNKNOWN_ID,
    WORK,
    cancel,
    claim_one,
    fail,
    get,
    in_order,
    new_task,
    put,
    put_and_claim,
    put_one,
    requeue,
    seen,
    settle,
    succeed,
    transitions_of,
)

RUN_ID = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"


# --- one task ---


async def test_a_task_is_found_live_and_finished(store):
    taken = await put_and_claim(store)
    assert await store.tasks.find(taken.id) == taken
    await settle(store, taken.claim, succeed('{"a":1}'))
    found = await get(store, taken.id)
    assert (found.id, found.result, found.finished) == (taken.id, '{"a":1}', True)


async def test_a_task_that_does_not_exist_is_not_found(store):
    assert await store.tasks.find(UNKNOWN_ID) is None
    assert await store.tasks.find_many([UNKNOWN_ID], ended=True) == []


async def test_the_list_of_a_unique_key_is_found_while_its_task_is_live(store):
    taken = await put_and_claim(store, unique_key="k")
    await put_one(store, unique_key="other")
    assert await store.tasks.find_unique(WORK.namespace, ["k", "none"]) == {"k": WORK.task_list}
    assert await store.tasks.find_unique("elsewhere", ["k"]) == {}
    await settle(store, taken.claim, succeed())
    assert await store.tasks.find_unique(WORK.namespace, ["k"]) == {}


async def test_only_finished_ones_are_found_finished(store):
    done, live = await put_and_claim(store), await put_one(store)
    await settle(store, done.claim, succeed())
    found = await store.tasks.find_many([live.id, done.id, UNKNOWN_ID], ended=True)
    assert found == [await get(store, done.id)]
    assert await store.tasks.find_many([], ended=True) == []
    both = await store.tasks.find_many([live.id, done.id, UNKNOWN_ID, live.id])
    assert sorted(both, key=lambda task: task.id) == sorted([await get(store, live.id), *found], key=lambda task: task.id)
    assert await store.tasks.find_many([]) == []


# --- lists ---


async def one_of_each(store):
    """A task in every state that is shown, by that state."""
    made = {}
    for state, settlement in {
        "completed": succeed(),
        "failed": fail(),
        "canceled": Finish("cancel", "canceled"),
        "ignored": Finish("ignore", "ignored"),
    }.items():
        taken = await put_and_claim(store)
        await settle(store, taken.claim, settlement)
        made[state] = taken.id
    for state, transition in (("awaiting_external", "hand_off"), ("awaiting_approval", "ask")):
        taken = await put_and_claim(store)
        await settle(store, taken.claim, requeue(taken, transition, state=state, delay=MINUTE))
        made[state] = taken.id
    held = await put_and_claim(store)
    await settle(store, held.claim, requeue(held, "pause", blocked_by=BlockReason.TASK_PAUSED))
    made["paused"] = held.id
    made["running"] = (await put_and_claim(store)).id
    made["pending"] = (await put_one(store)).id
    return made


async def test_live_and_finished_tasks_are_listed_newest_first(store):
    made = await one_of_each(store)
    listed = await store.tasks.list_matching(TaskFilter(), 100)
    assert in_order(listed) == sorted(made.values(), reverse=True)
    assert listed == [await get(store, task.id) for task in listed]


async def test_tasks_are_listed_by_the_states_that_people_see(store):
    made = await one_of_each(store)
    for state, task_id in made.items():
        listed = await store.tasks.list_matching(TaskFilter(states=(state,)), 100)
        assert in_order(listed) == [task_id], state
        assert [task.shown_state for task in listed] == [state]
    both = await store.tasks.list_matching(TaskFilter(states=("running", "completed")), 100)
    assert in_order(both) == sorted([made["running"], made["completed"]], reverse=True)


async def test_a_task_over_its_limit_is_listed_as_pending_and_not_as_paused(store):
    task = await get(store, (await put_one(store)).id)
    await settle(store, seen(task), requeue(task, "pause", blocked_by=BlockReason.OVER_LIMIT))
    assert in_order(await store.tasks.list_matching(TaskFilter(states=("pending",)), 10)) == [task.id]
    assert await store.tasks.list_matching(TaskFilter(states=("paused",)), 10) == []


async def test_a_task_that_is_polled_is_listed_as_awaiting_and_not_as_running(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, requeue(taken, "hand_off", state="awaiting_external"))
    polled = await claim_one(store)
    assert polled.shown_state == "awaiting_external"
    assert in_order(await store.tasks.list_matching(TaskFilter(states=("awaiting_external",)), 10)) == [taken.id]
    assert await store.tasks.list_matching(TaskFilter(states=("running",)), 10) == []


@pytest.mark.parametrize("finished", [False, True])
async def test_tasks_are_listed_by_each_part_of_their_queue_and_by_run(store, finished):
    queues = [WORK, *[WORK._replace(**{part: "else"}) for part in QueueKey._fields]]
    tasks = {queue: await put_one(store, queue) for queue in queues}
    in_run = await put_one(store, WORK._replace(name="third"), run_id=RUN_ID)
    if finished:
        for task in [*tasks.values(), in_run]:
            await settle(store, seen(await get(store, task.id)), cancel())
    for part in QueueKey._fields:
        listed = await store.tasks.list_matching(TaskFilter(**{part: "else"}), 100)
        assert in_order(listed) == [tasks[WORK._replace(**{part: "else"})].id]
    assert in_order(await store.tasks.list_matching(TaskFilter(run_id=RUN_ID), 100)) == [in_run.id]
    assert in_order(await store.tasks.list_matching(TaskFilter(**WORK._asdict()), 100)) == [tasks[WORK].id]
    assert await store.tasks.list_matching(TaskFilter(name="nobody"), 100) == []


async def test_pages_follow_one_another_without_gaps_or_repetitions(store):
    tasks = [await put_one(store) for _ in range(10)]
    for task in tasks[::2]:
        await settle(store, seen(await get(store, task.id)), cancel())
    pages, before_id = [], None
    while page := await store.tasks.list_matching(TaskFilter(before_id=before_id), 3):
        pages.append(page)
        before_id = page[-1].id
    assert [len(page) for page in pages] == [3, 3, 3, 1]
    assert in_order(task for page in pages for task in page) == in_order(reversed(tasks))


async def test_a_cursor_can_be_combined_with_filters(store):
    tasks = [await put_one(store, (WORK, OTHER)[number % 2]) for number in range(6)]
    listed = await store.tasks.list_matching(TaskFilter(name="work", states=("pending",), before_id=tasks[4].id), 10)
    assert in_order(listed) == [tasks[2].id, tasks[0].id]


# --- depths and counts ---


async def test_depths_count_ready_running_waiting_and_blocked_tasks(store, clock):
    await put(store, new_task(delay=MINUTE), new_task(delay=MINUTE))
    held = await put_and_claim(store)
    await settle(store, held.claim, requeue(held, "pause", blocked_by=BlockReason.TASK_PAUSED))
    await put_and_claim(store)
    oldest_at = clock.now()
    await put_one(store)
    await clock.advance(1_000)
    await put_one(store)
    (depth,) = await store.tasks.list_depths()
    assert depth.queue == WORK
    assert depth.queue_id == (await store.tasks.queue_ids([WORK]))[WORK]
    assert (depth.ready, depth.running, depth.waiting, depth.blocked, depth.paused) == (2, 1, 2, 1, 1)
    assert depth.oldest_due_at == oldest_at


async def test_tasks_that_wait_after_an_error_are_found_by_queue(store):
    failed = await put_and_claim(store)
    await settle(store, failed.claim, requeue(failed, "retry", delay=MINUTE, error='{"code":"boom"}'))
    await put_one(store, delay=MINUTE)
    queues = await store.tasks.queue_ids([WORK, OTHER])
    assert await store.tasks.list_failing([queues[WORK], queues[OTHER]], 10) == [failed.id]
    assert await store.tasks.list_failing([queues[OTHER]], 10) == []
    assert await store.tasks.list_failing([queues[WORK]], 0) == []


async def test_depths_leave_out_queues_without_live_tasks(store):
    done = await put_and_claim(store)
    await settle(store, done.claim, succeed())
    assert await store.tasks.list_depths() == []
    await put_one(store, OTHER)
    assert [depth.queue for depth in await store.tasks.list_depths()] == [OTHER]


async def test_a_queue_without_ready_tasks_has_no_oldest_due(store):
    await put_one(store, delay=MINUTE)
    (depth,) = await store.tasks.list_depths()
    assert (depth.ready, depth.oldest_due_at) == (0, None)


async def test_finished_tasks_are_counted_by_state(store):
    assert await store.tasks.count_finished() == FinishedCounts({})
    for settlement in (succeed(), succeed(), fail()):
        taken = await put_and_claim(store)
        await settle(store, taken.claim, settlement)
    assert await store.tasks.count_finished() == FinishedCounts({"completed": 2, "failed": 1})


# --- transitions and histories ---


async def a_life(store, clock):
    """A task that has been through a good deal, and ended."""
    taken = await put_and_claim(store)
    await clock.advance(MINUTE)
    await store.tasks.wake(10)
    taken = await claim_one(store)
    await settle(store, taken.claim, requeue(taken, "retry", failures=1, attempt=3))
    taken = await claim_one(store)
    await settle(store, taken.claim, fail())
    await settle(store, seen(await get(store, taken.id)), Redrive("requeue", "ann"))
    taken = await claim_one(store)
    await settle(store, taken.claim, succeed())
    return taken.id


async def test_transitions_are_listed_in_order_of_version_with_the_end_last(store, clock):
    task_id = await a_life(store, clock)
    transitions = await store.log.list_transitions(task_id)
    assert transitions_of(transitions) == ["expire", "retry", "fail", "requeue", "succeed"]
    assert [transition.version for transition in transitions] == [1, 2, 3, 4, 5]
    assert [transition.seq for transition in transitions] == sorted({transition.seq for transition in transitions})
    assert [transition.claim_version for transition in transitions if transition.transition != "requeue"] == [1, 2, 3, 4]


async def test_an_unknown_entity_has_no_transitions(store):
    assert await store.log.list_transitions(UNKNOWN_ID) == []


async def test_a_history_has_the_transitions_and_where_the_row_stands(store, clock):
    task_id = await a_life(store, clock)
    fresh = await put_one(store)
    ended, new = await store.log.list_histories(None, 10)
    assert (ended.entity, ended.entity_id, ended.state, ended.version) == ("task", task_id, "completed", 5)
    assert list(ended.transitions) == await store.log.list_transitions(task_id)
    assert (new.entity_id, new.state, new.version, new.transitions) == (fresh.id, "pending", 0, ())
    assert check_history(ended) == check_history(new) == []


async def test_histories_are_paged_in_order_of_id(store):
    tasks = [await put_one(store) for _ in range(7)]
    for task in tasks[1::2]:
        await settle(store, seen(await get(store, task.id)), cancel())
    seen_ids, after_id = [], None
    while page := await store.log.list_histories(after_id, 3):
        assert len(page) <= 3
        seen_ids += [history.entity_id for history in page]
        after_id = page[-1].entity_id
    assert seen_ids == in_order(tasks)


async def test_the_log_explains_the_rows(store, clock):
    await a_life(store, clock)
    await one_of_each(store)
    report = await verify(store, page=3)
    assert (report.checked, report.problems) == (10, ())
    assert report.holds


async def test_verify_finds_a_row_that_the_log_does_not_explain(database, store):
    task = await put_one(store)
    database.execute("update tasks set state = 'awaiting_external', version = 1")
    report = await verify(store)
    assert not report.holds
    assert all(task.id in problem for problem in report.problems)
