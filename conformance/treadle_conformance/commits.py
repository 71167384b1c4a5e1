"""Commits: units are all or nothing, guarded, and recognised when they are sent again."""

from __future__ import annotations

import pytest

from treadle.kernel.store.units import Finish, Keep, Redrive, Unit, Verdict
from treadle.model.states import BlockReason, TaskState
from treadle.model.tasks import Claim
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
    in_order,
    new_task,
    put_and_claim,
    put_one,
    requeue,
    seen,
    settle,
    succeed,
    transitions_of,
)

DONE, CLAIM_LOST = Verdict.DONE, Verdict.CLAIM_LOST


# --- units ---


async def test_a_commit_of_no_units_returns_no_answers(store):
    assert await store.commit([]) == []


async def test_answers_have_the_order_of_the_units(store):
    taken = await put_and_claim(store)
    lost = Claim(taken.id, 99, "owner-1")
    units = [Unit(tasks=(new_task(),)), Unit(lost, succeed()), Unit(taken.claim, succeed()), Unit(lost, requeue(taken))]
    assert [answer.verdict for answer in await store.commit(units)] == [DONE, CLAIM_LOST, DONE, CLAIM_LOST]


async def test_a_unit_is_atomic(store):
    taken = await put_and_claim(store)
    follower = new_task(OTHER)
    before = await everything(store)
    lost = Claim(taken.id, taken.claim_version, "someone else")
    assert await settle(store, lost, succeed(), follower) == CLAIM_LOST
    assert await everything(store) == before
    assert await settle(store, taken.claim, succeed(), follower) == DONE
    assert (await get(store, taken.id)).state == TaskState.COMPLETED
    assert (await get(store, follower.id)).state == TaskState.PENDING


async def test_units_are_independent_of_one_another(store):
    taken = [await put_and_claim(store) for _ in range(3)]
    followers = [new_task(OTHER) for _ in taken]
    guards = [taken[0].claim, Claim(taken[1].id, 7, "owner-1"), taken[2].claim]
    units = [Unit(guard, succeed(), (follower,)) for guard, follower in zip(guards, followers, strict=True)]
    assert [answer.verdict for answer in await store.commit(units)] == [DONE, CLAIM_LOST, DONE]
    assert [(await get(store, task.id)).finished for task in taken] == [True, False, True]
    assert in_order(await claim(store, OTHER)) == [followers[0].id, followers[2].id]


async def test_of_two_units_on_one_task_in_one_call_the_first_wins(store):
    taken = await put_and_claim(store)
    later = new_task(OTHER)
    answers = await store.commit([Unit(taken.claim, requeue(taken)), Unit(taken.claim, succeed('{"second":1}'), (later,))])
    assert [answer.verdict for answer in answers] == [DONE, CLAIM_LOST]
    assert not (await get(store, taken.id)).finished
    assert await store.tasks.find(later.id) is None
    assert transitions_of(await store.log.list_transitions(taken.id)) == ["wait"]


async def test_a_unit_that_raises_rolls_the_whole_call_back(store):
    good, bad = await put_and_claim(store), await put_and_claim(store)
    before = await everything(store)
    units = [
        Unit(tasks=(new_task(),)),
        Unit(good.claim, succeed(), (new_task(OTHER),)),
        Unit(bad.claim, Finish("succeed", "no such state")),
        Unit(tasks=(new_task(),)),
    ]
    with pytest.raises(Exception):  # noqa: B017 - what it raises is the store's own affair
        await store.commit(units)
    assert await everything(store) == before
    assert [answer.verdict for answer in await store.commit(units[:2])] == [DONE, DONE]


