"""Records: created once, changed at their last version only, found by id, name and state, and explained by the log."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from treadle.kernel.store.records import ChangeRecord, PutItems, PutRecord, RecordFilter
from treadle.kernel.store.retention import KEEP_RECORDS_FOR
from treadle.kernel.store.units import Unit
from treadle.kernel.store.verify import verify
from treadle.model.errors import IllegalTransition, InvalidInput
from treadle.model.states import MACHINES
from treadle.model.tasks import Claim
from treadle_conformance.record_steps import approve, get_record, new_record, new_schedule, put_record, write
from treadle_conformance.run_steps import begin, unit_of
from treadle_conformance.task_steps import UNKNOWN_ID, put_and_claim, put_one, succeed


def edit(record, **fields):
    return ChangeRecord(**{"record_id": record.id, "version": record.version, "document": '{"edited":1}'} | fields)


def remove(record, **fields):
    values = {"transition": "remove", "from_state": "active", "to_state": "removed", "ended": True, "actor": "ann"}
    return edit(record, **values | fields)


async def test_a_new_record_round_trips_at_version_0(store, clock):
    task, run = await put_one(store), await begin(store)
    given = new_record(name="n", task_id=task.id, run_id=run.id, root_id=run.id, trace_id="t", document='{"ü":1}', namespace="shop")
    assert await put_record(store, given) == msgspec.structs.replace(given, created_at=clock.now(), updated_at=clock.now())


async def test_finding_a_record_of_an_unknown_id_or_name_returns_none(store):
    assert await store.records.find(UNKNOWN_ID) is None
    assert await store.records.find_named("default", "schedule", "nothing") is None


async def test_an_existing_record_refuses_its_unit_and_is_unchanged(store):
    record = await put_record(store)
    other = new_record()
    again = msgspec.structs.replace(record, document='{"other":1}')
    answer = await write(store, PutRecord(other), PutRecord(again))
    assert (answer.verdict, answer.existing) == ("done", {})
    assert await get_record(store, record.id) == record
    assert await store.records.find(other.id) is None


async def test_a_name_that_a_live_record_has_refuses_the_whole_unit(store):
    first = await put_record(store, new_schedule())
    task = await put_and_claim(store)
    other = new_record()
    unit = Unit(task.claim, succeed(), rows=(PutRecord(other), PutRecord(new_schedule())))
    (answer,) = await store.commit([unit])
    assert (answer.verdict, answer.existing) == ("done", {"nightly": first.id})
    assert await store.records.find(other.id) is None
    assert (await store.tasks.find(task.id)).owner_id == "owner-1"


async def test_names_are_unique_per_namespace_and_entity_among_the_live(store):
    first = await put_record(store, new_schedule())
    await put_record(store, new_schedule(namespace="shop"))
    await put_record(store, new_record(entity="watcher", state="active", name="nightly"))
    await write(store, remove(first))
    second = await put_record(store, new_schedule())
    assert (await store.records.find_named("default", "schedule", "nightly")).id == second.id
    assert (await get_record(store, first.id)).ended_at is not None


@pytest.mark.parametrize("together", [True, False])
async def test_ending_a_record_frees_its_name_for_a_new_one(store, together):
    first, second = await put_record(store, new_schedule()), new_schedule()
    rows = (PutRecord(second), remove(first))
    units = [Unit(rows=rows)] if together else [Unit(rows=rows[1:]), Unit(rows=rows[:1])]
    assert {(answer.verdict, len(answer.existing)) for answer in await store.commit(units)} == {("done", 0)}
    assert (await store.records.find_named("default", "schedule", "nightly")).id == second.id


async def test_a_unit_cannot_make_two_records_of_one_name(store):
    with pytest.raises(InvalidInput):
        await write(store, PutRecord(new_schedule()), PutRecord(new_schedule()))
    assert await store.records.list_matching(RecordFilter("schedule"), 10) == []


async def test_of_two_units_in_one_call_the_first_gets_the_name(store):
    first, second = new_schedule(), new_schedule()
    answers = await store.commit([Unit(rows=(PutRecord(first),)), Unit(rows=(PutRecord(second),))])
    assert [answer.existing for answer in answers] == [{}, {"nightly": first.id}]
    assert await store.records.find(second.id) is None


async def test_concurrent_records_of_one_name_have_one_winner(database, store):
    other = await database.open_store()
    records = [new_schedule() for _ in range(20)]
    stores = [store, other] * 10
    answers = await asyncio.gather(*(write(each, PutRecord(r)) for each, r in zip(stores, records, strict=True)))
    (first,) = [record for record, answer in zip(records, answers, strict=True) if not answer.existing]
    assert {answer.existing.get("nightly", first.id) for answer in answers} == {first.id}
    assert [record.id for record in await store.records.list_matching(RecordFilter("schedule"), 100)] == [first.id]


async def test_a_change_raises_the_version_and_without_a_transition_leaves_no_trace(store, clock):
    record = await put_record(store)
    task = await put_one(store)
    await clock.advance(5)
    assert (await write(store, edit(record, task_id=task.id))).verdict == "done"
    changed = await get_record(store, record.id)
    assert changed == msgspec.structs.replace(
        record, version=1, document='{"edited":1}', task_id=task.id, updated_at=record.created_at + 5
    )
    assert await store.log.list_transitions(record.id) == []
    assert (await verify(store)).problems == ()


async def test_a_change_of_a_version_that_moved_on_defers_the_whole_unit(store):
    record = await put_record(store)
    await write(store, edit(record))
    task = await put_and_claim(store)
    other = new_record()
    unit = Unit(task.claim, succeed(), rows=(PutRecord(other), edit(record)))
    (answer,) = await store.commit([unit])
    assert answer.verdict == "deferred"
    assert await store.records.find(other.id) is None
    assert (await get_record(store, record.id)).version == 1
    assert (await store.tasks.find(task.id)).state == "pending"


async def test_a_change_of_a_record_that_is_gone_is_deferred(store):
    assert (await write(store, edit(new_record()))).verdict == "deferred"


async def test_a_unit_that_was_committed_before_is_done_though_the_record_moved_on(store):
    record = await put_record(store)
    task = await put_and_claim(store)
    unit = Unit(task.claim, succeed(), rows=(edit(record),))
    answers = [(await store.commit([unit]))[0].verdict for _ in range(2)]
    assert answers == ["done", "done"]
    assert (await get_record(store, record.id)).version == 1


async def test_a_unit_with_a_new_record_that_was_sent_before_is_done_though_another_record_moved_on(store):
    record, new = await put_record(store), new_record()
    rows = (PutRecord(new), edit(record))
    assert [(await write(store, *rows)).verdict for _ in range(2)] == ["done", "done"]
    assert (await get_record(store, record.id)).version == 1


async def test_the_second_of_two_units_sees_the_effects_of_the_first(store):
    record = await put_record(store)
    same = [Unit(rows=(edit(record),)), Unit(rows=(edit(record, document="{}"),))]
    assert [answer.verdict for answer in await store.commit(same)] == ["done", "deferred"]
    after = [Unit(rows=(edit(record, version=1),)), Unit(rows=(edit(record, version=2, document='{"last":1}'),))]
    assert [answer.verdict for answer in await store.commit(after)] == ["done", "done"]
    found = await get_record(store, record.id)
    assert (found.version, found.document) == (3, '{"last":1}')


async def test_a_unit_may_make_a_record_and_change_it(store):
    record = new_schedule()
    rows = (PutRecord(record), edit(record, transition="fire", from_state="active", to_state="active"), remove(record, version=1))
    assert (await write(store, *rows)).verdict == "done"
    found = await get_record(store, record.id)
    assert (found.state, found.version, found.transitions) == ("removed", 2, 2)
    assert (await verify(store)).problems == ()


async def test_a_refused_unit_leaves_the_version_to_the_next(store):
    taken, record = await put_record(store, new_schedule()), await put_record(store)
    refused = Unit(rows=(PutRecord(new_schedule()), edit(record, document='{"refused":1}')))
    answers = await store.commit([refused, Unit(rows=(edit(record),)), Unit(rows=(edit(record, version=1),))])
    assert [answer.verdict for answer in answers] == ["done", "done", "done"]
    assert answers[0].existing == {"nightly": taken.id}
    assert (await get_record(store, record.id)).version == 2


async def test_concurrent_edits_of_one_version_have_one_winner(database, store):
    other = await database.open_store()
    record = await put_record(store)
    stores = [store, other] * 10
    answers = await asyncio.gather(*(write(each, edit(record)) for each in stores))
    assert sorted(answer.verdict for answer in answers) == ["deferred"] * 19 + ["done"]
    assert (await get_record(store, record.id)).version == 1


async def test_a_transition_is_logged_with_its_full_context(store, clock):
    run = await begin(store)
    record = await put_record(store, run_id=run.id, root_id=run.root_id, trace_id="t")
    vote = edit(record, transition="vote", from_state="pending", to_state="pending", actor="bob", data='{"for":1}')
    await write(store, vote)
    await clock.advance(7)
    await write(store, approve(record, version=1))
    found = await get_record(store, record.id)
    assert (found.state, found.version, found.transitions, found.ended_at) == ("approved", 2, 2, clock.now())
    first, second = await store.log.list_transitions(record.id)
    assert (first.entity, first.entity_id, first.version, first.transition, first.actor) == (
        "approval",
        record.id,
        1,
        "vote",
        "bob",
    )
    assert (first.from_state, first.to_state, first.data, first.claim_version) == ("pending", "pending", '{"for":1}', None)
    assert (first.run_id, first.root_id, first.trace_id) == (run.id, run.id, "t")
    assert (second.version, second.transition, second.to_state, second.at) == (2, "approve", "approved", clock.now())
    assert first.seq < second.seq
    history = next(each for each in await store.log.list_histories(None, 100) if each.entity_id == record.id)
    assert (history.entity, history.state, history.version) == ("approval", "approved", 2)
    assert (await verify(store)).problems == ()


async def test_the_transitions_of_a_record_are_events_of_its_namespace(store):
    record = await put_record(store, namespace="shop")
    await write(store, approve(record))
    (event,) = [event for event in await store.log.list_events(0, 1000, 100) if event.transition.entity_id == record.id]
    assert (event.namespace, event.transition.transition) == ("shop", "approve")


async def test_a_transition_from_another_state_raises_without_effect(store):
    record = await put_record(store)
    with pytest.raises(IllegalTransition):
        await write(store, PutRecord(new_record()), approve(record, from_state="approved"))
    assert await store.records.list_matching(RecordFilter("approval"), 10) == [record]


async def test_records_are_listed_newest_first_and_filtered_by_subject(store):
    run, task = await begin(store), await put_one(store)
    first = await put_record(store, run_id=run.id, root_id=run.id)
    second = await put_record(store, task_id=task.id)
    third = await put_record(store, namespace="shop")
    await put_record(store, new_schedule())
    await write(store, approve(first))

    async def found(limit: int = 10, **fields: object) -> list[str]:
        return [record.id for record in await store.records.list_matching(RecordFilter("approval", **fields), limit)]

    assert await found() == [third.id, second.id, first.id]
    assert await found(2) == [third.id, second.id]
    assert await found(0) == []
    assert await found(before_id=third.id) == [second.id, first.id]
    assert await found(namespace="default") == [second.id, first.id]
    assert await found(live=True) == [third.id, second.id]
    assert await found(live=True, namespace="default") == [second.id]
    assert await found(live=False) == [first.id]
    assert await found(states=("approved", "denied")) == [first.id]
    assert await found(states=("pending",), namespace="default", live=True) == [second.id]
    assert await found(run_id=run.id) == [first.id]
    assert await found(run_id=run.id, live=True) == []
    assert await found(task_id=task.id) == [second.id]
    assert await found(task_id=task.id, run_id=run.id) == []
    assert await found(task_id=task.id, states=("denied",)) == []
    assert await store.records.count("default", "approval") == {"approved": 1, "pending": 1}
    assert await store.records.count("nowhere", "approval") == {}


async def test_items_are_kept_replaced_and_removed_by_key(store):
    record, other = await put_record(store), await put_record(store)
    await write(store, PutItems(other.id, (("a", "of another"),)))
    await write(store, PutItems(record.id, (("b", "1"), ("a", "2"), ("Z", "3"), ("ü", "4"), ("\U0001f600", "5"))))
    await write(store, PutItems(record.id, (("b", "new"), ("a", None), ("c", "6"))))
    everything = [("Z", "3"), ("b", "new"), ("c", "6"), ("ü", "4"), ("\U0001f600", "5")]
    assert await store.records.list_items(record.id, None, 10) == everything
    assert await store.records.list_items(record.id, None, 2) == everything[:2]
    assert await store.records.list_items(record.id, "b", 2) == everything[2:4]
    assert dict(await store.records.list_items(record.id, keys=["a", "b", "ü", "x"])) == {"b": "new", "ü": "4"}
    assert await store.records.list_items(record.id, keys=[]) == []


async def test_items_are_stored_only_with_their_record(store):
    record = new_record()
    await write(store, PutRecord(record), PutItems(record.id, (("a", "1"),)))
    assert await store.records.list_items(record.id, None, 10) == [("a", "1")]
    assert (await write(store, PutItems(UNKNOWN_ID, (("a", "1"),)))).verdict == "done"
    assert await store.records.list_items(UNKNOWN_ID, None, 10) == []


async def test_items_and_records_of_a_lost_claim_are_not_stored(store):
    task, record, new = await put_and_claim(store), await put_record(store), new_record()
    rows = (PutRecord(new), PutItems(record.id, (("a", "2"),)))
    units = [
        Unit(task.claim, rows=(PutItems(record.id, (("a", "1"),)),)),
        Unit(Claim(task.id, task.claim_version, "owner-2"), rows=rows),
        Unit(Claim(task.id, task.claim_version - 1, "owner-1"), rows=rows),
    ]
    assert [answer.verdict for answer in await store.commit(units)] == ["done", "claim_lost", "claim_lost"]
    assert await store.records.list_items(record.id, None, 10) == [("a", "1")]
    assert await store.records.find(new.id) is None


async def test_a_record_is_written_with_the_run_that_it_follows_from_or_not_at_all(store):
    run, record = await begin(store), await put_record(store)
    late = unit_of(run, version=run.version + 1, rows=(PutRecord(new_record()), approve(record)))
    good = unit_of(run, rows=(approve(record),))
    answers = await store.commit([late, good])
    assert [answer.verdict for answer in answers] == ["deferred", "done"]
    assert [each.state for each in await store.records.list_matching(RecordFilter("approval"), 10)] == ["approved"]


async def test_the_database_itself_refuses_illegal_transitions(database, store):
    run, record = await begin(store), await put_record(store, new_schedule())
    for statement in (
        f"update runs set state = 'pending' where id = '{run.id}'",
        f"update records set state = 'nonsense' where id = '{record.id}'",
        f"update records set state = 'expired' where id = '{record.id}'",
    ):
        with pytest.raises(Exception, match="cannot"):
            database.execute(statement)
    database.execute(f"update records set state = 'paused' where id = '{record.id}'")
    assert (await get_record(store, record.id)).state == "paused"


async def test_the_database_accepts_only_the_transitions_of_the_model(database, store):
    stored = {(row["entity"], row["from_state"], row["to_state"]) for row in database.rows("legal_transitions")}
    machines = [machine for machine in MACHINES.values() if machine.entity not in ("task", "step")]
    assert stored == {
        (machine.entity, source, target)
        for machine in machines
        for (source, _), target in machine.transitions.items()
        if source != target
    }


async def test_records_of_no_tree_go_long_after_their_end(store, clock):
    live, ended = await put_record(store, new_schedule("live")), await put_record(store, new_schedule("ended"))
    of_tree = await put_record(store, root_id=UNKNOWN_ID)
    await write(store, PutItems(ended.id, (("a", "1"),)))
    await store.commit([Unit(rows=(remove(ended),)), Unit(rows=(approve(of_tree),))])
    await clock.advance(KEEP_RECORDS_FOR - 1)
    assert await store.retention.prune_rest(10, 1_000, KEEP_RECORDS_FOR) == (0, 0, 0)
    await clock.advance(1)
    assert await store.retention.prune_rest(10, 1_000, KEEP_RECORDS_FOR) == (0, 0, 1)
    assert await store.records.find(ended.id) is None
    assert await store.log.list_transitions(ended.id) == []
    assert await store.records.list_items(ended.id, None, 10) == []
    assert await store.records.find(live.id) is not None
    assert await store.records.find(of_tree.id) is not None
