"""Treadle's transaction on a SQLite file: the caller's rows and the work, in one commit."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.engines import make_engine
from tests.limits import BOUND
from tests.transactions.test_within import FLOW, Rollback, prepared

from treadle import Engine
from treadle.model.errors import InvalidInput, Refused, StoreBusy, StoreFileInUse, Unsupported
from treadle.stores.sqlite.caller_transaction import store as caller_transaction


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold transactions as long as a busy machine takes."""
    monkeypatch.setattr(caller_transaction, "TRANSACTION_TIMEOUT", BOUND)


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    async with make_engine(url) as made:
        async with made.transaction() as tx:
            await tx.execute("create table orders (id integer primary key, total int check (total > 0))")
            await tx.execute("create table moves (id integer primary key, order_id int references orders)")
        yield made


async def orders(engine: Engine) -> list[Any]:
    connection = engine.kernel.read_connection()
    try:
        return [row[0] for row in connection.execute("select id from main.orders order by id")]
    finally:
        connection.close()


async def everything(tx: Any, approval_id: str, waiting: str) -> tuple[Any, Any, Any]:
    await tx.execute("insert into orders values (?, ?)", (17, 5))
    task = await tx.enqueue("work", {"n": 1}, idempotency_key="k")
    started = await tx.start_run(FLOW, "shop.Ship", {"order": 7})
    function = await tx.start_function("wait")
    assert await tx.signal(function.id, "go", {"to": "new"})
    assert await tx.signal(waiting, "go", {"to": "old"})
    assert (await tx.decide_approval(approval_id, "approve", actor="ada")).state == "approved"
    await tx.execute("insert into moves values (1, :order)", {"order": 17})
    assert await tx.execute("select total from orders where id = 17") == [(5,)]
    return task, started, function


async def test_all_kinds_of_work_exist_exactly_if_the_block_ends(engine, url):
    did = prepared(engine)
    asking = await engine.enqueue("ask")
    waiting = (await engine.start_function("wait")).id
    async with engine.worker(), asyncio.timeout(BOUND):
        while not (approvals := (await engine.approvals.list()).approvals):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    before = len(await engine.kernel.reads.list_tasks(kind="handler"))

    async def give_up() -> None:
        async with engine.transaction() as tx:
            await everything(tx, approvals[0].id, waiting)
            raise Rollback

    with pytest.raises(Rollback):
        await give_up()
    assert (await orders(engine), len(await engine.kernel.reads.list_tasks(kind="handler"))) == ([], before)
    async with engine.worker(), asyncio.timeout(BOUND):
        async with engine.transaction() as tx:
            task, started, function = await everything(tx, approvals[0].id, waiting)
        assert await engine.result(task.id) == {"n": 2}
        assert await engine.run_result(started.id) == {"box": "b7"}
        assert await engine.run_result(function.id) == {"to": "new"}
        assert await engine.run_result(waiting) == {"to": "old"}
        assert await engine.result(asking.id) == {"given": True}
    assert (len(did), await orders(engine)) == (1, [17])
    assert (await engine.kernel.verify()).problems == ()
    await engine.close()
    async with make_engine(url) as again:  # tables of others do not matter to a migration or a check
        assert await orders(again) == [17]


@pytest.mark.parametrize(
    "statement",
    [
        "insert into tasks (id) values ('x')",
        "update main.Tasks set priority = 1",
        "delete from log",
        "drop table runs",
        "alter table tasks add column x",
        "create trigger t after insert on tasks begin select 1; end",
        "create trigger t after insert on orders begin delete from tasks; end; insert into orders values (1, 1)",
        "create index i on tasks (payload)",
        "create temp table tasks (id)",
        "create temp view tasks as select 1",
        "create table bad (id text references tasks (id))",
        "alter table orders add column task text references tasks (id)",
        "commit",
        "rollback",
        "savepoint a",
        "attach ':memory:' as other",
        "pragma synchronous = off",
        "insert into orders values (1, 1); delete from tasks",
    ],
)
async def test_a_dangerous_statement_is_refused_without_effect(engine, statement):
    task = await engine.enqueue("work")
    async with engine.transaction() as tx:
        with pytest.raises(Refused):
            await tx.execute(statement)
        await tx.execute("insert into orders values (2, 2)")
    assert await orders(engine) == [2]
    assert (await engine.kernel.reads.get_task(task)).state == "pending"