async def test_many_units_in_one_call_each_do_their_part(store):
    tasks = [new_task(payload=f'{{"n":{number}}}') for number in range(300)]
    await store.commit([Unit(tasks=(task,)) for task in tasks])
    taken = {task.id: task for task in await claim(store)}
    assert len(taken) == 300
    units = []
    for number, task in enumerate(tasks):
        claim_ = taken[task.id].claim
        settlement = (succeed(f'{{"n":{number}}}'), requeue(taken[task.id], delay=number), fail())[number % 3]
        units.append(Unit(claim_, settlement, (new_task(OTHER),) if number % 2 else ()))
    assert {answer.verdict for answer in await store.commit(units)} == {DONE}
    for number, task in enumerate(tasks):
        after = await get(store, task.id)
        assert after.state == ("completed", "pending", "failed")[number % 3]
        assert after.result == (f'{{"n":{number}}}' if number % 3 == 0 else None)
    assert len(await claim(store, OTHER)) == 150


# --- finishing ---


async def test_a_finished_task_leaves_the_queue_with_all_its_rows(store, clock):
    fields = {
        "payload": '{"a":"ü"}',
        "priority": 3,
        "unique_key": "k",
        "limit_key": "l",
        "policy": '{"retries":1}',
        "timeout_for": 1_000,
        "progress_for": 2_000,
        "deadline_for": 3_000,
        "run_id": "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77",
        "step_id": "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a78",
        "root_id": "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a79",
        "flow_id": "sha256:1",
        "scope": "s",
        "trace_id": "t",
    }
    taken = await put_and_claim(store, **fields)
    await clock.advance(250)
    assert await settle(store, taken.claim, succeed('{"b":2}')) == DONE
    after = await get(store, taken.id)
    for name in (*fields.keys() - {"deadline_for"}, "deadline_at", "created_at", "claimed_at", "claim_version", "attempt", "queue"):
        assert getattr(after, name) == getattr(taken, name), name
    assert (after.state, after.transition, after.from_state, after.result) == ("completed", "succeed", "pending", '{"b":2}')
    assert (after.version, after.owner_id, after.finished_at) == (1, "owner-1", clock.now())
    assert after.deadline_at == after.created_at + 3_000
    assert after.finished


async def test_a_failed_task_keeps_its_error_code_and_fingerprint(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, fail('{"code":"boom","message":"x"}'))
    after = await get(store, taken.id)
    assert (after.state, after.error, after.error_code, after.fingerprint) == (
        "failed",
        '{"code":"boom","message":"x"}',
        "boom",
        "f00d",
    )


async def test_the_end_of_a_task_is_the_last_of_its_transitions(store, clock):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, requeue(taken, "retry", attempt=2, failures=1, data='{"code":"x"}'))
    again = await claim_one(store, owner="owner-2")
    await settle(store, again.claim, succeed())
    first, last = await store.log.list_transitions(taken.id)
    assert (first.version, first.transition, first.from_state, first.to_state) == (1, "retry", "pending", "pending")
    assert (first.claim_version, first.data) == (1, '{"code":"x"}')
    assert (last.version, last.transition, last.from_state, last.to_state) == (2, "succeed", "pending", "completed")
    assert (last.claim_version, last.at, last.entity, last.entity_id) == (2, clock.now(), "task", taken.id)
    assert last.seq > first.seq


async def test_a_transition_names_its_actor_or_else_the_owner_of_the_claim(store):
    taken = await put_and_claim(store, owner="owner-7")
    await settle(store, taken.claim, requeue(taken))
    before = await get(store, taken.id)
    await settle(store, seen(before), requeue(before, "pause", blocked_by=8, actor="ann"))
    held = await get(store, taken.id)
    await settle(store, seen(held), cancel("bob"))
    assert [transition.actor for transition in await store.log.list_transitions(taken.id)] == ["owner-7", "ann", "bob"]
    assert (await get(store, taken.id)).actor == "bob"


async def test_a_settle_past_its_lease_succeeds_until_the_lease_is_expired(store, clock):
    taken = await put_and_claim(store)
    await clock.advance(10 * MINUTE)
    assert await settle(store, taken.claim, succeed()) == DONE


# --- requeueing and keeping ---


