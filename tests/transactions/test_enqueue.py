"""Enqueueing inside a caller's own transaction: a rollback enqueues nothing, a commit exactly once, with every driver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from tests.engines import make_engine
from tests.limits import BOUND

import treadle.integrations.enqueue.asyncpg
import treadle.integrations.enqueue.psycopg
import treadle.integrations.enqueue.sqlalchemy
from treadle import Engine, Enqueued
from treadle.kernel.queue.decide import policy_of
from treadle.kernel.store.queries import TaskFilter
from treadle.model.errors import (
    BacklogFull,
    IdempotencyKeyReused,
    InvalidInput,
    ListDraining,
    SchemaBehind,
    TreadleError,
    Unsupported,
)

Enqueue = Callable[..., Awaitable[Enqueued]]


class Rollback(Exception):
    """Ends a transaction without a commit."""


@asynccontextmanager
async def by_asyncpg(server: str) -> AsyncIterator[Enqueue]:
    connection = await asyncpg.connect(server)
    try:
        async with connection.transaction():
            yield lambda *given, **options: treadle.integrations.enqueue.asyncpg.enqueue(connection, *given, **options)
    finally:
        await connection.close()


@asynccontextmanager
async def by_psycopg(server: str) -> AsyncIterator[Enqueue]:
    with psycopg.connect(server, row_factory=dict_row) as connection, connection.transaction():

        async def enqueue(*given: Any, **options: Any) -> Enqueued:
            return treadle.integrations.enqueue.psycopg.enqueue(connection, *given, **options)

        yield enqueue


@asynccontextmanager
async def by_psycopg_async(server: str) -> AsyncIterator[Enqueue]:
    async with await psycopg.AsyncConnection.connect(server) as connection, connection.transaction():
        yield lambda *given, **options: treadle.integrations.enqueue.psycopg.enqueue_async(connection, *given, **options)


def _address(server: str, driver: str) -> str:
    return server.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def by_sqlalchemy(server: str) -> AsyncIterator[Enqueue]:
    engine = sqlalchemy.create_engine(_address(server, "psycopg"))
    try:
        with engine.begin() as connection:

            async def enqueue(*given: Any, **options: Any) -> Enqueued:
                return treadle.integrations.enqueue.sqlalchemy.enqueue(connection, *given, **options)

            yield enqueue
    finally:
        engine.dispose()


@asynccontextmanager
async def by_sqlalchemy_session(server: str) -> AsyncIterator[Enqueue]:
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine(_address(server, "psycopg"))
    try:
        with Session(engine) as session, session.begin():

            async def enqueue(*given: Any, **options: Any) -> Enqueued:
                return treadle.integrations.enqueue.sqlalchemy.enqueue(session, *given, **options)

            yield enqueue
    finally:
        engine.dispose()


@asynccontextmanager
async def by_sqlalchemy_async(server: str) -> AsyncIterator[Enqueue]:
    pytest.importorskip("greenlet")
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(_address(server, "psycopg"))
    try:
        async with engine.begin() as connection:
            yield lambda *given, **options: treadle.integrations.enqueue.sqlalchemy.enqueue_async(connection, *given, **options)
    finally:
        await engine.dispose()


WAYS = [by_asyncpg, by_psycopg, by_psycopg_async, by_sqlalchemy, by_sqlalchemy_session, by_sqlalchemy_async]


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[Engine]:
    async with make_engine(postgres_url) as made:
        yield made


@pytest.fixture(params=WAYS, ids=[way.__name__ for way in WAYS])
def way(request: pytest.FixtureRequest, engine: Engine, postgres_server: str) -> Any:
    return lambda: request.param(postgres_server)


async def tasks_of(engine: Engine) -> list[Any]:
    return await engine.kernel.store.tasks.list_matching(TaskFilter(kind="handler"), 100)


async def test_a_rollback_enqueues_no_task(engine, way, postgres_schema):
    async def give_up() -> None:
        async with way() as enqueue:
            await enqueue("work", {"n": 1}, schema=postgres_schema, idempotency_key="k")
            raise Rollback

    with pytest.raises(Rollback):
        await give_up()
    assert await tasks_of(engine) == []
    assert await engine.kernel.store.tasks.list_queues() == {}
    async with way() as enqueue:
        assert (await enqueue("work", schema=postgres_schema, idempotency_key="k")).created


async def test_a_task_is_visible_only_after_the_commit(engine, way, postgres_schema):
    async with way() as enqueue:
        made = await enqueue("work", {"n": 1, "text": 'ü\\u0000 "x"'}, schema=postgres_schema)
        assert await tasks_of(engine) == []
    (task,) = await tasks_of(engine)
    assert (task.id, made.created, task.name, task.root_id) == (made.id, True, "work", made.id)
    assert await engine.kernel.value_store.unpack(task.payload) == {"n": 1, "text": 'ü\\u0000 "x"'}


async def test_a_worker_executes_a_committed_task_exactly_once(engine, way, postgres_schema):
    ran: list[Any] = []

    @engine.handler("work")
    async def work(payload: Any) -> dict[str, Any]:
        ran.append(payload)
        return {"n": payload["n"] + 1}

    async with way() as enqueue:
        made = await enqueue("work", {"n": 1}, schema=postgres_schema)
    async with engine.worker(), asyncio.timeout(BOUND):
        assert await engine.result(made.id) == {"n": 2}
    assert ran == [{"n": 1}]
    assert (await engine.kernel.verify()).problems == ()


async def test_all_options_are_stored_as_enqueue_stores_them(engine, way, postgres_schema):
    options = {
        "task_list": "slow",
        "delay": 60,
        "priority": -3,
        "unique_key": "u",
        "idempotency_key": "i",
        "limit_key": "l",
        "retry": 3,
        "timeout": 1.5,
        "progress_every": 2,
        "deadline": 600,
        "trace_id": "t",
        "actor": "shop",
    }
    async with way() as enqueue:
        ours = await enqueue("work", {"a": [1, None, 2.5]}, schema=postgres_schema, **options)
    theirs = await engine.enqueue("work", {"a": [1, None, 2.5]}, **options | {"unique_key": "u2", "idempotency_key": "i2"})
    one, other = [(await engine.kernel.reads.get_task(task)) for task in (ours, theirs)]
    for name in type(one).__struct_fields__:
        if name not in ("id", "root_id", "unique_key", "due_at", "wake_at", "created_at", "deadline_at"):
            assert getattr(one, name) == getattr(other, name), name
    assert (one.wake_at - one.created_at, one.deadline_at - one.created_at) == (60_000, 600_000)


async def test_a_used_key_names_the_existing_task(engine, way, postgres_schema):
    live = await engine.enqueue("work", unique_key="u", idempotency_key="i")
    async with way() as enqueue:
        for keys in ({"unique_key": "u"}, {"idempotency_key": "i"}, {"unique_key": "u", "idempotency_key": "new"}):
            assert await enqueue("work", schema=postgres_schema, **keys) == Enqueued(live.id, False)
    assert (await engine.enqueue("work", idempotency_key="new")).id == live.id
    assert len(await tasks_of(engine)) == 1


async def test_a_reused_key_is_rejected_with_the_stored_task_and_the_transaction_continues(engine, way, postgres_schema):
    big = {"n": 1, "big": ["x" * 20_000]}
    stored = await engine.enqueue("work", big, idempotency_key="k")
    async with way() as enqueue:
        assert await enqueue("work", big, schema=postgres_schema, idempotency_key="k") == Enqueued(stored.id, False)
        for name, payload, options in (("work", {"n": 2}, {}), ("other", big, {}), ("work", big, {"task_list": "slow"})):
            with pytest.raises(IdempotencyKeyReused, match=stored.id):
                await enqueue(name, payload, schema=postgres_schema, idempotency_key="k", **options)
        made = await enqueue("work", big, schema=postgres_schema, idempotency_key="new")
    repeated = await engine.enqueue("work", big, idempotency_key="new")
    assert (repeated.id, repeated.created) == (made.id, False)
    assert len(await tasks_of(engine)) == 2


async def test_a_key_of_an_edited_task_counts_as_repeated(engine, way, postgres_schema):
    stored = await engine.enqueue("work", {"n": 1}, idempotency_key="k")
    await engine.kernel.queue.cancel(stored.id)
    await engine.kernel.queue.retry(stored.id, payload={"n": 5})
    async with way() as enqueue:
        assert not (await enqueue("work", {"n": 1}, schema=postgres_schema, idempotency_key="k")).created


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (("no good!",), {}),
        (("work", {"x": float("nan")}), {}),
        (("work", {"x": "\x00"}), {}),
        (("work", [1]), {}),
        (("work",), {"priority": 10**7}),
        (("work",), {"unique_key": ""}),
        (("work",), {"delay": -1}),
        (("work",), {"retry": -1}),
        (("work",), {"task_list": "a b"}),
        (("work",), {"schema": "x; drop table tasks"}),
        (("work", {"x": "y" * 2_000_000}), {}),
    ],
)
async def test_invalid_input_is_refused_before_any_statement(given, options):
    class Unused:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("it was used")

    with pytest.raises(InvalidInput):
        await treadle.integrations.enqueue.asyncpg.enqueue(Unused(), *given, **options)


async def test_a_draining_list_and_a_full_queue_refuse_here_too(engine, way, postgres_schema):
    await engine.kernel.store.operators.set_list("default", "shut", accepting=False)
    await engine.enqueue("work")
    (queue_id,) = await engine.kernel.store.tasks.list_queues()
    await engine.kernel.store.operators.set_backlog_limit(queue_id, 1)
    for options, error in (({"task_list": "shut"}, ListDraining), ({}, BacklogFull)):
        with pytest.raises(error):
            async with way() as enqueue:
                await enqueue("work", schema=postgres_schema, **options)
    async with way() as enqueue:
        await enqueue("work", schema=postgres_schema, delay=60)
    assert len(await tasks_of(engine)) == 2


async def test_a_limit_applies_to_transactionally_enqueued_tasks(engine, way, postgres_schema):
    await engine.kernel.store.operators.set_limit("default", "l", 1)
    async with way() as enqueue:
        for _ in range(3):
            await enqueue("work", schema=postgres_schema, limit_key="l")
    queue_ids = list(await engine.kernel.store.tasks.list_queues())
    taken = []
    for _ in range(4):
        await engine.kernel.store.tasks.wake(100)
        taken += await engine.kernel.store.tasks.claim(queue_ids, "me", 60_000, 10)
    assert len(taken) == 1


async def test_a_database_without_the_function_raises_schema_behind(way):
    with pytest.raises(SchemaBehind):
        async with way() as enqueue:
            await enqueue("work", schema="nowhere")


async def test_sqlite_reports_unsupported_operations(tmp_path):
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 't.db'}")
    with engine.begin() as connection, pytest.raises(Unsupported):
        treadle.integrations.enqueue.sqlalchemy.enqueue(connection, "work")
    engine.dispose()


@pytest.mark.parametrize(
    "spec",
    [
        "{}",
        '{"name": null}',
        '{"name": "a b"}',
        '{"name": "a", "odd": 1}',
        '{"name": "a", "payload": [1]}',
        '{"name": "a", "payload": {"x": "\\u0000"}}',
        '{"name": "a", "payload": {"x": "\\ud800"}}',
        '{"name": "a", "delay_for": -1}',
        '{"name": "a", "priority": 10000000}',
        '{"name": "a", "unique_key": ""}',
        '{"name": "a", "policy": [1]}',
        '{"name": "a", "policy": 7}',
        '{"name": "a", "timeout_for": 0}',
        '{"name": "a", "id": "no"}',
        '{"name": "a", "notify": "x"}',
    ],
)
async def test_the_sql_function_rejects_invalid_tasks(engine, postgres_admin, postgres_schema, spec):
    with pytest.raises(psycopg.errors.DataError):
        postgres_admin.execute(f"select {postgres_schema}.treadle_enqueue_v1(%s::json)", (spec,))
    assert await tasks_of(engine) == []


async def test_the_function_keeps_fields_of_a_newer_policy(engine, postgres_admin, postgres_schema):
    policy = {"retries": 2, "surge": {"by": 2}}
    text = json.dumps({"name": "work", "policy": policy})
    (made,) = postgres_admin.execute(f"select {postgres_schema}.treadle_enqueue_v1(%s::json)", (text,)).fetchone()
    task = await engine.kernel.store.tasks.find(str(made))
    assert json.loads(task.policy) == policy
    assert policy_of(task).retries == 2


async def test_the_function_itself_rejects_a_reused_key(engine, postgres_admin, postgres_schema):
    def enqueue(**spec: Any) -> str:
        text = json.dumps({"name": "work", "idempotency_key": "k"} | spec)
        return str(postgres_admin.execute(f"select {postgres_schema}.treadle_enqueue_v1(%s::json)", (text,)).fetchone()[0])

    payload = {"n": 1, "deep": {"a": [1, None, "ü"]}}
    stored = enqueue(payload=payload, unique_key="u")
    for same in ({"payload": {"deep": {"a": [1.0, None, "ü"]}, "n": 1}}, {"payload": payload, "priority": 3}, {"unique_key": "u"}):
        assert enqueue(**same) == stored
    assert enqueue(encoded="@code:zip:abc") == stored  # nothing here can read it
    assert enqueue(payload={"n": 2}, compare=False) == stored
    for other in ({"payload": {"n": 2}}, {}, {"name": "else", "payload": payload}, {"task_list": "slow", "payload": payload}):
        with pytest.raises(psycopg.Error, match=f"was used for a different request, whose task is {stored}") as refused:
            enqueue(**other)
        assert refused.value.sqlstate == "TR003"
    await engine.kernel.queue.cancel(stored)
    with pytest.raises(psycopg.Error, match=stored):
        enqueue(payload={"n": 2})
    await engine.kernel.queue.retry(stored, payload={"n": 5})
    assert enqueue(payload=payload) == stored
    assert enqueue(payload=payload, idempotency_key="other") != stored


async def test_the_function_serves_any_driver_and_makes_ids_that_sort_by_time(engine, postgres_admin, postgres_schema):
    made = [
        str(postgres_admin.execute(f'select {postgres_schema}.treadle_enqueue_v1(\'{{"name": "work"}}\')').fetchone()[0])
        for _ in range(3)
    ]
    enqueued = await engine.enqueue("work")
    assert sorted(task.id for task in await tasks_of(engine)) == sorted([*made, enqueued.id])
    assert {task_id[14] for task_id in made} == {"7"}
    assert abs(int(made[0].replace("-", "")[:12], 16) - int(enqueued.id.replace("-", "")[:12], 16)) < 60_000


async def test_values_go_through_the_codec_that_is_given(engine, way, postgres_schema):
    class Backwards:
        name = "backwards"

        def encode(self, text: str) -> str:
            return text[::-1]

        def decode(self, stored: str) -> str:
            return stored[::-1]

    async with way() as enqueue:
        made = await enqueue("work", {"secret": "marker"}, schema=postgres_schema, codec=Backwards())
    stored = (await engine.kernel.reads.get_task(made)).payload
    assert ("marker" in stored, "rekram" in stored) == (False, True)
    with pytest.raises(TreadleError):
        await engine.kernel.value_store.unpack(stored)
