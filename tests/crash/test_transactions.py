"""A program killed with SIGKILL in or after a transaction that stores data and work: both are there, or neither."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from tests.engines import make_engine
from tests.limits import BOUND


def killed(*arguments: str) -> None:
    """Start the program, and kill it at the moment that it reports."""
    with subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.kill()


async def handled(url: str) -> list[Any]:
    """Run a worker until nothing is left; return the payloads that it handled."""
    done: list[Any] = []
    engine = make_engine(url)

    @engine.handler("charge")
    async def charge(payload: Any) -> None:
        done.append(payload)

    async with engine, engine.worker(), asyncio.timeout(BOUND):
        for task in await engine.kernel.reads.list_tasks(kind="handler"):
            await engine.result(task.id)
    return done


@pytest.mark.parametrize(("moment", "expected"), [("before", []), ("after", [{"order": 17}])])
async def test_a_program_killed_around_its_commit(moment, expected, postgres_url, postgres_server, postgres_schema, postgres_admin):
    table = f"public.orders_{postgres_schema}"
    postgres_admin.execute(f"create table {table} (id int)")
    try:
        async with make_engine(postgres_url):
            pass
        killed("tests.crash.transactions_child", postgres_url, table, moment, postgres_server)
        assert await handled(postgres_url) == expected
        found = postgres_admin.execute(f"select id from {table}").fetchall()
        assert found == [(each["order"],) for each in expected]
    finally:
        postgres_admin.execute(f"drop table {table}")


@pytest.mark.parametrize(("moment", "expected"), [("before", []), ("after", [{"order": 17}])])
async def test_a_program_killed_around_its_commit_to_a_file(moment, expected, tmp_path):
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    async with make_engine(url) as engine, engine.transaction() as tx:
        await tx.execute("create table orders (id)")
    killed("tests.crash.transactions_child", url, "orders", moment)
    assert await handled(url) == expected
    async with make_engine(url) as engine, engine.transaction() as tx:
        assert await tx.execute("select id from orders") == [(each["order"],) for each in expected]
