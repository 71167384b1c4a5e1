"""Namespaces as a whole."""

from __future__ import annotations

from treadle.model.names import Lane
from treadle_conformance.task_steps import put_and_claim, put_one

RED, BLUE = (Lane(namespace, "handler", "default", "work") for namespace in ("red", "blue"))


async def test_namespaces_with_work_are_listed(store):
    assert await store.list_namespaces() == []
    await put_and_claim(store, lane=RED)
    await put_one(store, BLUE)
    assert await store.list_namespaces() == ["blue", "red"]
