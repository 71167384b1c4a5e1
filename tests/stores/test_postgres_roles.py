"""The roles of docs/operations/hardening.md: the worker's and the reader's privileges suffice, and allow nothing more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.engines import make_engine
from tests.limits import BOUND
from tests.schemas import schema_url

from treadle.kernel.store.process import SystemClock, arm
from treadle.kernel.store.retention import DAY_FOR, Retention
from treadle.kernel.store.verify import verify
from treadle.model.errors import SchemaBehind, StoreReadOnly
from treadle.model.ids import uuid7
from treadle.stores import make_store
from treadle_conformance.task_steps import claim_one, get, new_task, put, settle, succeed

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "hardening.md"
ROLES = ("owner", "worker", "reader")
FLOW = """
namespace shop {
    event facet Work(n: Int) => (n: Int)
    workflow Order(n: Int) => (n: Int) andThen {
        done = Work(n = $.n)
        yield Order(n = done.n)
    }
}
"""


@pytest.fixture
def urls(postgres_admin: psycopg.Connection[Any], postgres_server: str, postgres_schema: str) -> Iterator[dict[str, str]]:
    """The URLs of the three roles on a schema that the statements of the page have made."""
    (statements,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    own = re.sub(r"\btreadle_(owner|worker|reader)\b", rf"{postgres_schema}_\1", statements)
    postgres_admin.execute(re.sub(r"\bschema treadle\b", f"schema {postgres_schema}", own))
    parts = urlsplit(schema_url(postgres_server, postgres_schema))
    host = parts.netloc.rpartition("@")[2]
    yield {role: urlunsplit(parts._replace(netloc=f"{postgres_schema}_{role}@{host}")) for role in ROLES}
    for role in ROLES:
        postgres_admin.execute(f"drop owned by {postgres_schema}_{role} cascade")
        postgres_admin.execute(f"drop role {postgres_schema}_{role}")


@pytest.mark.new_schema
async def test_a_worker_needs_only_the_documented_privileges(urls: dict[str, str]) -> None:
    engine = make_engine(urls["worker"])
    with pytest.raises(SchemaBehind, match="as the owner of the schema"):
        await engine.open()
    async with make_engine(urls["owner"]):
        pass

    engine = make_engine(urls["worker"])

    @engine.handler("shop.Work")
    async def work(payload: Any) -> Any:
        return {"n": payload["n"]}

    @engine.function("twice", version=1)
    async def twice(payload: Any, ctx: Any) -> Any:
        tokens = ctx.stream("tokens")
        tokens.write("one")
        return [await ctx.step(lambda: 1, name="one"), await ctx.call("shop.Work", {"n": 2})]

    async with engine, engine.worker(), asyncio.timeout(BOUND):
        assert await engine.result(await engine.enqueue("shop.Work", {"n": 1}, tags={"team": "ops"})) == {"n": 1}
        run = await engine.start_run([("shop.afl", FLOW)], "shop.Order", {"n": 3})
        assert await engine.run_result(run) == {"n": 3}
        assert await engine.run_result(await engine.start_function("twice")) == [1, {"n": 2}]
        await engine.schedules.create("nightly", cron="0 3 * * *", task="shop.Work")
        await engine.kernel.lists.limit_key("stripe", 3)
        await engine.kernel.tokens.create("ci", ["read"])
        assert (await engine.kernel.verify()).problems == ()
        assert (await engine.kernel.store.health.check()).tables

    reader = make_engine(urls["reader"])
    async with reader:
        assert len(await reader.kernel.reads.list_tasks()) > 3
        with pytest.raises(StoreReadOnly):
            await reader.enqueue("shop.Work", {"n": 9})


@pytest.mark.new_schema
@pytest.mark.parametrize("point", ["partitions.bounded", "partitions.validated"])
async def test_a_worker_ends_later_tasks_after_a_crash_in_the_first_split(urls: dict[str, str], point: str) -> None:
    """The split leaves a bound about two days ahead; without the owner, a task with an id after it must end nevertheless."""
    owner = make_store(urls["owner"], SystemClock())
    await owner.open()

    def crash(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt(name)

    arm(crash)
    try:
        with pytest.raises(KeyboardInterrupt):
            await owner.retention.prepare(Retention(owner).rules)
    finally:
        arm(None)
    await owner.close()

    worker = make_store(urls["worker"], SystemClock())
    await worker.open()
    task_id = uuid7(await worker.now() + 30 * DAY_FOR, bytes(10))
    await put(worker, new_task(id=task_id))
    await settle(worker, (await claim_one(worker)).claim, succeed())
    assert (await get(worker, task_id)).finished
    assert (await verify(worker)).holds
    await worker.close()

    owner = make_store(urls["owner"], SystemClock())
    await owner.open()
    await owner.retention.prepare(Retention(owner).rules)  # an id is after the new bound: it is left for later
    assert (await verify(owner)).holds
    await owner.close()
