"""New tasks in commits: ids and unique keys."""

from __future__ import annotations

import asyncio

from treadle.kernel.store.units import Finish, Keep, PutBlob, PutPayload, Redrive, ReleaseKey, Seen, Unit, Verdict
from treadle.model.states import BlockReason, TaskState
from treadle.model.tasks import NewTask
from treadle_conformance.task_steps import (
    OTHER,
    WORK,
    claim,
    claim_one,
    commit_one,
    get,
    in_order,
    new_task,
    put,
    put_and_claim,
    put_one,
    requeue,
    settle,
    succeed,
)

DONE, CLAIM_LOST = Verdict.DONE, Verdict.CLAIM_LOST


# --- new tasks ---


async def test_a_new_task_is_stored_as_given(store, clock):
    run_id, step_id, root_id = (f"0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a7{n}" for n in (1, 2, 3))
    task = await put_one(
        store,
        payload='{"text":"ÄÖ 漢字 \\" \\\\ 🙂"}',
        priority=-7,
        delay=5_000,
        unique_key="u",
        limit_key="l",
        policy='{"retries":3}',
        timeout_for=1,
        progress_for=2,
        deadline_for=60_000,
        run_id=run_id,
        step_id=step_id,
        flow_id="f",
        scope="s",
        root_id=root_id,
        trace_id="t",
    )
    found = await get(store, task.id)
    for name in set(NewTask.__struct_fields__) - {
        "delay",
        "deadline_for",
        "blocked_by",
        "limit",
        "limits",
        "idempotency_key",
        "idempotency_for",
        "preclaimed",
    }:
        assert getattr(found, name) == getattr(task, name), name
    assert (found.state, found.owner_id, found.claim_version, found.version) == ("pending", None, 0, 0)
    assert found.blocked_by == BlockReason.OVER_LIMIT  # it has a limit key, and cannot go on yet
    assert (found.attempt, found.failures, found.takeovers) == (1, 0, 0)
    assert found.created_at == clock.now()
    assert found.due_at == found.wake_at == clock.now() + 5_000
    assert found.deadline_at == clock.now() + 60_000


async def test_a_new_task_without_a_root_is_its_own_tree(store):
    task = await put_one(store)
    assert (await get(store, task.id)).root_id == task.id


async def test_a_large_payload_round_trips(store):
    payload = '{"text":"' + "x" * 500_000 + '"}'
    task = await put_one(store, payload=payload)
    assert (await claim_one(store)).payload == payload
    assert (await get(store, task.id)).payload == payload


async def test_the_answer_names_the_queues_in_which_a_task_was_made_ready(store):
    queue_ids = await store.tasks.queue_ids([WORK, OTHER])
    ready = await put(store, new_task(), new_task(), new_task(OTHER))
    assert sorted(ready.queue_ids) == sorted(queue_ids.values())
    assert (await put(store, new_task(delay=1))).queue_ids == ()
    taken = await claim_one(store)
    assert (await commit_one(store, taken.claim, Keep("1"))).queue_ids == ()
    assert (await commit_one(store, taken.claim, requeue(taken))).queue_ids == (queue_ids[WORK],)
    taken = await claim_one(store)
    assert (await commit_one(store, taken.claim, requeue(taken, delay=5))).queue_ids == ()
    taken = await claim_one(store)
    assert (await commit_one(store, taken.claim, requeue(taken, "pause", blocked_by=8))).queue_ids == ()
    taken = await claim_one(store, OTHER)
    assert (await commit_one(store, taken.claim, succeed())).queue_ids == ()
    assert (await commit_one(store, taken.claim, succeed())).verdict == DONE


# --- unique keys ---


async def test_a_live_unique_key_returns_the_existing_task(store):
    first = await put_one(store, unique_key="k")
    second = new_task(unique_key="k")
    answer = await put(store, second)
    assert (answer.verdict, answer.existing) == (DONE, {"k": first.id})
    assert await store.tasks.find(second.id) is None


async def test_a_new_unique_key_has_no_existing_task(store):
    assert (await put(store, new_task(unique_key="k"))).existing == {}


async def test_a_unique_key_is_live_while_its_task_runs_sleeps_or_is_blocked(store):
    first = await put_and_claim(store, unique_key="k")
    assert (await put(store, new_task(unique_key="k"))).existing == {"k": first.id}
    await settle(store, first.claim, requeue(first, blocked_by=8, delay=10))
    assert (await put(store, new_task(unique_key="k"))).existing == {"k": first.id}


async def test_a_unique_key_is_free_again_when_its_task_has_ended(store):
    first = await put_and_claim(store, unique_key="k")
    await settle(store, first.claim, succeed())
    second = new_task(unique_key="k")
    assert (await put(store, second)).existing == {}
    assert (await claim_one(store)).id == second.id


async def test_unique_keys_are_apart_in_different_namespaces(store):
    elsewhere = WORK._replace(namespace="elsewhere")
    await put_one(store, unique_key="k")
    assert (await put(store, new_task(elsewhere, unique_key="k"))).existing == {}
    assert len(await claim(store, elsewhere)) == 1


async def test_unique_keys_are_shared_by_all_queues_of_a_namespace(store):
    first = await put_one(store, unique_key="k")
    assert (await put(store, new_task(OTHER, unique_key="k"))).existing == {"k": first.id}


