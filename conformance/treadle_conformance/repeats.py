"""Units that are sent again after they were committed."""

from __future__ import annotations

import msgspec
import pytest

from treadle.kernel.store.units import Keep, Redrive, Unit, Verdict
from treadle.model.states import TaskState
from treadle_conformance.task_steps import (
    OTHER,
    cancel,
    claim,
    claim_one,
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


# --- repetition ---


@pytest.mark.parametrize("kind", ["finish", "fail", "requeue", "park_for_long", "keep"])
async def test_a_repeated_commit_is_recognised(store, clock, kind):
    taken = await put_and_claim(store)
    settlement = {
        "finish": succeed('{"a":1}'),
        "fail": fail(),
        "requeue": requeue(taken),
        "park_for_long": requeue(taken, "retry", attempt=2, failures=1, delay=9_000),
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


async def test_a_repeated_requeue_is_recognised_after_someone_else_has_claimed_since(store):
    first = await put_and_claim(store)
    unit = Unit(first.claim, requeue(first, "retry", attempt=2, failures=1), (new_task(OTHER),))
    await store.commit([unit])
    second = await claim_one(store, owner="owner-2")
    before = await everything(store)
    assert (await store.commit([unit]))[0].verdict == DONE
    assert await everything(store) == before
    assert await settle(store, second.claim, succeed()) == DONE


async def test_a_repeat_is_recognised_beside_another_unit_of_its_task(store):
    first = await put_and_claim(store)
    requeued = Unit(first.claim, requeue(first))
    await store.commit([requeued])
    second = await claim_one(store, owner="owner-2")
    ends = Unit(second.claim, succeed())
    answers = await store.commit([ends, requeued, ends])
    assert [answer.verdict for answer in answers] == [DONE, DONE, CLAIM_LOST]
    assert [(await store.commit([unit]))[0].verdict for unit in (requeued, ends)] == [DONE, DONE]


async def test_a_repeated_requeue_is_recognised_after_someone_else_has_finished_since(store):
    first = await put_and_claim(store)
    unit = Unit(first.claim, requeue(first), (new_task(OTHER),))
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
    await settle(store, seen(await get(store, first.id)), Redrive("requeue", "ann"))
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
        Unit(second.claim, requeue(second, actor="watchdog")),
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
    assert transitions_of(await store.log.list_transitions(taken.id)) == ["succeed"]
    assert len(await claim(store, OTHER)) == 1


async def test_another_settlement_under_a_spent_claim_is_not_a_repetition(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, succeed('{"a":1}'))
    before = await everything(store)
    for settlement in (fail(), requeue(taken), Keep('"late"')):
        assert await settle(store, taken.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before

    requeued = await put_and_claim(store)
    await settle(store, requeued.claim, requeue(requeued, "wait"))
    before = await everything(store)
    for settlement in (succeed(), fail(), requeue(requeued, "retry"), Keep('"late"')):
        assert await settle(store, requeued.claim, settlement, new_task(OTHER)) == CLAIM_LOST
    assert await everything(store) == before


async def test_a_repeated_seen_unit_is_answered_claim_lost(store):
    task = await get(store, (await put_one(store)).id)
    unit = Unit(seen(task), requeue(task, "pause", blocked_by=8, actor="ann"), (new_task(OTHER),))
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
    unit = Unit(seen(ended), Redrive("requeue", "ann"), (new_task(OTHER),))
    assert (await store.commit([unit]))[0].verdict == DONE
    before = await everything(store)
    assert (await store.commit([unit]))[0].verdict == CLAIM_LOST
    assert await everything(store) == before


async def test_resent_new_tasks_are_stored_once(store):
    tasks = (new_task(payload='{"a":1}'), new_task())
    assert (await put(store, *tasks)).verdict == DONE
    before = await everything(store)
    assert (await put(store, *tasks)).verdict == DONE
    assert (await put(store, new_task(id=tasks[0].id, payload='{"other":1}'))).verdict == DONE
    assert await everything(store) == before


async def test_a_concurrently_finished_task_is_not_inserted_again(store):
    task = new_task(unique_key="k")
    await put(store, task)
    taken = await claim_one(store)
    await settle(store, taken.claim, succeed())
    before = await everything(store)
    assert (await put(store, task)).verdict == DONE
    assert await everything(store) == before
