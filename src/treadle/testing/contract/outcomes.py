"""Outcomes of effects: unknown before the effect, resolved once after it, and gone with their tree."""

from __future__ import annotations

import msgspec

from treadle.kernel.store.records import PutOutcome
from treadle.kernel.store.units import Unit
from treadle.testing.contract.record_steps import outcome, write
from treadle.testing.contract.run_steps import new_run
from treadle.testing.contract.task_steps import put_and_claim, succeed

RUN = new_run().id


async def found(store):
    return await store.find_outcomes(["key-1"])


async def test_an_outcome_is_unknown_first_and_resolved_later(store, clock):
    await write(store, PutOutcome(outcome(RUN)))
    begun_at = clock.now()
    unknown = outcome(RUN, created_at=begun_at)
    assert await found(store) == [unknown]
    await clock.advance(5)
    await write(store, PutOutcome(outcome(RUN, "succeeded", response_hash="h", response='{"ü":1}')))
    resolved = msgspec.structs.replace(unknown, status="succeeded", response_hash="h", response='{"ü":1}', resolved_at=begun_at + 5)
    assert await found(store) == [resolved]
    await clock.advance(5)
    for later in (outcome(RUN), outcome(RUN, "failed", response="{}"), outcome(RUN, "succeeded", tool_call_id="call-2")):
        await write(store, PutOutcome(later))
        assert await found(store) == [resolved]


async def test_an_outcome_that_is_known_at_once_is_resolved_at_once(store, clock):
    await write(store, PutOutcome(outcome(RUN, "failed", response='{"code":"x"}')))
    (stored,) = await found(store)
    assert (stored.status, stored.created_at, stored.resolved_at) == ("failed", clock.now(), clock.now())


async def test_an_effect_that_is_begun_again_is_unknown_under_its_new_call(store):
    await write(store, PutOutcome(outcome(RUN)))
    await write(store, PutOutcome(outcome(RUN, tool_call_id="call-2")))
    assert [(each.status, each.tool_call_id) for each in await found(store)] == [("unknown", "call-2")]


async def test_in_one_call_the_first_that_is_resolved_stays(store):
    rows = [outcome(RUN), outcome(RUN, "succeeded"), outcome(RUN, "failed"), outcome(RUN)]
    await store.commit([Unit(rows=(PutOutcome(each),)) for each in rows])
    assert [each.status for each in await found(store)] == ["succeeded"]


async def test_outcomes_are_found_by_key(store):
    await write(store, PutOutcome(outcome(RUN)), PutOutcome(outcome(RUN, idempotency_key="key-2")))
    assert {each.idempotency_key for each in await store.find_outcomes(["key-1", "key-2", "key-3", "key-1"])} == {"key-1", "key-2"}
    assert len(await store.find_outcomes(["key-1", "key-1"])) == 1
    assert await store.find_outcomes([]) == []


async def test_what_is_unknown_is_counted_by_tree(store):
    other = RUN[:-1] + ("0" if RUN[-1] != "0" else "1")
    rows = [outcome(RUN), outcome(RUN, idempotency_key="key-2"), outcome(other, idempotency_key="key-3")]
    await write(store, *map(PutOutcome, rows))
    assert [await store.count_unknown(roots) for roots in ([RUN], [RUN, other, RUN], [other], [])] == [2, 3, 1, 0]
    await write(store, PutOutcome(outcome(RUN, "failed")))
    assert await store.count_unknown([RUN]) == 1


async def test_an_outcome_is_written_under_a_claim_or_not_at_all(store):
    task = await put_and_claim(store)
    stays = Unit(task.claim, rows=(PutOutcome(outcome(RUN)),))
    (answer,) = await store.commit([stays])
    assert answer.verdict == "done"
    await store.commit([Unit(task.claim, succeed())])
    (answer,) = await store.commit([Unit(task.claim, rows=(PutOutcome(outcome(RUN, "succeeded")),))])
    assert answer.verdict == "claim_lost"
    assert [each.status for each in await found(store)] == ["unknown"]
