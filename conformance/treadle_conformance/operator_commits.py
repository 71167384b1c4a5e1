"""Commits of operators: guards on the version that was seen, and revivals of finished tasks."""

from __future__ import annotations

import asyncio

import pytest

from treadle.kernel.store.units import Redrive, Seen, Unit, Verdict
from treadle.model.errors import InvalidInput
from treadle_conformance.task_steps import (
    MINUTE,
    OTHER,
    UNKNOWN_ID,
    cancel,
    claim,
    claim_one,
    commit_one,
    everything,
    fail,
    get,
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

DONE, CLAIM_LOST = Verdict.DONE, Verdict.CLAIM_LOST


# --- operators: Seen ---


async def test_a_seen_guard_matches_only_the_seen_versions(store):
    task = await get(store, (await put_one(store)).id)
    before = await everything(store)
    for guard in (Seen(task.id, 1, 0), Seen(task.id, 0, 1), Seen(UNKNOWN_ID, 0, 0)):
        assert await settle(store, guard, cancel(), new_task(OTHER)) == CLAIM_LOST
        assert await settle(store, guard, requeue(task, "pause", blocked_by=8), new_task(OTHER)) == CLAIM_LOST
        assert await settle(store, guard, Redrive("requeue", "ann"), new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before
    assert await settle(store, seen(task), cancel()) == DONE


async def test_a_claim_since_makes_a_seen_guard_fail(store):
    task = await get(store, (await put_one(store)).id)
    await claim_one(store)
    assert await settle(store, seen(task), cancel()) == CLAIM_LOST


async def test_a_transition_since_makes_a_seen_guard_fail(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, requeue(taken))
    assert await settle(store, seen(taken), cancel()) == CLAIM_LOST


async def test_a_live_task_cannot_be_redriven(store):
    task = await get(store, (await put_one(store)).id)
    before = await everything(store)
    assert await settle(store, seen(task), Redrive("requeue", "ann")) == CLAIM_LOST
    assert await everything(store) == before


async def test_a_finished_task_cannot_be_finished_or_requeued_by_an_operator(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, succeed())
    ended = await get(store, taken.id)
    before = await everything(store)
    assert await settle(store, seen(ended), cancel()) == CLAIM_LOST
    assert await settle(store, seen(ended), requeue(ended, "pause", state="pending")) == CLAIM_LOST
    assert await everything(store) == before


async def test_a_cancel_of_a_running_task_takes_it_from_its_holder(store, line):
    taken = await put_and_claim(store)
    assert await settle(store, seen(taken), cancel()) == DONE
    assert await line.held([taken.claim]) == set()


async def test_of_a_settle_and_a_cancel_exactly_one_wins(store):
    tasks = [await put_and_claim(store) for _ in range(20)]

    async def race(task):
        return await asyncio.gather(settle(store, task.claim, succeed(), new_task(OTHER)), settle(store, seen(task), cancel()))

    verdicts = await asyncio.gather(*[race(task) for task in tasks])
    for task, (settled, canceled) in zip(tasks, verdicts, strict=True):
        assert {settled, canceled} == {DONE, CLAIM_LOST}
        assert (await get(store, task.id)).state == ("completed" if settled == DONE else "canceled")
        assert len(await store.log.list_transitions(task.id)) == 1
    assert len(await claim(store, OTHER)) == sum(settled == DONE for settled, _ in verdicts)


async def test_of_a_settle_and_an_expiry_exactly_one_wins(store, clock):
    tasks = [await put_and_claim(store) for _ in range(20)]
    await clock.advance(MINUTE)
    *verdicts, woken = await asyncio.gather(*[settle(store, task.claim, succeed()) for task in tasks], store.tasks.wake(1000))
    for task, verdict in zip(tasks, verdicts, strict=True):
        assert transitions_of(await store.log.list_transitions(task.id)) == (["succeed"] if verdict == DONE else ["expire"])
    assert woken.expired <= 20 - verdicts.count(DONE)


async def test_concurrent_redrives_have_one_winner(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, fail())
    ended = await get(store, taken.id)
    verdicts = await asyncio.gather(*[settle(store, seen(ended), Redrive("requeue", f"op-{n}")) for n in range(4)])
    assert sorted(verdicts) == [CLAIM_LOST, CLAIM_LOST, CLAIM_LOST, DONE]
    assert transitions_of(await store.log.list_transitions(taken.id)) == ["fail", "requeue"]


async def test_a_commit_sent_twice_concurrently_is_applied_once(store):
    tasks = [await put_and_claim(store) for _ in range(10)]
    units = [Unit(task.claim, succeed(), (new_task(OTHER),)) for task in tasks]
    answers = await asyncio.gather(*[store.commit([unit]) for unit in units for _ in range(2)])
    assert {answer.verdict for (answer,) in answers} == {DONE}
    assert len(await claim(store, OTHER)) == 10
    for task in tasks:
        assert transitions_of(await store.log.list_transitions(task.id)) == ["succeed"]


async def test_commits_that_meet_in_opposite_orders_do_not_fail(store):
    for number in range(5):
        tasks = [await put_and_claim(store) for _ in range(6)]
        keys = [f"{number}-{key}" for key in range(6)]
        forth = [Unit(seen(task), cancel(), (new_task(OTHER, unique_key=key),)) for task, key in zip(tasks, keys, strict=True)]
        back = [Unit(task.claim, succeed(), (new_task(OTHER, unique_key=key),)) for task, key in zip(tasks, keys, strict=True)]
        answers = await asyncio.gather(store.commit(forth), store.commit(back[::-1]))
        for one, other in zip(answers[0], answers[1][::-1], strict=True):
            assert {one.verdict, other.verdict} == {DONE, CLAIM_LOST}
    assert len(await claim(store, OTHER)) == 30


async def test_new_keys_that_meet_in_opposite_orders_do_not_fail(store):
    for number in range(5):
        keys = [f"{number}-{key}" for key in range(10)]
        forth, back = ([new_task(unique_key=key) for key in order] for order in (keys, keys[::-1]))
        one, other = await asyncio.gather(put(store, *forth), put(store, *back))
        assert len(one.existing) + len(other.existing) == 10
    assert len(await claim(store)) == 50


# --- revival ---


async def test_a_redriven_task_is_ready_and_its_end_stays_in_its_history(store, clock):
    taken = await put_and_claim(store, payload='{"a":1}', priority=4, run_id="0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77")
    await settle(store, taken.claim, fail())
    ended = await get(store, taken.id)
    await clock.advance(5)
    answer = await commit_one(store, seen(ended), Redrive("requeue", "ann"))
    assert (answer.verdict, answer.queue_ids) == (DONE, (taken.queue_id,))
    redriven = await get(store, taken.id)
    assert not redriven.finished
    assert (redriven.state, redriven.version, redriven.blocked_by, redriven.wake_at, redriven.owner_id) == (
        "pending",
        2,
        0,
        None,
        None,
    )
    assert (redriven.payload, redriven.priority, redriven.run_id) == ('{"a":1}', 4, taken.run_id)
    assert (redriven.created_at, redriven.claim_version, redriven.result, redriven.error_code) == (taken.created_at, 1, None, None)
    end, requeue = await store.log.list_transitions(taken.id)
    assert (end.transition, end.version, end.to_state, end.at, end.actor) == ("fail", 1, "failed", ended.finished_at, "owner-1")
    assert (end.seq, end.claim_version) == (ended.seq, 1)
    assert (requeue.transition, requeue.version, requeue.from_state, requeue.to_state) == ("requeue", 2, "failed", "pending")
    assert (requeue.actor, requeue.at) == ("ann", clock.now())
    again = await claim_one(store)
    assert (again.id, again.claim_version) == (taken.id, 2)


async def test_the_end_of_a_redriven_task_keeps_its_error_in_the_log(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, fail('{"code":"boom","message":"why"}'))
    await settle(store, seen(await get(store, taken.id)), Redrive("requeue", "ann"))
    assert "why" in ((await store.log.list_transitions(taken.id))[0].data or "")


async def test_a_task_can_be_redriven_for_later_with_its_failures_counted_on(store, clock):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, requeue(taken, "retry", attempt=2, failures=1))
    again = await claim_one(store)
    await settle(store, again.claim, fail())
    ended = await get(store, taken.id)
    answer = await commit_one(store, seen(ended), Redrive("requeue", "ann", failures=ended.failures + 1, delay=2_000))
    assert (answer.verdict, answer.queue_ids) == (DONE, ())
    redriven = await get(store, taken.id)
    assert (redriven.attempt, redriven.failures, redriven.takeovers) == (3, 2, 0)
    assert (redriven.wake_at, redriven.owner_id, redriven.error) == (clock.now() + 2_000, None, None)
    assert await claim(store) == []
    await clock.advance(1_999)
    assert (await store.tasks.wake(10)).count == 0
    await clock.advance(1)
    assert (await store.tasks.wake(10)).count == 1
    assert (await claim_one(store)).id == taken.id


async def test_a_limited_task_that_is_redriven_for_later_takes_its_place_when_it_is_due(store, clock):
    taken = await put_and_claim(store, limit_key="k", limit=1)
    await settle(store, taken.claim, fail())
    assert await settle(store, seen(await get(store, taken.id)), Redrive("requeue", "ann", delay=1_000)) == DONE
    other = await put_and_claim(store, limit_key="k", limit=1)
    await clock.advance(1_000)
    await store.tasks.wake(10)
    assert await claim(store) == []
    await settle(store, other.claim, succeed())
    assert (await claim_one(store)).id == taken.id


async def test_a_redriven_task_resets_its_counters_except_attempts(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, requeue(taken, "retry", attempt=2, failures=1, takeovers=3))
    again = await claim_one(store)
    await settle(store, again.claim, fail())
    await settle(store, seen(await get(store, taken.id)), Redrive("requeue", "ann"))
    redriven = await get(store, taken.id)
    assert (redriven.failures, redriven.takeovers) == (0, 0)
    assert redriven.attempt == 3


async def test_a_redrive_may_change_the_payload(store):
    taken = await put_and_claim(store, payload='{"a":1}')
    await settle(store, taken.claim, fail())
    await settle(store, seen(await get(store, taken.id)), Redrive("requeue", "ann", payload='{"a":2}'))
    assert (await claim_one(store)).payload == '{"a":2}'


async def test_a_task_can_be_redriven_repeatedly(store):
    task = await put_one(store)
    for number in range(1, 4):
        taken = await claim_one(store)
        assert await settle(store, taken.claim, fail()) == DONE
        ended = await get(store, task.id)
        assert ended.version == 2 * number - 1
        assert await settle(store, seen(ended), Redrive("requeue", "ann")) == DONE
    assert transitions_of(await store.log.list_transitions(task.id)) == ["fail", "requeue"] * 3
    assert [transition.version for transition in await store.log.list_transitions(task.id)] == [1, 2, 3, 4, 5, 6]


async def test_a_redriven_task_has_its_unique_key_again(store):
    taken = await put_and_claim(store, unique_key="k")
    await settle(store, taken.claim, fail())
    await settle(store, seen(await get(store, taken.id)), Redrive("requeue", "ann"))
    assert (await put(store, new_task(unique_key="k"))).existing == {"k": taken.id}


async def test_a_redriven_task_loses_a_key_that_another_task_took(store):
    taken = await put_and_claim(store, unique_key="k")
    await settle(store, taken.claim, fail())
    successor = await put_one(store, unique_key="k")
    assert await settle(store, seen(await get(store, taken.id)), Redrive("requeue", "ann")) == DONE
    assert (await get(store, taken.id)).unique_key is None
    assert (await put(store, new_task(unique_key="k"))).existing == {"k": successor.id}


async def test_of_two_tasks_of_one_key_that_are_redriven_together_one_has_it(store):
    ended = []
    for _ in range(2):
        taken = await put_and_claim(store, unique_key="k")
        await settle(store, taken.claim, fail())
        ended.append(await get(store, taken.id))
    answers = await store.commit([Unit(seen(task), Redrive("requeue", "ann")) for task in ended])
    assert [answer.verdict for answer in answers] == [DONE, DONE]
    assert sorted(task.unique_key or "" for task in await claim(store)) == ["", "k"]


async def test_a_step_has_at_most_one_live_task(store):
    step_id = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a70"
    first = await put_and_claim(store, step_id=step_id)
    before = await everything(store)
    with pytest.raises(InvalidInput):
        await put(store, new_task(OTHER), new_task(step_id=step_id))
    assert await everything(store) == before

    await settle(store, first.claim, fail())
    await put_one(store, step_id=step_id)
    before = await everything(store)
    with pytest.raises(InvalidInput):
        await settle(store, seen(await get(store, first.id)), Redrive("requeue", "ann"))
    assert await everything(store) == before