async def test_a_requeued_task_has_the_values_that_it_was_given_and_no_owner(store, clock):
    taken = await put_and_claim(store)
    await clock.advance(10)
    settlement = requeue(
        taken,
        "hand_off",
        state="awaiting_external",
        attempt=4,
        failures=2,
        takeovers=1,
        blocked_by=8,
        delay=7_000,
        checkpoint='{"at":1}',
        error='{"code":"e"}',
    )
    assert await settle(store, taken.claim, settlement) == DONE
    after = await get(store, taken.id)
    assert (after.state, after.attempt, after.failures, after.takeovers, after.blocked_by) == ("awaiting_external", 4, 2, 1, 8)
    assert (after.wake_at, after.checkpoint, after.error) == (clock.now() + 7_000, '{"at":1}', '{"code":"e"}')
    assert (after.owner_id, after.version, after.claim_version) == (None, 1, 1)


async def test_requeueing_replaces_all_bits_of_the_block_reasons_but_that_of_a_paused_run(store):
    task = await get(store, (await put_one(store, blocked_by=BlockReason.RUN_PAUSED | BlockReason.LIST_PAUSED)).id)
    await settle(store, seen(task), requeue(task, "pause", blocked_by=BlockReason.TASK_PAUSED))
    held = await get(store, task.id)
    assert held.blocked_by == BlockReason.RUN_PAUSED | BlockReason.TASK_PAUSED
    answer = await commit_one(store, seen(held), requeue(held, "resume", blocked_by=0))
    assert (answer.verdict, answer.queue_ids) == (DONE, ())
    assert (await get(store, task.id)).blocked_by == BlockReason.RUN_PAUSED
    assert await claim(store) == []


async def test_a_requeue_that_stays_changes_only_the_block_reasons_which_later_requeues_keep(store, clock):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, Keep('{"at":1}'))
    assert await settle(store, seen(taken), requeue(taken, "pause", blocked_by=8, actor="ann", stays=True)) == DONE
    after = await get(store, taken.id)
    assert (after.owner_id, after.wake_at, after.claim_version) == (taken.owner_id, taken.wake_at, taken.claim_version)
    assert (after.blocked_by, after.checkpoint, after.version) == (8, '{"at":1}', taken.version + 1)
    assert await settle(store, taken.claim, requeue(taken, "retry", failures=1)) == DONE
    held = await get(store, taken.id)
    assert (held.owner_id, held.blocked_by, held.failures) == (None, 8, 1)
    assert await claim(store) == []
    await settle(store, seen(held), requeue(held, "resume", blocked_by=0))
    assert [each.id for each in await claim(store)] == [taken.id]


async def test_requeueing_without_values_clears_the_checkpoint_and_the_error(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, requeue(taken, checkpoint="[1]", error='{"code":"e"}'))
    again = await claim_one(store)
    assert (again.checkpoint, again.error) == ("[1]", '{"code":"e"}')
    await settle(store, again.claim, requeue(again))
    after = await get(store, taken.id)
    assert (after.checkpoint, after.error) == (None, None)


async def test_a_task_requeued_without_a_wait_is_ready_immediately(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, requeue(taken))
    assert (await claim_one(store, owner="owner-2")).id == taken.id


async def test_keeping_changes_only_the_checkpoint(store, clock):
    taken = await put_and_claim(store)
    await clock.advance(5)
    assert await settle(store, taken.claim, Keep('{"half":1}')) == DONE
    taken.checkpoint = '{"half":1}'
    assert await get(store, taken.id) == taken
    assert await store.log.list_transitions(taken.id) == []
    assert await settle(store, taken.claim, Keep(None)) == DONE
    assert (await get(store, taken.id)).checkpoint is None


async def test_keeping_may_insert_new_tasks(store):
    taken = await put_and_claim(store)
    follower = new_task(OTHER)
    assert await settle(store, taken.claim, Keep("1"), follower) == DONE
    assert (await claim_one(store, OTHER)).id == follower.id


async def test_a_kept_claim_can_be_settled(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, Keep("1"))
    assert await settle(store, taken.claim, succeed()) == DONE
    assert (await get(store, taken.id)).checkpoint == "1"


