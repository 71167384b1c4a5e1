"""Events: every transition is listed by seq, regardless of its table, with the namespace of its entity."""

from __future__ import annotations

from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Discard, Redrive
from treadle.model.names import QueueKey
from treadle_conformance.histories import START, put_run
from treadle_conformance.task_steps import MINUTE, claim_one, fail, get, put_and_claim, put_one, requeue, seen, settle, succeed

LAST = 2**63 - 1


async def events_of(store: Store, after: int = 0, until: int = LAST, limit: int = 100) -> list[tuple[str | None, str, str]]:
    found = await store.log.list_events(after, until, limit)
    assert [event.transition.seq for event in found] == sorted({event.transition.seq for event in found})
    return [(event.namespace, event.transition.entity, event.transition.transition) for event in found]


async def test_transitions_of_live_and_finished_tasks_and_of_runs_are_merged_by_seq(store):
    task = await put_and_claim(store)
    await settle(store, task.claim, requeue(task, "retry", attempt=2))
    await put_run(store, START)
    await settle(store, (await claim_one(store)).claim, fail())
    await settle(store, seen(await get(store, task.id)), Redrive("requeue", "ann"))
    await settle(store, (await claim_one(store)).claim, fail())
    await settle(store, seen(await get(store, task.id)), Discard("discard", "canceled", "ann"))
    transitions = [("default", "task", transition) for transition in ("retry", "fail", "requeue", "fail", "discard")]
    assert await events_of(store) == [transitions[0], ("default", "run", "start"), *transitions[1:]]
    listed = {
        event.transition.seq: event.transition
        for event in await store.log.list_events(0, LAST, 100)
        if event.transition.entity == "task"
    }
    assert list(listed.values()) == await store.log.list_transitions(task.id)


async def test_events_are_paged_by_seq(store):
    for _ in range(5):
        await settle(store, (await put_and_claim(store)).claim, succeed())
    found = await store.log.list_events(0, LAST, 100)
    seqs = [event.transition.seq for event in found]
    assert [event.transition.seq for event in await store.log.list_events(seqs[1], LAST, 2)] == seqs[2:4]
    assert [event.transition.seq for event in await store.log.list_events(seqs[1], seqs[2], 100)] == [seqs[2]]
    assert await store.log.list_events(seqs[-1], LAST, 10) == await store.log.list_events(0, LAST, 0) == []
    assert await store.log.find_last_seq() >= seqs[-1]


async def test_events_have_the_namespace_of_live_and_finished_tasks(store):
    queue = QueueKey("elsewhere", "handler", "default", "work")
    task = await put_and_claim(store, queue=queue)
    await settle(store, task.claim, requeue(task))
    await settle(store, (await put_and_claim(store)).claim, succeed())
    assert await events_of(store) == [("elsewhere", "task", "wait"), ("default", "task", "succeed")]
    await settle(store, (await claim_one(store, queue)).claim, succeed())
    assert [namespace for namespace, _, _ in await events_of(store)] == ["elsewhere", "default", "elsewhere"]


async def test_changes_by_operators_are_listed_apart_from_those_of_workers(store, clock):
    worker = "01935b8e-7c3a-7000-8000-000000000000"
    worked = await put_and_claim(store, owner=worker)
    await settle(store, worked.claim, fail())
    await settle(store, seen(await get(store, worked.id)), Redrive("requeue", "ann"))
    await settle(store, (await claim_one(store, owner=worker)).claim, fail())
    await put_run(store, START)
    await clock.advance(MINUTE)
    half = await store.now()
    await settle(store, seen(await get(store, worked.id)), Discard("discard", "canceled", "ben"))

    async def changes(before=LAST, actor=None, since=0, until=LAST, limit=10):
        events = await store.log.list_changes(before, actor, since, until, limit)
        return [(event.transition.seq, event.namespace, event.transition.actor, event.transition.transition) for event in events]

    (last, *discard), (first, *requeue) = await changes()
    assert (discard, requeue) == (["default", "ben", "discard"], ["default", "ann", "requeue"])
    assert [seq for seq, *_ in await changes(limit=1)] == [seq for seq, *_ in await changes(actor="ben")] == [last]
    assert [seq for seq, *_ in await changes(before=last)] == [seq for seq, *_ in await changes(until=half)] == [first]
    assert [seq for seq, *_ in await changes(since=half)] == [last]
    assert await changes(actor="eve") == await changes(limit=0) == []


async def test_an_empty_store_has_no_events(store):
    await put_one(store)
    assert (await store.log.list_events(0, LAST, 10), await store.log.find_last_seq()) == ([], 0)


# --- tallies ---
