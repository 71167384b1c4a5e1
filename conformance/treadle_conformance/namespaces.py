"""Namespaces as a whole."""

from __future__ import annotations

from treadle.model.names import QueueKey
from treadle_conformance.task_steps import put_and_claim, put_one

RED, BLUE = (QueueKey(namespace, "handler", "default", "work") for namespace in ("red", "blue"))


async def test_namespaces_with_work_are_listed(store):
    assert await store.namespaces.list_names() == []
    await put_and_claim(store, queue=RED)
    await put_one(store, BLUE)
    assert await store.namespaces.list_names() == ["blue", "red"]


async def test_the_rows_of_a_namespace_are_exported_without_those_of_others(store):
    tasks = {(await put_one(store, RED)).id for _ in range(3)}
    await put_one(store, BLUE)
    rows = []
    await store.namespaces.export_rows("red", lambda table, row: rows.append((table, row)))
    assert {row["id"] for table, row in rows if table == "tasks"} == tasks
    assert {row["namespace"] for _, row in rows if "namespace" in row} == {"red"}
    assert all(row["queue"] == ["handler", "default", "work"] for table, row in rows if table == "tasks")
    nothing = []
    await store.namespaces.export_rows("green", lambda table, row: nothing.append(row))
    assert nothing == []
