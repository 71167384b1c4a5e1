"""Work in the caller's transaction on PostgreSQL: every kind of work, with every driver, all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from tests.engines import make_engine
from tests.limits import BOUND
from tests.sizes import left_out
from tests.transactions.drivers import COMMON, DRIVERS, Driver, Opened, by_asyncpg, by_psycopg

from treadle import ApprovalRequest, AwaitingApproval, Engine
from treadle.model.errors import IdempotencyKeyReused, InvalidInput, ListDraining, NotFound, RunNotFound, TreadleError, Unsupported

FLOW = [
    (
        "ship.afl",
        """
namespace shop {
    event facet Pack(order: Long) => (box: String)
    workflow Ship(order: Long) => (box: String) andThen {
        packed = Pack(order = $.order)
        yield Ship(box = packed.box)
    }
}
""",
    )
]
BIG = {"n": 1, "big": "ü'\\\"{}" * 3000}


class Rollback(Exception):
    """Ends a transaction without a commit."""


def prepared(engine: Engine) -> list[Any]:
    """Register handlers; returns the list of what they did."""
    did: list[Any] = []

    @engine.handler("work")
    async def work(payload: Any) -> dict[str, Any]:
        did.append(payload)
        return {"n": payload["n"] + 1}

    @engine.handler("shop.Pack")
    async def pack(payload: Any) -> dict[str, Any]:
        return {"box": f"b{payload['order']}"}

    @engine.handler("ask")
    async def ask(payload: Any, ctx: Any) -> Any:
        return {"given": True} if ctx.approval_decision else AwaitingApproval(ApprovalRequest.of("May I?"))

    @engine.function("wait")
    async def wait(payload: Any, ctx: Any) -> Any:
        return await ctx.wait_for("go")

    return did


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[Engine]:
    async with make_engine(postgres_url) as made:
        yield made


@pytest.fixture(params=[each if each in COMMON else left_out(each) for each in DRIVERS], ids=lambda each: each.__name__)
def driver(request: pytest.FixtureRequest) -> Driver:
    return request.param


async def call(engine: Engine, opened: Opened, method: str, *arguments: Any, notify: bool = False, **options: Any) -> Any:
    """Call the method as a user of this driver does."""
    if opened.is_async:
        return await getattr(engine.within(opened.connection, notify=notify), method)(*arguments, **options)
    return getattr(engine.blocking().within(opened.connection, notify=notify), method)(*arguments, **options)


def counts(admin: psycopg.Connection[Any], schema: str) -> list[int]:
    """The rows of all tables that a call here may write."""
    tables = ("tasks", "finished", "runs", "steps", "records", "mail", "log", "dedupe", "queues", "blobs", "flows")
    return [admin.execute(f"select count(*) from {schema}.{table}").fetchone()[0] for table in tables]


async def run(opened: Opened, sql: str) -> None:
    done = opened.execute(sql)
    if opened.is_async:
        await done


async def everything(engine: Engine, opened: Opened, approval_id: str, waiting: str, table: str) -> tuple[Any, Any, Any, Any]:
    await run(opened, f"insert into {table} values (17)")
    task = await call(engine, opened, "enqueue", "work", BIG, idempotency_key="k")
    started = await call(engine, opened, "start_run", FLOW, "shop.Ship", {"order": 7})
    function = await call(engine, opened, "start_function", "wait", {"n": 1})
    assert await call(engine, opened, "signal", function.id, "go", {"to": "new"})
    assert await call(engine, opened, "signal", waiting, "go", {"to": "old"}, idempotency_key="s")
    decided = await call(engine, opened, "decide_approval", approval_id, "approve", actor="ada")
    assert decided.state == "approved"
    await run(opened, f"insert into {table} values (18)")  # the search path is the caller's again
    return task, started, function, waiting


async def test_all_kinds_of_work_exist_exactly_if_the_transaction_commits(
    engine, driver, postgres_server, postgres_admin, postgres_schema
):
    did = prepared(engine)
    table = f"public.orders_{postgres_schema}"
    postgres_admin.execute(f"drop table if exists {table}; create table {table} (id int)")
    asking = await engine.enqueue("ask")
    waiting = (await engine.start_function("wait")).id
    async with engine.worker(), asyncio.timeout(BOUND):
        while not (approvals := (await engine.approvals.list()).approvals):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    before = counts(postgres_admin, postgres_schema)

    async def give_up() -> None:
        async with driver(postgres_server) as opened:
            await everything(engine, opened, approvals[0].id, waiting, table)
            raise Rollback

    with pytest.raises(Rollback):
        await give_up()
    assert counts(postgres_admin, postgres_schema) == before
    assert postgres_admin.execute(f"select count(*) from {table}").fetchone() == (0,)
    assert (await engine.approvals.get(approvals[0].id)).state == "pending"

    async with driver(postgres_server) as opened:
        task, started, function, _ = await everything(engine, opened, approvals[0].id, waiting, table)
        assert counts(postgres_admin, postgres_schema) == before
        repeated = await call(engine, opened, "enqueue", "work", BIG, idempotency_key="k")
        assert (repeated.id, repeated.created) == (task.id, False)
    async with engine.worker(), asyncio.timeout(BOUND):
        assert await engine.result(task.id) == {"n": 2}
        assert await engine.run_result(started.id) == {"box": "b7"}
        assert await engine.run_result(function.id) == {"to": "new"}
        assert await engine.run_result(waiting) == {"to": "old"}
        assert await engine.result(asking.id) == {"given": True}
    assert len(did) == 1
    assert postgres_admin.execute(f"select count(*) from {table}").fetchone() == (2,)
    assert (await engine.kernel.verify()).problems == ()
    postgres_admin.execute(f"drop table {table}")


async def test_a_refused_call_has_no_effect_and_the_transaction_continues(engine, driver, postgres_server):
    await engine.kernel.store.operators.set_list("default", "shut", accepting=False)
    await engine.enqueue("work", {"n": 1}, idempotency_key="k")
    refused: list[tuple[type[TreadleError], str, tuple[Any, ...], dict[str, Any]]] = [
        (ListDraining, "enqueue", ("work",), {"task_list": "shut"}),
        (IdempotencyKeyReused, "enqueue", ("work", {"n": 2}), {"idempotency_key": "k"}),
        (InvalidInput, "enqueue", ("no good!",), {}),
        (InvalidInput, "enqueue", ("work", {"n": "\x00"}), {}),
        (NotFound, "start_function", ("nobody",), {}),
        (RunNotFound, "signal", ("0190a000-0000-7000-8000-000000000000", "go"), {}),
    ]
    async with driver(postgres_server) as opened:
        for error, method, arguments, options in refused:
            with pytest.raises(error):
                await call(engine, opened, method, *arguments, **options)
        made = await call(engine, opened, "enqueue", "work", {"n": 3})
        await run(opened, "select 1")
    assert {task.id for task in await engine.kernel.reads.list_tasks(kind="handler")} >= {made.id}
    assert len(await engine.kernel.reads.list_tasks(kind="handler")) == 2


async def test_a_closed_engine_works_and_two_calls_see_each_other(postgres_url, postgres_server, engine):
    closed = make_engine(postgres_url)
    async with by_asyncpg(postgres_server) as opened:
        first = await closed.within(opened.connection).enqueue("new-queue", unique_key="u")
        again = await closed.within(opened.connection).enqueue("new-queue", unique_key="u")
        assert (again.id, again.created) == (first.id, False)
    async with by_psycopg(postgres_server) as opened:  # a blocking connection in a thread with an event loop
        made = closed.blocking().within(opened.connection).enqueue("new-queue")
    assert {task.id for task in await engine.kernel.reads.list_tasks(kind="handler")} == {first.id, made.id}


async def test_with_notify_the_commit_wakes_a_waiting_worker(engine, driver, postgres_server):
    """The worker does not wait for its poll, which is an hour away."""
    started = asyncio.Event()

    @engine.handler("now")
    async def now(payload: Any) -> None:
        started.set()

    await engine.enqueue("now", delay=3600)  # its queue is known to the worker
    async with engine.worker(poll_interval=3600), asyncio.timeout(BOUND):
        async with driver(postgres_server) as opened:
            await call(engine, opened, "enqueue", "now", notify=True)
        await started.wait()


async def test_a_connection_that_cannot_be_used_is_rejected_with_the_reason(engine, tmp_path):
    import sqlalchemy

    with pytest.raises(InvalidInput, match="is not a connection that Treadle knows"):
        await engine.within(object()).enqueue("work")
    database = sqlalchemy.create_engine("sqlite://")
    with pytest.raises(InvalidInput, match="connection or session"):
        await engine.within(database).enqueue("work")
    with database.connect() as connection, pytest.raises(Unsupported, match=r"engine\.transaction"):
        await engine.within(connection).enqueue("work")
    database.dispose()
    with pytest.raises(Unsupported, match=r"engine\.transaction"):
        make_engine(f"sqlite:///{tmp_path / 't.db'}").within(object())
