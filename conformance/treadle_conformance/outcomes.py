"""Outcomes of effects: unknown before the effect, resolved once after it, and gone with their tree."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from treadle.kernel.store.records import EffectFilter, PutOutcome
from treadle.kernel.store.units import CancelRunTasks, Keep, Unit
from treadle.kernel.store.verify import verify
from treadle.model.names import DEFAULT_NAMESPACE
from treadle_conformance.record_steps import begin_function, outcome, write
from treadle_conformance.run_steps import new_run
from treadle_conformance.task_steps import MINUTE, cancel, fail, get, put_and_claim, requeue, seen, settle, succeed

RUN = new_run().id


async def found(store):
    return await store.records.find_outcomes(["key-1"])


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


async def test_an_outcome_stored_with_its_result_is_resolved_immediately(store, clock):
    await write(store, PutOutcome(outcome(RUN, "failed", response='{"code":"x"}')))
    (stored,) = await found(store)
    assert (stored.status, stored.created_at, stored.resolved_at) == ("failed", clock.now(), clock.now())


async def test_an_effect_that_is_begun_again_is_unknown_under_its_new_call(store):
    await write(store, PutOutcome(outcome(RUN)))
    await write(store, PutOutcome(outcome(RUN, tool_call_id="call-2")))
    assert [(each.status, each.tool_call_id) for each in await found(store)] == [("unknown", "call-2")]


async def test_the_first_resolution_in_one_call_wins(store):
    rows = [outcome(RUN), outcome(RUN, "succeeded"), outcome(RUN, "failed"), outcome(RUN)]
    await store.commit([Unit(rows=(PutOutcome(each),)) for each in rows])
    assert [each.status for each in await found(store)] == ["succeeded"]


async def test_outcomes_are_found_by_key(store):
    await write(store, PutOutcome(outcome(RUN)), PutOutcome(outcome(RUN, idempotency_key="key-2")))
    assert {each.idempotency_key for each in await store.records.find_outcomes(["key-1", "key-2", "key-3", "key-1"])} == {
        "key-1",
        "key-2",
    }
    assert len(await store.records.find_outcomes(["key-1", "key-1"])) == 1
    assert await store.records.find_outcomes([]) == []


async def test_outcomes_are_listed_by_tree_in_pages(store):
    other = RUN[:-1] + ("0" if RUN[-1] != "0" else "1")
    keys = ["b", "Z", "a/1", "\u00fc"]
    await write(store, *(PutOutcome(outcome(RUN, idempotency_key=key)) for key in keys), PutOutcome(outcome(other)))
    for roots, expected in ([RUN], sorted(keys)), ([RUN, other, RUN], sorted([*keys, "key-1"])), ([], []):
        listed, after = [], None
        while page := await store.records.list_outcomes(roots, after, 2):
            after = page[-1].idempotency_key
            listed += [each.idempotency_key for each in page]
        assert listed == expected


async def test_unknown_outcomes_are_counted_by_tree(store):
    other = RUN[:-1] + ("0" if RUN[-1] != "0" else "1")
    rows = [outcome(RUN), outcome(RUN, idempotency_key="key-2"), outcome(other, idempotency_key="key-3")]
    await write(store, *map(PutOutcome, rows))
    assert [await store.records.count_unknown(roots) for roots in ([RUN], [RUN, other, RUN], [other], [])] == [2, 3, 1, 0]
    await write(store, PutOutcome(outcome(RUN, "failed")))
    assert await store.records.count_unknown([RUN]) == 1


async def test_an_outcome_is_written_under_a_claim_or_not_at_all(store):
    task = await put_and_claim(store)
    stays = Unit(task.claim, rows=(PutOutcome(outcome(RUN)),))
    (answer,) = await store.commit([stays])
    assert answer.verdict == "done"
    await store.commit([Unit(task.claim, succeed())])
    (answer,) = await store.commit([Unit(task.claim, rows=(PutOutcome(outcome(RUN, "succeeded")),))])
    assert answer.verdict == "claim_lost"
    assert [each.status for each in await found(store)] == ["unknown"]


# --- effects that become unknown ---


async def begin_effects(store, task, *keys):
    rows = [outcome(task.root_id, idempotency_key=key, task_id=task.id, details=f'{{"key":"{key}"}}') for key in keys]
    await store.commit([Unit(task.claim, rows=tuple(map(PutOutcome, rows)))])


async def expire(store, clock, task):
    await clock.advance(MINUTE)
    await store.tasks.wake(10)


ENDS = {
    "expire": expire,
    "release": lambda store, clock, task: settle(store, task.claim, requeue(task, "release")),
    "retry": lambda store, clock, task: settle(store, task.claim, requeue(task, "retry")),
    "fail": lambda store, clock, task: settle(store, task.claim, fail()),
    "cancel": lambda store, clock, task: settle(store, seen(task), cancel()),
    "pause": lambda store, clock, task: settle(store, seen(task), requeue(task, "pause", blocked_by=8)),
    "cancel run": lambda store, clock, task: write(store, CancelRunTasks(task.run_id, "ada", "{}")),
}


@pytest.mark.parametrize("by", ENDS)
async def test_effects_in_progress_become_unknown_with_the_end_of_their_claim(store, clock, by):
    _, task = await begin_function(store)
    await begin_effects(store, task, "a", "b", "c")
    resolved = outcome(task.root_id, "succeeded", idempotency_key="b", task_id=task.id)
    await store.commit([Unit(task.claim, rows=(PutOutcome(resolved),))])
    await clock.advance(1)
    await ENDS[by](store, clock, task)
    transitions = await store.log.list_transitions(task.id)
    assert [(transition.version, transition.transition, transition.data) for transition in transitions[:2]] == [
        (1, "tool_call.unknown", '{"key":"a"}'),
        (2, "tool_call.unknown", '{"key":"c"}'),
    ]
    assert {
        (transition.actor, transition.claim_version, transition.from_state, transition.to_state) for transition in transitions[:2]
    } == {(task.owner_id, task.claim_version, "pending", "pending")}
    assert [(transition.version, transition.transition) for transition in transitions[2:]] == [(3, by.partition(" ")[0])]
    assert [transition.seq for transition in transitions] == sorted(transition.seq for transition in transitions)
    assert (await get(store, task.id)).version == 3
    rows = {row.idempotency_key: row.unknown_at for row in await store.records.find_outcomes(["a", "b", "c"])}
    assert rows == {"a": clock.now(), "b": None, "c": clock.now()}
    assert (await verify(store)).problems == ()


async def test_an_effect_becomes_unknown_once(store, clock):
    _, task = await begin_function(store)
    await begin_effects(store, task, "a", "b")
    in_doubt = outcome(task.root_id, idempotency_key="a", task_id=task.id)
    await store.commit([Unit(task.claim, Keep(None, "tool_call.unknown", "{}"), rows=(PutOutcome(in_doubt, in_doubt=True),))])
    await expire(store, clock, task)
    (again,) = await store.tasks.claim([task.queue_id], "owner-2", MINUTE, 1)
    await expire(store, clock, again)
    transitions = [(transition.transition, transition.data) for transition in await store.log.list_transitions(task.id)]
    assert transitions == [("tool_call.unknown", "{}"), ("tool_call.unknown", '{"key":"b"}'), ("expire", None), ("expire", None)]


async def test_a_claim_that_was_lost_makes_no_effect_unknown(store, clock):
    task = await put_and_claim(store)
    await begin_effects(store, task, "a")
    assert await settle(store, replace(seen(task), version=7), cancel()) == "claim_lost"
    assert await store.log.list_transitions(task.id) == []
    assert await store.records.list_unknown(EffectFilter(), 10) == []


async def test_unknown_effects_are_listed_newest_first(store, clock):
    run, task = await begin_function(store)
    for key in "abc":
        await begin_effects(store, task, key)
        in_doubt = outcome(task.root_id, idempotency_key=key, task_id=task.id)
        await store.commit([Unit(task.claim, rows=(PutOutcome(in_doubt, in_doubt=True),))])
        await clock.advance(key == "b")
    other = await put_and_claim(store)
    await begin_effects(store, other, "d")

    async def listed(**which):
        return "".join(row.idempotency_key for row in await store.records.list_unknown(EffectFilter(**which), 10))

    assert await listed() == await listed(namespace=DEFAULT_NAMESPACE) == "cba"
    assert await listed(task_id=task.id) == await listed(run_id=run.id) == "cba"
    assert await listed(task_id=other.id) == await listed(run_id=other.id) == await listed(namespace="else") == ""
    assert [row.idempotency_key for row in await store.records.list_unknown(EffectFilter(), 2)] == ["c", "b"]
    (row,) = await store.records.find_outcomes(["b"])
    assert await listed(before=(row.unknown_at, "b")) == "a"
    await settle(store, task.claim, succeed())
    await store.commit([Unit(other.claim, rows=(PutOutcome(outcome(other.root_id, "failed", idempotency_key="d")),))])
    assert await listed(namespace=DEFAULT_NAMESPACE) == "cba"
