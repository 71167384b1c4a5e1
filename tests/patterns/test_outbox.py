"""Outbox: the row and its task are committed together, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.patterns.programs import Deployment, load

from treadle.engine import use_store


class Aborted(Exception):
    """Ends a transaction."""


async def aborted(program: Any) -> None:
    async with program.engine.transaction() as tx:
        await tx.execute("insert into shop_orders (id, total) values (19, 1)")
        await tx.enqueue("order.Confirm", {"order": 19})
        raise Aborted


async def aborted_in(connection: Any, program: Any) -> None:
    async with connection.transaction():
        await program.place_order_in(connection, 19, 1)
        raise Aborted


async def test_on_sqlite_both_are_stored_or_neither(tmp_path: Path):
    program = load("outbox")
    async with Deployment(program.engine, f"sqlite:///{tmp_path}/treadle.db") as env:
        async with program.engine.transaction() as tx:
            await tx.execute(program.TABLE)
        await program.place_order(17, 4200)
        with pytest.raises(Exception, match="CHECK constraint"):
            await program.place_order(18, -1)
        with pytest.raises(Aborted):
            await aborted(program)
        rows = program.engine.kernel.read_connection().execute("select id from shop_orders").fetchall()
        assert rows == [(17,)]
        assert [task.payload for task in await env.enqueued()] == [{"order": 17}]
        await env.drain()
        assert [task.state for task in await env.enqueued()] == ["completed"]


async def test_on_postgresql_both_are_stored_or_neither(postgres_url: str, postgres_server: str, postgres_schema: str):
    program = load("outbox")
    former = use_store(program.engine, postgres_url, program.engine.kernel.settings)
    connection: Any = await asyncpg.connect(postgres_server)
    try:
        await connection.execute(f"create schema {postgres_schema}_shop; set search_path to {postgres_schema}_shop")
        await connection.execute(program.TABLE)
        async with program.engine:
            await program.place_order_in(connection, 17, 4200)
            with pytest.raises(asyncpg.CheckViolationError):
                await program.place_order_in(connection, 18, -1)
            with pytest.raises(Aborted):
                await aborted_in(connection, program)
            assert [row["id"] for row in await connection.fetch("select id from shop_orders")] == [17]
            (task,) = await program.engine.kernel.reads.list_tasks(kind="handler")
            assert await program.engine.kernel.value_store.unpack(task.payload) == {"order": 17}
    finally:
        await connection.execute(f"drop schema {postgres_schema}_shop cascade")
        await connection.close()
        use_store(program.engine, *former)
