"""Callers are told of what is their own: of their namespace, and of the lists that they are held to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.errors import raises_code

from treadle.api.flows import SourceText
from treadle.api.tasks import TaskRequest
from treadle.engine import Engine
from treadle.engine.operations import Operations
from treadle.model.access import OPEN, Access, Scope, granted
from treadle.settings import Settings

SOURCES = [
    SourceText("a.afl", "/** Ours alone. */\nnamespace a {\n  workflow W(n: Long) => (n: Long) andThen { yield W(n = $.n) }\n}\n")
]
SAME = [SourceText("b.afl", "namespace a {\n  workflow W(n: Long) => (n: Long) andThen { yield W(n = $.n) }\n}\n")]
COOK = Access("cook", granted([Scope.OPERATE]), ("kitchen",))


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[tuple[Operations, Operations]]:
    """Two namespaces of one store."""
    url = f"sqlite:///{tmp_path / 'one.db'}"
    async with Engine(url) as ours, Engine(url, settings=Settings(namespace="theirs")) as theirs:
        yield Operations(ours, OPEN), Operations(theirs, OPEN)


async def test_a_flow_is_not_read_by_its_digest_from_another_namespace(both: tuple[Operations, Operations]):
    ours, theirs = both
    digest = (await ours.flows.publish("shop", SOURCES)).flow_id
    assert (await ours.flows.get(digest)).id == digest
    for call in (theirs.flows.get, theirs.flows.graph, theirs.runs.start):
        with raises_code("flow_not_found"):
            await call(digest)


async def test_two_namespaces_can_share_a_flow(both: tuple[Operations, Operations]):
    ours, theirs = both
    digest = (await ours.flows.publish("shop", SAME)).flow_id
    run = await theirs.runs.start_from_source(SAME, inputs={"n": 1})
    assert run.flow_id == digest
    assert (await theirs.flows.get(digest)).id == digest
    assert (await theirs.runs.start(digest, inputs={"n": 2})).flow_id == digest


async def test_a_namespace_owns_a_flow_once_any_version_is_published_there(both: tuple[Operations, Operations]):
    ours, theirs = both
    digest = (await ours.flows.publish("shop", SAME)).flow_id
    await theirs.flows.publish("mine", SAME)
    await theirs.flows.publish("mine", [SourceText("c.afl", SAME[0].text.replace("W", "V"))])
    assert (await theirs.flows.get(digest)).id == digest


async def test_handlers_are_neither_seen_nor_removed_from_another_namespace(both: tuple[Operations, Operations]):
    ours, theirs = both
    await ours.handlers.register("a.Boil", "not_yet_written", entrypoint="loads")
    assert (await theirs.handlers.list()).handlers == []
    for call in (theirs.handlers.get, theirs.handlers.remove, theirs.handlers.test):
        with raises_code("handler_not_found"):
            await call("a.Boil")
    await theirs.handlers.register("a.Boil", "not_yet_written", entrypoint="dumps")
    await theirs.handlers.remove("a.Boil")
    assert (await ours.handlers.get("a.Boil")).entrypoint == "loads"


@pytest.mark.parametrize("key", ["unique_key", "idempotency_key"])
async def test_a_key_conflict_hides_the_task_of_another_list(key: str):
    async with Engine("memory://") as engine:
        everybody, cook = Operations(engine, OPEN), Operations(engine, COOK)
        other = await everybody.tasks.enqueue("greet", **{key: "k"})
        with raises_code("key_taken") as refused:
            await cook.tasks.enqueue("greet", task_list="kitchen", **{key: "k"})
        with raises_code("key_taken"):
            await cook.tasks.enqueue_many([TaskRequest("greet", task_list="kitchen", **{key: "k"})])
        assert other.id not in str(refused.value)
        with raises_code("key_taken"):
            await cook.tasks.enqueue_many(
                [TaskRequest("greet", task_list="kitchen"), TaskRequest("greet", task_list="kitchen", **{key: "k"})]
            )
        assert [task.id for task in await engine.kernel.reads.list_tasks(kind="handler")] == [other.id]
        own = await cook.tasks.enqueue("greet", task_list="kitchen", **{key: "own"})
        again = await cook.tasks.enqueue("greet", task_list="kitchen", **{key: "own"})
        assert (own.created, again.created, again.id) == (True, False, own.id)