async def test_references_and_their_handles_work_in_a_transaction(engine):
    @engine.task("double")
    async def double(n: int) -> int:
        return 2 * n

    @engine.function("quadruple")
    async def quadruple(n: int) -> int:
        return 4 * n

    async with engine.worker(), asyncio.timeout(BOUND):
        async with engine.transaction() as tx:
            task = await tx.enqueue(double, 4)
            started = await tx.start(quadruple, 4)
        assert (await task.result(), await engine.result(task), await started.result()) == (8, 8, 16)


async def test_errors_of_a_statement_leave_the_block_usable(engine):
    async with engine.transaction() as tx:
        for statement, values in (
            ("insert into orders values (1, -1)", ()),
            ("selec 1", ()),
            ("select ?", ()),
            ("select ?", (object(),)),
        ):
            with pytest.raises(InvalidInput):
                await tx.execute(statement, values)
        with pytest.raises(InvalidInput):
            await tx.enqueue("no good!")
        await tx.execute("insert into orders values (3, 1)")
    assert await orders(engine) == [3]


async def test_other_writes_wait_for_the_block_and_a_block_that_takes_too_long_is_rolled_back(engine, monkeypatch):
    async with engine.transaction() as tx:
        waiting = asyncio.create_task(engine.enqueue("work"))
        await tx.execute("insert into orders values (1, 1)")
        assert not waiting.done()
    await waiting
    monkeypatch.setattr(caller_transaction, "TRANSACTION_TIMEOUT", 0.05)

    async def take_too_long() -> None:
        async with engine.transaction() as tx:
            await tx.enqueue("never")
            await engine.enqueue("work")  # waits until the transaction is over

    with pytest.raises(StoreBusy, match="longer than"):
        await take_too_long()
    assert (await orders(engine), await engine.kernel.reads.list_tasks(kind="handler", name="never")) == ([1], [])


async def test_the_blocking_engine_has_transactions(url):
    def give_up(engine: Any) -> None:
        with engine.transaction() as tx:
            tx.execute("insert into orders values (1)")
            tx.enqueue("work")
            raise Rollback

    def work() -> list[Any]:
        with make_engine(url).blocking() as engine:
            with engine.transaction() as tx:
                tx.execute("create table orders (id)")
                task = tx.enqueue("work")
            with pytest.raises(Rollback):
                give_up(engine)
            with engine.transaction() as tx:
                assert tx.execute("select count(*) from orders") == [(0,)]
            return [engine.tasks.get(task.id).id == task.id, len(engine.tasks.list().tasks)]

    assert await asyncio.to_thread(work) == [True, 1]


async def test_a_store_without_a_file_does_not_support_transactions(postgres_url):
    for url, hint in (("memory://", "in a file"), (postgres_url, r"engine\.within")):
        async with make_engine(url) as engine:
            with pytest.raises(Unsupported, match=hint):
                async with engine.transaction():
                    pass
            with pytest.raises(Unsupported):
                engine.kernel.read_connection()


async def test_sqlite3_is_refused_and_the_read_connection_reads_but_cannot_write(engine, tmp_path):
    import apsw

    with pytest.raises(StoreFileInUse, match="read_connection"):
        sqlite3.connect(tmp_path / "shop.db")
    await engine.enqueue("work")
    connection = engine.kernel.read_connection()
    assert connection.execute("select count(*) from tasks").fetchall() == [(1,)]
    with pytest.raises(apsw.ReadOnlyError):
        connection.execute("delete from tasks")
    connection.close()
    await engine.enqueue("work")
    assert len(await engine.kernel.reads.list_tasks(kind="handler")) == 2