# --- fencing ---


def late_settlements(task):
    return [succeed('{"late":1}'), fail(), requeue(task), Keep('"late"')]


async def test_a_late_settle_is_answered_claim_lost(store, clock):
    late = await put_and_claim(store)
    await clock.advance(MINUTE)
    await store.tasks.wake(100)
    await claim_one(store, owner="owner-2")
    before = await everything(store)
    for settlement in late_settlements(late):
        assert await settle(store, late.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before


async def test_a_late_settle_is_fenced_off_even_from_the_same_owner(store, clock):
    late = await put_and_claim(store, owner="same")
    await clock.advance(MINUTE)
    await store.tasks.wake(100)
    current = await claim_one(store, owner="same")
    for settlement in late_settlements(late):
        assert await settle(store, late.claim, settlement) == CLAIM_LOST
    assert await settle(store, current.claim, succeed('{"in":"time"}')) == DONE
    assert (await get(store, late.id)).result == '{"in":"time"}'


async def test_a_settle_needs_the_owner_the_version_and_the_task(store):
    taken = await put_and_claim(store)
    before = await everything(store)
    wrong = [
        Claim(taken.id, taken.claim_version, "someone"),
        Claim(taken.id, taken.claim_version, ""),
        Claim(taken.id, taken.claim_version + 1, "owner-1"),
        Claim(taken.id, taken.claim_version - 1, "owner-1"),
        Claim(UNKNOWN_ID, taken.claim_version, "owner-1"),
    ]
    for guard in wrong:
        for settlement in late_settlements(taken):
            assert await settle(store, guard, settlement) == CLAIM_LOST
    assert await everything(store) == before


async def test_a_late_settle_of_a_task_that_others_have_finished_is_lost(store, clock):
    late = await put_and_claim(store)
    await clock.advance(MINUTE)
    await store.tasks.wake(100)
    current = await claim_one(store, owner="owner-2")
    await settle(store, current.claim, succeed('{"in":"time"}'))
    before = await everything(store)
    for settlement in late_settlements(late):
        assert await settle(store, late.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before


async def test_a_settle_after_a_cancel_is_lost_and_not_mistaken_for_a_repetition(store):
    taken = await put_and_claim(store)
    assert await settle(store, seen(taken), cancel()) == DONE
    before = await everything(store)
    for settlement in late_settlements(taken):
        assert await settle(store, taken.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before
    assert (await get(store, taken.id)).state == TaskState.CANCELED


async def test_a_settle_after_an_operator_requeued_the_task_is_lost_and_not_mistaken_for_a_repetition(store):
    taken = await put_and_claim(store)
    assert await settle(store, seen(taken), requeue(taken, "pause", blocked_by=8, actor="ann")) == DONE
    before = await everything(store)
    for settlement in late_settlements(taken):
        assert await settle(store, taken.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before


async def test_the_same_transition_by_an_operator_is_not_a_repetition(store):
    paused = await put_and_claim(store)
    await settle(store, seen(paused), requeue(paused, "pause", blocked_by=8, actor="ann"))
    assert await settle(store, paused.claim, requeue(paused, "pause", blocked_by=8)) == CLAIM_LOST
    canceled = await put_and_claim(store)
    await settle(store, seen(canceled), cancel("ann"))
    assert await settle(store, canceled.claim, Finish("cancel", "canceled")) == CLAIM_LOST
    await settle(store, seen(await get(store, canceled.id)), Redrive("requeue", "ann"))
    assert await settle(store, canceled.claim, Finish("cancel", "canceled")) == CLAIM_LOST


async def test_a_settle_after_a_cancel_and_a_redrive_is_lost(store):
    taken = await put_and_claim(store)
    await settle(store, seen(taken), cancel())
    await settle(store, seen(await get(store, taken.id)), Redrive("requeue", "ann"))
    before = await everything(store)
    for settlement in late_settlements(taken):
        assert await settle(store, taken.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before
