"""All rows of a namespace: read, written to another place, and removed."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.kernel.store.namespace_copy import NamespaceRows
from treadle.kernel.store.namespace_tables import BY_NAME, REMOVAL, SETTINGS, TABLES
from treadle.kernel.store.units import PutBlob, Unit
from treadle.model.errors import NamespaceMoved
from treadle.model.names import Lane
from treadle_conformance.task_steps import MINUTE, get, park, put_and_claim, put_one, settle, succeed

RED, BLUE = (Lane(namespace, "handler", "default", "work") for namespace in ("red", "blue"))


async def read_all(store: Any, namespace: str, table: str, limit: int) -> list[dict[str, Any]]:
    rows, after = [], None
    while True:
        page = await store.read_rows(namespace, table, after, limit)
        rows += page.rows
        if page.next_after is None:
            return rows
        after = page.next_after


def test_every_table_of_a_namespace_is_removed_or_kept_on_purpose():
    assert {*REMOVAL, *SETTINGS} == set(BY_NAME) == {table.name for table in TABLES}


async def test_the_rows_of_a_namespace_are_read_in_pages_without_those_of_others(store):
    mine = {(await put_one(store, RED)).id for _ in range(5)}
    for _ in range(3):
        await put_one(store, BLUE)
    for limit in (1, 2, 3, 100):
        assert {row["id"] for row in await read_all(store, "red", "tasks", limit)} == mine
    assert await read_all(store, "green", "tasks", 2) == []


async def test_removed_rows_can_be_written_again_as_they_were(store):
    done = await put_and_claim(store, lane=RED)
    assert await settle(store, done.claim, succeed())
    big = PutBlob("d" * 64, "v" * 100, (await put_one(store, RED)).id)
    await store.commit([Unit(rows=(big,))])
    await put_one(store, BLUE)
    rows = NamespaceRows(store, "red")
    before, others = await rows.digest(), await NamespaceRows(store, "blue").digest()
    pages = [page async for page in rows.pages()]
    await rows.remove()
    assert (await rows.digest()).rows == {}
    assert (await NamespaceRows(store, "blue").digest()).differences(others) == []
    for table, page in pages:
        await rows.write(table, page)
    assert (await rows.digest()).differences(before) == []


async def test_namespaces_are_listed_and_their_held_tasks_counted(store):
    assert await store.list_namespaces() == []
    await put_and_claim(store, lane=RED)
    await put_one(store, BLUE)
    assert await store.list_namespaces() == ["blue", "red"]
    assert (await store.count_held("red"), await store.count_held("blue")) == (1, 0)


async def test_reserved_numbers_are_not_given_to_moves(store):
    first = await store.reserve_seqs(1000)
    assert first >= await store.find_last_seq() - 1000
    task = await put_and_claim(store, lane=RED)
    await settle(store, task.claim, succeed())
    (row,) = await read_all(store, "red", "finished", 10)
    assert row["seq"] > first + 1000


async def test_the_work_of_a_fenced_namespace_does_not_change(store, clock):
    held, waiting = await put_and_claim(store, lane=RED), await put_one(store, RED, delay=MINUTE)
    others = await put_and_claim(store, lane=BLUE)
    for _ in range(2):
        await store.fence_namespace("red", "sqlite:///new.db")
    before = await NamespaceRows(store, "red").digest()
    with pytest.raises(NamespaceMoved):
        await put_one(store, RED)
    with pytest.raises(NamespaceMoved):
        await settle(store, held.claim, succeed())
    with pytest.raises(NamespaceMoved):
        await settle(store, held.claim, park(held, "retry"))
    assert (await NamespaceRows(store, "red").digest()).differences(before) == []
    assert await settle(store, others.claim, succeed())
    await put_one(store, BLUE, delay=MINUTE)
    await clock.advance(MINUTE)
    await store.wake(100)  # it wakes tasks of all namespaces
    assert (await get(store, waiting.id)).wake_at is None
    await NamespaceRows(store, "red").remove()
    assert (await NamespaceRows(store, "red").digest()).rows == {}


async def test_a_namespace_that_is_no_longer_fenced_goes_on(store):
    held = await put_and_claim(store, lane=RED)
    await store.fence_namespace("red", "sqlite:///new.db")
    await store.fence_namespace("blue", "sqlite:///other.db")
    for _ in range(2):
        await store.unfence_namespace("red")
    assert await settle(store, held.claim, succeed())
    with pytest.raises(NamespaceMoved):
        await put_one(store, BLUE)
    await store.unfence_namespace("blue")
    await put_one(store, BLUE)
