"""Commits: units are all or nothing, guarded, and recognised when they are sent again."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from treadle.kernel.store.units import Finish, Keep, Revive, Seen, Unit, Verdict
from treadle.model.errors import InvalidInput
from treadle.model.states import Hold, TaskState
from treadle.model.tasks import Claim, NewTask
from treadle.testing.contract.task_steps import (
    MINUTE,
    OTHER,
    UNKNOWN_ID,
    WORK,
    cancel,
    claim,
    claim_one,
    commit_one,
    everything,
    fail,
    get,
    in_order,
    moves_of,
    new_task,
    park,
    put,
    put_and_claim,
    put_one,
    seen,
    settle,
    succeed,
)

DONE, CLAIM_LOST = Verdict.DONE, Verdict.CLAIM_LOST


# --- units ---


async def test_no_units_have_no_answers(store):
    assert await store.commit([]) == []


async def test_answers_come_in_the_order_of_the_units(store):
    taken = await put_and_claim(store)
    lost = Claim(taken.id, 99, "owner-1")
    units = [Unit(tasks=(new_task(),)), Unit(lost, succeed()), Unit(taken.claim, succeed()), Unit(lost, park(taken))]
    assert [answer.verdict for answer in await store.commit(units)] == [DONE, CLAIM_LOST, DONE, CLAIM_LOST]


async def test_a_unit_is_all_or_nothing(store):
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
    answers = await store.commit([Unit(taken.claim, park(taken)), Unit(taken.claim, succeed('{"second":1}'), (later,))])
    assert [answer.verdict for answer in answers] == [DONE, CLAIM_LOST]
    assert not (await get(store, taken.id)).finished
    assert await store.find_task(later.id) is None
    assert moves_of(await store.list_moves(taken.id)) == ["wait"]


async def test_if_a_unit_raises_nothing_of_the_call_is_done(store):
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
        settlement = (succeed(f'{{"n":{number}}}'), park(taken[task.id], delay=number), fail())[number % 3]
        units.append(Unit(claim_, settlement, (new_task(OTHER),) if number % 2 else ()))
    assert {answer.verdict for answer in await store.commit(units)} == {DONE}
    for number, task in enumerate(tasks):
        after = await get(store, task.id)
        assert after.state == ("completed", "pending", "failed")[number % 3]
        assert after.result == (f'{{"n":{number}}}' if number % 3 == 0 else None)
    assert len(await claim(store, OTHER)) == 150


# --- finishing ---


async def test_a_finished_task_leaves_the_queue_with_all_that_it_had(store, clock):
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
    for name in (*fields.keys() - {"deadline_for"}, "deadline_at", "created_at", "claimed_at", "claim_version", "attempt", "lane"):
        assert getattr(after, name) == getattr(taken, name), name
    assert (after.state, after.move, after.from_state, after.result) == ("completed", "succeed", "pending", '{"b":2}')
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


async def test_the_end_of_a_task_is_the_last_of_its_moves(store, clock):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, park(taken, "retry", attempt=2, failures=1, data='{"code":"x"}'))
    again = await claim_one(store, owner="owner-2")
    await settle(store, again.claim, succeed())
    first, last = await store.list_moves(taken.id)
    assert (first.version, first.move, first.from_state, first.to_state) == (1, "retry", "pending", "pending")
    assert (first.claim_version, first.data) == (1, '{"code":"x"}')
    assert (last.version, last.move, last.from_state, last.to_state) == (2, "succeed", "pending", "completed")
    assert (last.claim_version, last.at, last.entity, last.entity_id) == (2, clock.now(), "task", taken.id)
    assert last.seq > first.seq


async def test_a_move_names_its_actor_or_else_the_owner_of_the_claim(store):
    taken = await put_and_claim(store, owner="owner-7")
    await settle(store, taken.claim, park(taken))
    before = await get(store, taken.id)
    await settle(store, seen(before), park(before, "pause", hold=8, actor="ann"))
    held = await get(store, taken.id)
    await settle(store, seen(held), cancel("bob"))
    assert [move.actor for move in await store.list_moves(taken.id)] == ["owner-7", "ann", "bob"]
    assert (await get(store, taken.id)).actor == "bob"


async def test_a_settle_past_the_end_of_its_lease_lands_while_nobody_has_expired_it(store, clock):
    taken = await put_and_claim(store)
    await clock.advance(10 * MINUTE)
    assert await settle(store, taken.claim, succeed()) == DONE


# --- parking and keeping ---


async def test_a_parked_task_has_the_values_that_it_was_given_and_no_owner(store, clock):
    taken = await put_and_claim(store)
    await clock.advance(10)
    settlement = park(
        taken,
        "hand_off",
        state="awaiting_external",
        attempt=4,
        failures=2,
        takeovers=1,
        hold=8,
        delay=7_000,
        checkpoint='{"at":1}',
        error='{"code":"e"}',
    )
    assert await settle(store, taken.claim, settlement) == DONE
    after = await get(store, taken.id)
    assert (after.state, after.attempt, after.failures, after.takeovers, after.hold) == ("awaiting_external", 4, 2, 1, 8)
    assert (after.wake_at, after.checkpoint, after.error) == (clock.now() + 7_000, '{"at":1}', '{"code":"e"}')
    assert (after.owner_id, after.version, after.claim_version) == (None, 1, 1)


async def test_parking_replaces_all_bits_of_the_hold_but_that_of_a_paused_run(store):
    task = await get(store, (await put_one(store, hold=Hold.RUN_PAUSED | Hold.LIST_PAUSED)).id)
    await settle(store, seen(task), park(task, "pause", hold=Hold.TASK_PAUSED))
    held = await get(store, task.id)
    assert held.hold == Hold.RUN_PAUSED | Hold.TASK_PAUSED
    answer = await commit_one(store, seen(held), park(held, "resume", hold=0))
    assert (answer.verdict, answer.lane_ids) == (DONE, ())
    assert (await get(store, task.id)).hold == Hold.RUN_PAUSED
    assert await claim(store) == []


async def test_parking_with_nothing_clears_the_checkpoint_and_the_error(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, park(taken, checkpoint="[1]", error='{"code":"e"}'))
    again = await claim_one(store)
    assert (again.checkpoint, again.error) == ("[1]", '{"code":"e"}')
    await settle(store, again.claim, park(again))
    after = await get(store, taken.id)
    assert (after.checkpoint, after.error) == (None, None)


async def test_a_task_parked_without_a_wait_is_ready_at_once(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, park(taken))
    assert (await claim_one(store, owner="owner-2")).id == taken.id


async def test_keeping_changes_the_checkpoint_and_nothing_else(store, clock):
    taken = await put_and_claim(store)
    await clock.advance(5)
    assert await settle(store, taken.claim, Keep('{"half":1}')) == DONE
    taken.checkpoint = '{"half":1}'
    assert await get(store, taken.id) == taken
    assert await store.list_moves(taken.id) == []
    assert await settle(store, taken.claim, Keep(None)) == DONE
    assert (await get(store, taken.id)).checkpoint is None


async def test_keeping_may_bring_new_tasks_along(store):
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
    return [succeed('{"late":1}'), fail(), park(task), Keep('"late"')]


async def test_a_late_settle_is_answered_claim_lost(store, clock):
    late = await put_and_claim(store)
    await clock.advance(MINUTE)
    await store.wake(100)
    await claim_one(store, owner="owner-2")
    before = await everything(store)
    for settlement in late_settlements(late):
        assert await settle(store, late.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before


async def test_a_late_settle_is_fenced_off_even_from_the_same_owner(store, clock):
    late = await put_and_claim(store, owner="same")
    await clock.advance(MINUTE)
    await store.wake(100)
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
    await store.wake(100)
    current = await claim_one(store, owner="owner-2")
    await settle(store, current.claim, succeed('{"in":"time"}'))
    before = await everything(store)
    for settlement in late_settlements(late):
        assert await settle(store, late.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before


async def test_a_settle_after_a_cancel_is_lost_and_not_taken_for_a_repetition(store):
    taken = await put_and_claim(store)
    assert await settle(store, seen(taken), cancel()) == DONE
    before = await everything(store)
    for settlement in late_settlements(taken):
        assert await settle(store, taken.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before
    assert (await get(store, taken.id)).state == TaskState.CANCELED


async def test_a_settle_after_an_operator_parked_the_task_is_lost_and_not_taken_for_a_repetition(store):
    taken = await put_and_claim(store)
    assert await settle(store, seen(taken), park(taken, "pause", hold=8, actor="ann")) == DONE
    before = await everything(store)
    for settlement in late_settlements(taken):
        assert await settle(store, taken.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before


async def test_the_same_move_made_by_an_operator_meanwhile_is_no_repetition(store):
    paused = await put_and_claim(store)
    await settle(store, seen(paused), park(paused, "pause", hold=8, actor="ann"))
    assert await settle(store, paused.claim, park(paused, "pause", hold=8)) == CLAIM_LOST
    canceled = await put_and_claim(store)
    await settle(store, seen(canceled), cancel("ann"))
    assert await settle(store, canceled.claim, Finish("cancel", "canceled")) == CLAIM_LOST
    await settle(store, seen(await get(store, canceled.id)), Revive("requeue", "ann"))
    assert await settle(store, canceled.claim, Finish("cancel", "canceled")) == CLAIM_LOST


async def test_a_settle_after_a_cancel_and_a_revival_is_lost(store):
    taken = await put_and_claim(store)
    await settle(store, seen(taken), cancel())
    await settle(store, seen(await get(store, taken.id)), Revive("requeue", "ann"))
    before = await everything(store)
    for settlement in late_settlements(taken):
        assert await settle(store, taken.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before


# --- repetition ---


@pytest.mark.parametrize("kind", ["finish", "fail", "park", "park_for_long", "keep"])
async def test_a_repeated_commit_is_recognised(store, clock, kind):
    taken = await put_and_claim(store)
    settlement = {
        "finish": succeed('{"a":1}'),
        "fail": fail(),
        "park": park(taken),
        "park_for_long": park(taken, "retry", attempt=2, failures=1, delay=9_000),
        "keep": Keep('"here"'),
    }[kind]
    unit = Unit(taken.claim, settlement, (new_task(OTHER), new_task(OTHER, unique_key="k")))
    assert [answer.verdict for answer in await store.commit([unit])] == [DONE]
    await clock.advance(3)
    before = await everything(store)
    assert [answer.verdict for answer in await store.commit([unit])] == [DONE]
    assert [answer.verdict for answer in await store.commit([Unit(tasks=(new_task(),)), unit])][1] == DONE
    assert (await everything(store))[1][: len(before[1])] == before[1]
    assert len(await claim(store, OTHER)) == 2


async def test_a_repeated_finish_is_recognised_after_its_followers_are_done(store):
    taken = await put_and_claim(store)
    unit = Unit(taken.claim, succeed(), (new_task(OTHER, unique_key="k"),))
    await store.commit([unit])
    follower = await claim_one(store, OTHER)
    await settle(store, follower.claim, succeed())
    before = await everything(store)
    assert (await store.commit([unit]))[0].verdict == DONE
    assert await everything(store) == before


async def test_a_repeated_park_is_recognised_after_someone_else_has_claimed_since(store):
    first = await put_and_claim(store)
    unit = Unit(first.claim, park(first, "retry", attempt=2, failures=1), (new_task(OTHER),))
    await store.commit([unit])
    second = await claim_one(store, owner="owner-2")
    before = await everything(store)
    assert (await store.commit([unit]))[0].verdict == DONE
    assert await everything(store) == before
    assert await settle(store, second.claim, succeed()) == DONE


async def test_a_repeat_is_recognised_beside_another_unit_of_its_task(store):
    first = await put_and_claim(store)
    parked = Unit(first.claim, park(first))
    await store.commit([parked])
    second = await claim_one(store, owner="owner-2")
    ends = Unit(second.claim, succeed())
    answers = await store.commit([ends, parked, ends])
    assert [answer.verdict for answer in answers] == [DONE, DONE, CLAIM_LOST]
    assert [(await store.commit([unit]))[0].verdict for unit in (parked, ends)] == [DONE, DONE]


async def test_a_repeated_park_is_recognised_after_someone_else_has_finished_since(store):
    first = await put_and_claim(store)
    unit = Unit(first.claim, park(first), (new_task(OTHER),))
    await store.commit([unit])
    second = await claim_one(store, owner="owner-2")
    await settle(store, second.claim, succeed())
    before = await everything(store)
    assert (await store.commit([unit]))[0].verdict == DONE
    assert await everything(store) == before


async def test_a_repeated_finish_is_recognised_after_someone_else_has_claimed_since(store):
    first = await put_and_claim(store)
    unit = Unit(first.claim, fail(), (new_task(OTHER),))
    await store.commit([unit])
    await settle(store, seen(await get(store, first.id)), Revive("requeue", "ann"))
    before = await everything(store)
    assert (await store.commit([unit]))[0].verdict == DONE
    second = await claim_one(store, owner="owner-2")
    assert (await store.commit([unit]))[0].verdict == DONE
    assert (await get(store, first.id)) == second
    await settle(store, second.claim, succeed())
    assert (await store.commit([unit]))[0].verdict == DONE
    assert len((await everything(store))[0]) == len(before[0])
    assert (await get(store, first.id)).state == TaskState.COMPLETED


async def test_a_repeated_commit_in_the_name_of_someone_else_is_recognised(store):
    first, second = await put_and_claim(store), await put_and_claim(store)
    units = [
        Unit(first.claim, msgspec.structs.replace(fail(), actor="watchdog")),
        Unit(second.claim, park(second, actor="watchdog")),
    ]
    assert [answer.verdict for answer in await store.commit(units)] == [DONE, DONE]
    before = await everything(store)
    assert [answer.verdict for answer in await store.commit(units)] == [DONE, DONE]
    assert await everything(store) == before


async def test_a_unit_sent_twice_in_one_call_is_done_once(store):
    taken = await put_and_claim(store)
    unit = Unit(taken.claim, succeed(), (new_task(OTHER),))
    answers = await store.commit([unit, unit])
    assert answers[0].verdict == DONE
    assert moves_of(await store.list_moves(taken.id)) == ["succeed"]
    assert len(await claim(store, OTHER)) == 1


async def test_another_settlement_under_a_spent_claim_is_no_repetition(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, succeed('{"a":1}'))
    before = await everything(store)
    for settlement in (fail(), park(taken), Keep('"late"')):
        assert await settle(store, taken.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before

    parked = await put_and_claim(store)
    await settle(store, parked.claim, park(parked, "wait"))
    before = await everything(store)
    for settlement in (succeed(), fail(), park(parked, "retry"), Keep('"late"')):
        assert await settle(store, parked.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before


async def test_a_repeated_seen_unit_is_answered_claim_lost(store):
    task = await get(store, (await put_one(store)).id)
    unit = Unit(seen(task), park(task, "pause", hold=8, actor="ann"), (new_task(OTHER),))
    assert (await store.commit([unit]))[0].verdict == DONE
    before = await everything(store)
    assert (await store.commit([unit]))[0].verdict == CLAIM_LOST
    assert await everything(store) == before

    held = await get(store, task.id)
    unit = Unit(seen(held), cancel(), (new_task(OTHER),))
    assert (await store.commit([unit]))[0].verdict == DONE
    before = await everything(store)
    assert (await store.commit([unit]))[0].verdict == CLAIM_LOST
    assert await everything(store) == before

    ended = await get(store, task.id)
    unit = Unit(seen(ended), Revive("requeue", "ann"), (new_task(OTHER),))
    assert (await store.commit([unit]))[0].verdict == DONE
    before = await everything(store)
    assert (await store.commit([unit]))[0].verdict == CLAIM_LOST
    assert await everything(store) == before


async def test_new_tasks_sent_again_are_there_once(store):
    tasks = (new_task(payload='{"a":1}'), new_task())
    assert (await put(store, *tasks)).verdict == DONE
    before = await everything(store)
    assert (await put(store, *tasks)).verdict == DONE
    assert (await put(store, new_task(id=tasks[0].id, payload='{"other":1}'))).verdict == DONE
    assert await everything(store) == before


async def test_a_new_task_that_has_finished_meanwhile_is_not_inserted_again(store):
    task = new_task(unique_key="k")
    await put(store, task)
    taken = await claim_one(store)
    await settle(store, taken.claim, succeed())
    before = await everything(store)
    assert (await put(store, task)).verdict == DONE
    assert await everything(store) == before


# --- operators: Seen ---


async def test_a_seen_guard_matches_what_was_seen_and_nothing_else(store):
    task = await get(store, (await put_one(store)).id)
    before = await everything(store)
    for guard in (Seen(task.id, 1, 0), Seen(task.id, 0, 1), Seen(UNKNOWN_ID, 0, 0)):
        assert await settle(store, guard, cancel(), new_task(OTHER)) == CLAIM_LOST
        assert await settle(store, guard, park(task, "pause", hold=8), new_task(OTHER)) == CLAIM_LOST
        assert await settle(store, guard, Revive("requeue", "ann"), new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before
    assert await settle(store, seen(task), cancel()) == DONE


async def test_a_claim_since_makes_a_seen_guard_fail(store):
    task = await get(store, (await put_one(store)).id)
    await claim_one(store)
    assert await settle(store, seen(task), cancel()) == CLAIM_LOST


async def test_a_move_since_makes_a_seen_guard_fail(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, park(taken))
    assert await settle(store, seen(taken), cancel()) == CLAIM_LOST


async def test_a_live_task_cannot_be_revived(store):
    task = await get(store, (await put_one(store)).id)
    before = await everything(store)
    assert await settle(store, seen(task), Revive("requeue", "ann")) == CLAIM_LOST
    assert await everything(store) == before


async def test_a_finished_task_cannot_be_finished_or_parked_by_an_operator(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, succeed())
    ended = await get(store, taken.id)
    before = await everything(store)
    assert await settle(store, seen(ended), cancel()) == CLAIM_LOST
    assert await settle(store, seen(ended), park(ended, "pause", state="pending")) == CLAIM_LOST
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
        assert len(await store.list_moves(task.id)) == 1
    assert len(await claim(store, OTHER)) == sum(settled == DONE for settled, _ in verdicts)


async def test_of_a_settle_and_an_expiry_exactly_one_wins(store, clock):
    tasks = [await put_and_claim(store) for _ in range(20)]
    await clock.advance(MINUTE)
    *verdicts, woken = await asyncio.gather(*[settle(store, task.claim, succeed()) for task in tasks], store.wake(1000))
    for task, verdict in zip(tasks, verdicts, strict=True):
        assert moves_of(await store.list_moves(task.id)) == (["succeed"] if verdict == DONE else ["expire"])
    assert woken.expired <= 20 - verdicts.count(DONE)


async def test_of_two_concurrent_revivals_exactly_one_wins(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, fail())
    ended = await get(store, taken.id)
    verdicts = await asyncio.gather(*[settle(store, seen(ended), Revive("requeue", f"op-{n}")) for n in range(4)])
    assert sorted(verdicts) == [CLAIM_LOST, CLAIM_LOST, CLAIM_LOST, DONE]
    assert moves_of(await store.list_moves(taken.id)) == ["fail", "requeue"]


async def test_a_commit_sent_twice_at_once_is_done_once(store):
    tasks = [await put_and_claim(store) for _ in range(10)]
    units = [Unit(task.claim, succeed(), (new_task(OTHER),)) for task in tasks]
    answers = await asyncio.gather(*[store.commit([unit]) for unit in units for _ in range(2)])
    assert {answer.verdict for (answer,) in answers} == {DONE}
    assert len(await claim(store, OTHER)) == 10
    for task in tasks:
        assert moves_of(await store.list_moves(task.id)) == ["succeed"]


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


async def test_a_revived_task_is_ready_and_its_end_stays_in_its_history(store, clock):
    taken = await put_and_claim(store, payload='{"a":1}', priority=4, run_id="0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77")
    await settle(store, taken.claim, fail())
    ended = await get(store, taken.id)
    await clock.advance(5)
    answer = await commit_one(store, seen(ended), Revive("requeue", "ann"))
    assert (answer.verdict, answer.lane_ids) == (DONE, (taken.lane_id,))
    revived = await get(store, taken.id)
    assert not revived.finished
    assert (revived.state, revived.version, revived.hold, revived.wake_at, revived.owner_id) == ("pending", 2, 0, None, None)
    assert (revived.payload, revived.priority, revived.run_id) == ('{"a":1}', 4, taken.run_id)
    assert (revived.created_at, revived.claim_version, revived.result, revived.error_code) == (taken.created_at, 1, None, None)
    end, requeue = await store.list_moves(taken.id)
    assert (end.move, end.version, end.to_state, end.at, end.actor) == ("fail", 1, "failed", ended.finished_at, "owner-1")
    assert (end.seq, end.claim_version) == (ended.seq, 1)
    assert (requeue.move, requeue.version, requeue.from_state, requeue.to_state) == ("requeue", 2, "failed", "pending")
    assert (requeue.actor, requeue.at) == ("ann", clock.now())
    again = await claim_one(store)
    assert (again.id, again.claim_version) == (taken.id, 2)


async def test_the_end_of_a_revived_task_keeps_its_error_in_the_log(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, fail('{"code":"boom","message":"why"}'))
    await settle(store, seen(await get(store, taken.id)), Revive("requeue", "ann"))
    assert "why" in ((await store.list_moves(taken.id))[0].data or "")


async def test_a_task_can_be_revived_for_later_with_its_failures_counted_on(store, clock):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, park(taken, "retry", attempt=2, failures=1))
    again = await claim_one(store)
    await settle(store, again.claim, fail())
    ended = await get(store, taken.id)
    answer = await commit_one(store, seen(ended), Revive("requeue", "ann", failures=ended.failures + 1, delay=2_000))
    assert (answer.verdict, answer.lane_ids) == (DONE, ())
    revived = await get(store, taken.id)
    assert (revived.attempt, revived.failures, revived.takeovers) == (3, 2, 0)
    assert (revived.wake_at, revived.owner_id, revived.error) == (clock.now() + 2_000, None, None)
    assert await claim(store) == []
    await clock.advance(1_999)
    assert (await store.wake(10)).count == 0
    await clock.advance(1)
    assert (await store.wake(10)).count == 1
    assert (await claim_one(store)).id == taken.id


async def test_a_limited_task_that_is_revived_for_later_takes_its_place_when_it_is_due(store, clock):
    taken = await put_and_claim(store, limit_key="k", limit=1)
    await settle(store, taken.claim, fail())
    assert await settle(store, seen(await get(store, taken.id)), Revive("requeue", "ann", delay=1_000)) == DONE
    other = await put_and_claim(store, limit_key="k", limit=1)
    await clock.advance(1_000)
    await store.wake(10)
    assert await claim(store) == []
    await settle(store, other.claim, succeed())
    assert (await claim_one(store)).id == taken.id


async def test_a_revived_task_starts_its_counters_anew_and_goes_on_counting_attempts(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, park(taken, "retry", attempt=2, failures=1, takeovers=3))
    again = await claim_one(store)
    await settle(store, again.claim, fail())
    await settle(store, seen(await get(store, taken.id)), Revive("requeue", "ann"))
    revived = await get(store, taken.id)
    assert (revived.failures, revived.takeovers) == (0, 0)
    assert revived.attempt == 3


async def test_a_revival_may_bring_a_new_payload(store):
    taken = await put_and_claim(store, payload='{"a":1}')
    await settle(store, taken.claim, fail())
    await settle(store, seen(await get(store, taken.id)), Revive("requeue", "ann", payload='{"a":2}'))
    assert (await claim_one(store)).payload == '{"a":2}'


async def test_a_task_can_end_and_be_revived_again_and_again(store):
    task = await put_one(store)
    for number in range(1, 4):
        taken = await claim_one(store)
        assert await settle(store, taken.claim, fail()) == DONE
        ended = await get(store, task.id)
        assert ended.version == 2 * number - 1
        assert await settle(store, seen(ended), Revive("requeue", "ann")) == DONE
    assert moves_of(await store.list_moves(task.id)) == ["fail", "requeue"] * 3
    assert [move.version for move in await store.list_moves(task.id)] == [1, 2, 3, 4, 5, 6]


async def test_a_revived_task_has_its_unique_key_again(store):
    taken = await put_and_claim(store, unique_key="k")
    await settle(store, taken.claim, fail())
    await settle(store, seen(await get(store, taken.id)), Revive("requeue", "ann"))
    assert (await put(store, new_task(unique_key="k"))).existing == {"k": taken.id}


async def test_a_revived_task_gives_up_a_key_that_another_has_meanwhile(store):
    taken = await put_and_claim(store, unique_key="k")
    await settle(store, taken.claim, fail())
    successor = await put_one(store, unique_key="k")
    assert await settle(store, seen(await get(store, taken.id)), Revive("requeue", "ann")) == DONE
    assert (await get(store, taken.id)).unique_key is None
    assert (await put(store, new_task(unique_key="k"))).existing == {"k": successor.id}


async def test_of_two_tasks_of_one_key_that_are_revived_together_one_has_it(store):
    ended = []
    for _ in range(2):
        taken = await put_and_claim(store, unique_key="k")
        await settle(store, taken.claim, fail())
        ended.append(await get(store, taken.id))
    answers = await store.commit([Unit(seen(task), Revive("requeue", "ann")) for task in ended])
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
        await settle(store, seen(await get(store, first.id)), Revive("requeue", "ann"))
    assert await everything(store) == before


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
        "hold",
        "limit",
        "idempotency_key",
        "idempotency_for",
        "preclaimed",
    }:
        assert getattr(found, name) == getattr(task, name), name
    assert (found.state, found.owner_id, found.claim_version, found.version) == ("pending", None, 0, 0)
    assert found.hold == Hold.OVER_LIMIT  # it has a limit key, and cannot go on yet
    assert (found.attempt, found.failures, found.takeovers) == (1, 0, 0)
    assert found.created_at == clock.now()
    assert found.due_at == found.wake_at == clock.now() + 5_000
    assert found.deadline_at == clock.now() + 60_000


async def test_a_new_task_without_a_root_is_a_tree_of_its_own(store):
    task = await put_one(store)
    assert (await get(store, task.id)).root_id == task.id


async def test_a_large_payload_comes_back_whole(store):
    payload = '{"text":"' + "x" * 500_000 + '"}'
    task = await put_one(store, payload=payload)
    assert (await claim_one(store)).payload == payload
    assert (await get(store, task.id)).payload == payload


async def test_the_answer_names_the_lanes_in_which_a_task_was_made_ready(store):
    lane_ids = await store.lane_ids([WORK, OTHER])
    ready = await put(store, new_task(), new_task(), new_task(OTHER))
    assert sorted(ready.lane_ids) == sorted(lane_ids.values())
    assert (await put(store, new_task(delay=1))).lane_ids == ()
    taken = await claim_one(store)
    assert (await commit_one(store, taken.claim, Keep("1"))).lane_ids == ()
    assert (await commit_one(store, taken.claim, park(taken))).lane_ids == (lane_ids[WORK],)
    taken = await claim_one(store)
    assert (await commit_one(store, taken.claim, park(taken, delay=5))).lane_ids == ()
    taken = await claim_one(store)
    assert (await commit_one(store, taken.claim, park(taken, "pause", hold=8))).lane_ids == ()
    taken = await claim_one(store, OTHER)
    assert (await commit_one(store, taken.claim, succeed())).lane_ids == ()
    assert (await commit_one(store, taken.claim, succeed())).verdict == DONE


# --- unique keys ---


async def test_a_live_unique_key_returns_the_existing_task(store):
    first = await put_one(store, unique_key="k")
    second = new_task(unique_key="k")
    answer = await put(store, second)
    assert (answer.verdict, answer.existing) == (DONE, {"k": first.id})
    assert await store.find_task(second.id) is None


async def test_a_new_unique_key_has_no_existing_task(store):
    assert (await put(store, new_task(unique_key="k"))).existing == {}


async def test_a_unique_key_is_live_while_its_task_runs_sleeps_or_is_held(store):
    first = await put_and_claim(store, unique_key="k")
    assert (await put(store, new_task(unique_key="k"))).existing == {"k": first.id}
    await settle(store, first.claim, park(first, hold=8, delay=10))
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


async def test_unique_keys_are_shared_by_all_lanes_of_a_namespace(store):
    first = await put_one(store, unique_key="k")
    assert (await put(store, new_task(OTHER, unique_key="k"))).existing == {"k": first.id}


async def test_two_new_tasks_with_one_key_in_one_call_become_one(store):
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


async def test_concurrent_callers_with_one_key_agree_on_one_task(store):
    tasks = [new_task(unique_key="k") for _ in range(8)]
    answers = await asyncio.gather(*[put(store, task) for task in tasks])
    (live,) = await claim(store)
    assert sorted(answer.existing.get("k", live.id) for answer in answers) == [live.id] * 8
    assert sum(not answer.existing for answer in answers) == 1
