"""Dead letters: failed tasks listed, walked, grouped and counted by filter; and ends that are discarded."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import DeadLetterFilter
from treadle.kernel.store.units import Discard, Finish, PutBlob, Redrive, Seen, Unit, Verdict
from treadle.kernel.store.verify import verify
from treadle.model.names import QueueKey
from treadle.model.states import TaskState
from treadle.model.tasks import Task
from treadle_conformance.task_steps import (
    OTHER,
    WORK,
    claim_one,
    everything,
    fail,
    get,
    in_order,
    new_task,
    put,
    put_and_claim,
    put_one,
    seen,
    settle,
    succeed,
    transitions_of,
)

RUN_ID = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"
ANY = DeadLetterFilter()
DISCARD = Discard("discard", TaskState.CANCELED, "ann")


async def dead(store: Store, code: str = "boom", print_: str = "f00d", **fields: Any) -> Task:
    task = await put_and_claim(store, **fields)
    await settle(store, task.claim, Finish("fail", TaskState.FAILED, error="{}", error_code=code, fingerprint=print_))
    return await get(store, task.id)


async def test_only_failed_tasks_are_dead_letters(store):
    letter = await dead(store)
    done = await put_and_claim(store)
    await settle(store, done.claim, succeed())
    await put_one(store)
    assert await store.dead_letters.list_newest(ANY, 10) == [letter]
    (walked,) = await store.dead_letters.walk(ANY, 10)
    assert (walked.seen, walked.seq, walked.root_id, walked.run_id) == (seen(letter), letter.seq, letter.id, None)
    assert await store.dead_letters.count(ANY) == (1, 0, letter.seq)


async def test_dead_letters_are_listed_newest_first_and_walked_oldest_first(store):
    letters = [await dead(store) for _ in range(5)]
    assert in_order(await store.dead_letters.list_newest(ANY, 3)) == in_order(letters[:1:-1])
    assert in_order(await store.dead_letters.list_newest(DeadLetterFilter(until_seq=letters[2].seq), 10)) == in_order(
        letters[2::-1]
    )
    walked = await store.dead_letters.walk(DeadLetterFilter(after_seq=letters[0].seq, until_seq=letters[3].seq), 10)
    assert [letter.seen.task_id for letter in walked] == in_order(letters[1:4])
    assert len(await store.dead_letters.walk(ANY, 2)) == 2
    assert await store.dead_letters.list_newest(ANY, 0) == await store.dead_letters.walk(ANY, 0) == []


async def test_dead_letters_are_selected_by_queue_error_and_age(store, clock):
    first = await dead(store, "boom", "aa")
    await clock.advance(1000)
    second = await dead(store, "bang", "bb", queue=OTHER)
    foreign = await dead(store, "bang", "bb", queue=QueueKey("elsewhere", "handler", "slow", "work"))

    async def chosen(**fields: Any) -> list[str]:
        which = DeadLetterFilter(**fields)
        listed = in_order(await store.dead_letters.list_newest(which, 10))
        assert [letter.seen.task_id for letter in await store.dead_letters.walk(which, 10)] == listed[::-1]
        assert (
            (await store.dead_letters.count(which))[0]
            == len(listed)
            == sum(group.count for group in await store.dead_letters.group(which, 10))
        )
        return listed[::-1]

    assert await chosen(name=WORK.name, namespace="default") == [first.id]
    assert await chosen(name=OTHER.name) == [second.id]
    assert await chosen(namespace="elsewhere") == await chosen(task_list="slow") == [foreign.id]
    assert await chosen(error_code="bang") == await chosen(fingerprint="bb") == [second.id, foreign.id]
    assert await chosen(failed_before=clock.now()) == [first.id]
    assert await chosen(failed_after=clock.now()) == [second.id, foreign.id]
    assert await chosen(kind="other") == await chosen(error_code="none") == await chosen(fingerprint="") == []


async def test_dead_letters_are_grouped_by_cause(store, clock):
    began = clock.now()
    for _ in range(3):
        await dead(store, "boom", "aa")
    await clock.advance(500)
    of_run = await dead(store, "boom", "aa", run_id=RUN_ID)
    other = await dead(store, "bang", "bb", queue=OTHER)
    big, small = await store.dead_letters.group(ANY, 10)
    assert (big.fingerprint, big.error_code, big.name, big.count, big.of_runs) == ("aa", "boom", "work", 4, 1)
    assert (big.first_at, big.last_at, big.last_id) == (began, clock.now(), of_run.id)
    assert (small.fingerprint, small.count, small.last_id) == ("bb", 1, other.id)
    assert await store.dead_letters.group(ANY, 1) == [big]
    assert await store.dead_letters.count(ANY) == (5, 1, other.seq)


async def test_an_empty_dead_letter_queue_counts_zero(store):
    assert await store.dead_letters.count(ANY) == (0, 0, 0)
    assert await store.dead_letters.group(ANY, 10) == []


# --- discarding ---


async def test_a_discarded_dead_letter_is_canceled_and_keeps_its_failure_in_its_history(store, clock):
    letter = await dead(store)
    await clock.advance(1000)
    assert await settle(store, seen(letter), DISCARD) == Verdict.DONE
    found = await get(store, letter.id)
    assert (found.state, found.transition, found.from_state, found.actor) == ("canceled", "discard", "failed", "ann")
    assert (found.version, found.finished_at, found.error, found.error_code) == (letter.version + 1, clock.now(), "{}", "boom")
    assert found.seq > letter.seq
    failed, discarded = await store.log.list_transitions(letter.id)
    assert (failed.seq, failed.transition, failed.to_state, failed.at) == (letter.seq, "fail", "failed", letter.finished_at)
    assert (discarded.seq, discarded.transition, discarded.to_state, discarded.at) == (
        found.seq,
        "discard",
        "canceled",
        clock.now(),
    )
    assert await store.dead_letters.count(ANY) == (0, 0, 0)
    assert (await verify(store)).problems == ()


async def test_a_guard_that_does_not_match_discards_no_task(store):
    letter, live = await dead(store), await put_one(store)
    before = await everything(store)
    for guard in (
        Seen(letter.id, letter.version + 1, letter.claim_version),
        Seen(letter.id, letter.version, letter.claim_version + 1),
        Seen(live.id, 0, 0),
    ):
        assert await settle(store, guard, DISCARD) == Verdict.CLAIM_LOST
    assert await everything(store) == before


async def test_discarding_twice_is_claim_lost_the_second_time(store):
    letter = await dead(store)
    verdicts = [answer.verdict for answer in await store.commit([Unit(seen(letter), DISCARD), Unit(seen(letter), DISCARD)])]
    assert verdicts == [Verdict.DONE, Verdict.CLAIM_LOST]
    assert await settle(store, seen(letter), DISCARD) == Verdict.CLAIM_LOST
    assert transitions_of(await store.log.list_transitions(letter.id)) == ["fail", "discard"]


async def test_many_are_discarded_and_others_retried_in_one_commit(store):
    letters = [await dead(store) for _ in range(6)]
    units = [Unit(seen(letter), DISCARD if number % 2 else Redrive("requeue", "bob")) for number, letter in enumerate(letters)]
    answers = await store.commit(units)
    assert {answer.verdict for answer in answers} == {Verdict.DONE}
    states = [(await get(store, letter.id)).state for letter in letters]
    assert states == ["pending", "canceled"] * 3
    assert (await verify(store)).problems == ()


async def test_the_holder_of_a_discarded_task_sees_its_end(store):
    task = await put_and_claim(store)
    await settle(store, task.claim, fail())
    await settle(store, seen(await get(store, task.id)), DISCARD)
    assert await settle(store, task.claim, fail()) == Verdict.DONE
    assert await settle(store, task.claim, succeed()) == Verdict.CLAIM_LOST


async def test_a_discarded_task_can_be_retried(store):
    letter = await dead(store)
    await settle(store, seen(letter), DISCARD)
    assert await settle(store, seen(await get(store, letter.id)), Redrive("requeue", "ann")) == Verdict.DONE
    taken = await claim_one(store)
    await settle(store, taken.claim, succeed())
    assert transitions_of(await store.log.list_transitions(letter.id)) == ["fail", "discard", "requeue", "succeed"]
    assert (await verify(store)).problems == ()


@pytest.mark.parametrize("settlement", [DISCARD, Redrive("requeue", "ann", '"@"')], ids=["discard_finished", "redrive"])
async def test_discarding_or_redriving_a_finished_task_may_carry_rows(store, settlement):
    letter = await dead(store)
    unit = Unit(seen(letter), settlement, rows=(PutBlob("d1", '"big"', letter.root_id),))
    assert [answer.verdict for answer in await store.commit([unit])] == [Verdict.DONE]
    assert await store.runs.find_blobs(["d1"]) == {"d1": '"big"'}
    assert [answer.verdict for answer in await store.commit([unit])] == [Verdict.CLAIM_LOST]


async def test_discarding_a_dead_letter_may_insert_tasks(store):
    letter, follow = await dead(store), new_task()
    assert await settle(store, seen(letter), DISCARD, follow) == Verdict.DONE
    assert (await get(store, follow.id)).state == "pending"
    assert (await put(store, follow)).verdict == Verdict.DONE
