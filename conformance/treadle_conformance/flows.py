"""Flows, their versions, and large values."""

from __future__ import annotations

import asyncio

from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import PutBlob, PutFlow, Unit
from treadle.model.runs import Flow
from treadle_conformance.run_steps import begin, new_run
from treadle_conformance.suite import StoreClock, StoreHarness


def flow(name: str, sources: str = "[]") -> Flow:
    return Flow(id=name * 16, sources=sources, program='{"p":1}')


async def put(store: Store, *flows: Flow) -> None:
    await store.commit([Unit(rows=tuple(PutFlow(each) for each in flows))])


async def test_a_flow_is_stored_once(store: Store, clock: StoreClock) -> None:
    await put(store, flow("aaaa"))
    await put(store, flow("aaaa", sources='["other"]'), flow("bbbb"))
    found = await store.runs.find_flow("aaaa" * 16)
    assert found is not None
    assert (found.sources, found.program, found.namespace, found.created_at) == ("[]", '{"p":1}', "default", clock.now())
    assert await store.runs.find_flow("nothing") is None


async def test_a_damaged_flow_can_be_replaced(store: Store, clock: StoreClock) -> None:
    await put(store, flow("aaaa", sources="[dam"), flow("bbbb"))
    made_at = clock.now()
    await clock.advance(5)
    await store.commit([Unit(rows=(PutFlow(flow("aaaa", sources='["new"]'), anew=True),)), Unit(rows=(PutFlow(flow("aaaa")),))])
    found, other = await store.runs.find_flow("aaaa" * 16), await store.runs.find_flow("bbbb" * 16)
    assert found is not None
    assert other is not None
    assert (found.sources, found.created_at, other.sources) == ('["new"]', made_at, "[]")


async def test_versions_count_by_name_and_namespace(store: Store, clock: StoreClock) -> None:
    one, two = flow("aaaa"), flow("bbbb")
    await put(store, one, two)
    first = await store.operators.publish_flow("default", "shop", one.id, "ann")
    assert (first.version, first.flow_id, first.actor, first.published_at) == (1, one.id, "ann", clock.now())
    assert (await store.operators.publish_flow("default", "shop", one.id, "bob")) == first
    assert (await store.operators.publish_flow("default", "shop", two.id, "ann")).version == 2
    assert (await store.operators.publish_flow("default", "shop", one.id, "ann")).version == 3
    assert (await store.operators.publish_flow("other", "shop", two.id, "ann")).version == 1
    assert (await store.operators.publish_flow("default", "bank", two.id, "ann")).version == 1
    newest = await store.runs.find_flow_version("default", "shop")
    assert newest is not None
    assert (newest.version, newest.flow_id) == (3, one.id)
    older = await store.runs.find_flow_version("default", "shop", 2)
    assert older is not None
    assert older.flow_id == two.id
    assert await store.runs.find_flow_version("default", "shop", 9) is None
    assert await store.runs.find_flow_version("default", "none") is None
    assert [(each.name, each.version) for each in await store.runs.list_flow_versions("default")] == [("bank", 1), ("shop", 3)]
    assert [each.version for each in await store.runs.list_flow_versions("default", "shop")] == [3, 2, 1]


async def test_concurrent_publications_get_distinct_versions(store: Store) -> None:
    flows = [flow(f"{number:04}") for number in range(6)]
    await put(store, *flows)
    versions = await asyncio.gather(*(store.operators.publish_flow("default", "shop", each.id, "ann") for each in flows))
    listed = await store.runs.list_flow_versions("default", "shop")
    assert sorted(each.version for each in listed) == [1, 2, 3, 4, 5, 6]
    assert {(each.version, each.flow_id) for each in versions} == {(each.version, each.flow_id) for each in listed}


async def test_a_big_value_is_stored_once_and_its_users_are_noted(store: Store, database: StoreHarness) -> None:
    one, two = await begin(store, "W"), await begin(store, "W")
    rows = (PutBlob("d1", '"first"', one.id), PutBlob("d1", '"again"', two.id), PutBlob("d2", '"2"', one.id))
    await store.commit([Unit(rows=rows)])
    await store.commit([Unit(rows=rows)])
    assert await store.runs.find_blobs(["d1", "d2", "d3", "d1"]) == {"d1": '"first"', "d2": '"2"'}
    assert await store.runs.find_blobs([]) == {}
    if not hasattr(database, "path") and not hasattr(database, "admin"):
        return  # a database in memory has no other way in
    uses = sorted((str(row["root_id"]), row["digest"]) for row in database.rows("blob_uses"))
    assert uses == sorted([(one.id, "d1"), (two.id, "d1"), (one.id, "d2")])


async def test_concurrent_writes_of_the_same_values_do_not_deadlock(store: Store) -> None:
    runs = [new_run() for _ in range(8)]
    order = ["d1", "d2", "d3"]
    units = [
        Unit(rows=tuple(PutBlob(digest, '"x"', run.id) for digest in (order if number % 2 else order[::-1])))
        for number, run in enumerate(runs)
    ]
    answers = await asyncio.gather(*(store.commit([unit]) for unit in units))
    assert {answer.verdict for (answer,) in answers} == {"done"}
    assert set(await store.runs.find_blobs(order)) == set(order)