async def test_two_new_tasks_with_one_key_in_one_call_are_one_task(store):
    tasks = [new_task(unique_key="k") for _ in range(4)]
    first, second = await store.commit([Unit(tasks=tuple(tasks[:2])), Unit(tasks=tuple(tasks[2:]))])
    (live,) = await claim(store)
    assert first.existing == {"k": live.id}
    assert second.existing == {"k": live.id}


async def test_of_several_new_tasks_only_those_with_live_keys_are_left_out(store):
    first = await put_one(store, OTHER, unique_key="k")
    tasks = [new_task(), new_task(unique_key="k"), new_task(unique_key="free")]
    assert (await put(store, *tasks)).existing == {"k": first.id}
    assert in_order(await claim(store)) == [tasks[0].id, tasks[2].id]


async def test_a_settle_goes_through_when_the_key_of_its_follower_is_live(store):
    live = await put_one(store, OTHER, unique_key="k")
    taken = await put_and_claim(store)
    answer = await commit_one(store, taken.claim, succeed(), new_task(OTHER, unique_key="k"))
    assert (answer.verdict, answer.existing) == (DONE, {"k": live.id})
    assert (await get(store, taken.id)).finished


async def test_a_task_can_hand_its_key_to_its_successor(store):
    taken = await put_and_claim(store, unique_key="k")
    successor = new_task(unique_key="k")
    answer = await commit_one(store, taken.claim, succeed(), successor)
    assert (answer.verdict, answer.existing) == (DONE, {})
    assert (await claim_one(store)).id == successor.id


async def test_an_exclusive_unit_with_a_live_key_is_deferred_whole(store):
    live = await put_one(store, OTHER, unique_key="k")
    blob = PutBlob("b" * 64, '"large"', live.root_id)
    tasks = (new_task(), new_task(unique_key="k"), new_task(unique_key="free"))
    (answer,) = await store.commit([Unit(tasks=tasks, rows=(blob,), exclusive=True)])
    assert (answer.verdict, answer.existing) == (Verdict.DEFERRED, {"k": live.id})
    assert [await store.tasks.find(task.id) for task in tasks] == [None] * 3
    assert await store.runs.find_blobs([blob.digest]) == {}


async def test_an_exclusive_unit_that_is_sent_again_is_done(store):
    unit = Unit(tasks=(new_task(unique_key="k"),), exclusive=True)
    answers = await store.commit([unit]) + await store.commit([unit, unit])
    assert {(answer.verdict, tuple(answer.existing)) for answer in answers} == {(DONE, ())}


async def test_of_exclusive_units_with_one_key_the_first_is_stored(store):
    tasks = [new_task(unique_key="k") for _ in range(3)]
    answers = await store.commit([Unit(tasks=(task,), exclusive=True) for task in tasks])
    assert [answer.verdict for answer in answers] == [DONE, Verdict.DEFERRED, Verdict.DEFERRED]
    assert [answer.existing for answer in answers] == [{}, {"k": tasks[0].id}, {"k": tasks[0].id}]


async def test_a_released_key_goes_to_a_task_of_the_same_unit(store):
    taken = await put_and_claim(store, unique_key="k")
    successor, late = new_task(unique_key="k"), new_task(unique_key="k")
    units = [Unit(tasks=(task,), rows=(ReleaseKey(taken.id),), exclusive=True) for task in (successor, late)]
    answers = await store.commit(units)
    assert [answer.verdict for answer in answers] == [DONE, Verdict.DEFERRED]
    assert [(await get(store, task_id)).unique_key for task_id in (taken.id, successor.id)] == [None, "k"]
    assert (await commit_one(store, taken.claim, succeed())).verdict == DONE


async def test_the_payload_of_a_live_task_is_replaced(store):
    task = await get(store, (await put_one(store, payload='{"n":1}')).id)
    await store.commit([Unit(Seen.of(task), requeue(task, "reschedule"), rows=(PutPayload(task.id, '{"n":2}'),))])
    assert (await claim_one(store)).payload == '{"n":2}'


async def test_concurrent_callers_with_one_key_agree_on_one_task(store):
    tasks = [new_task(unique_key="k") for _ in range(8)]
    answers = await asyncio.gather(*[put(store, task) for task in tasks])
    (live,) = await claim(store)
    assert sorted(answer.existing.get("k", live.id) for answer in answers) == [live.id] * 8
    assert sum(not answer.existing for answer in answers) == 1


async def test_a_task_keeps_its_actor_and_its_baggage_to_its_end_and_when_it_is_redriven(store):
    task = await put_and_claim(store, created_by="ci", baggage='{"tenant":"acme"}')
    assert (task.baggage, (await get(store, task.id)).created_by) == ('{"tenant":"acme"}', "ci")
    assert await settle(store, task.claim, Finish("fail", TaskState.FAILED, error="{}", error_code="boom")) == DONE
    ended = await get(store, task.id)
    assert (ended.state, ended.created_by, ended.baggage) == ("failed", "ci", task.baggage)
    assert await settle(store, Seen.of(ended), Redrive("requeue", "ann")) == DONE
    redriven = await get(store, task.id)
    assert (redriven.created_by, redriven.baggage) == ("ci", task.baggage)
    assert (await get(store, (await put_one(store)).id)).created_by is None
