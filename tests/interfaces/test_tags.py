"""Tags that handlers and functions set are stored with their work, and schedules pass theirs to what they start."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.interfaces.engines import make_engine
from tests.limits import BOUND

from treadle import Engine, NonRetryable
from treadle.model.errors import RunFailed, TaskFailed
from treadle.model.tags import decode_tags


async def tags_of(engine: Engine, record_id: str) -> dict[str, Any]:
    return dict(decode_tags((await engine.kernel.store.list_tags([record_id])).get(record_id, {})))


async def test_a_handler_and_a_function_set_tags_that_are_found() -> None:
    async with make_engine("memory://") as engine:
        seen: list[str] = []

        @engine.handler("charge")
        async def charge(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
            ctx.tag(customer="acme", amount=payload["amount"])
            ctx.tag({"amount": payload["amount"] + 1})
            if payload["amount"] < 0:
                raise NonRetryable("negative amount")
            return {}

        @engine.function("order")
        async def order(payload: dict[str, Any], ctx: Any) -> str:
            ctx.tag(stage="new")
            await ctx.step(lambda: seen.append("stepped"))
            await ctx.wait_for("go")
            ctx.tag(stage="paid", at=datetime(2026, 11, 1, tzinfo=UTC))
            await ctx.call("charge", {"amount": 5})
            return "done"

        async with engine.worker():
            task = await engine.enqueue("charge", {"amount": 1}, tags={"customer": "b", "kept": True})
            await engine.result(task, timeout=BOUND)
            assert await tags_of(engine, task.id) == {"customer": "acme", "amount": 2, "kept": True}
            bad = await engine.enqueue("charge", {"amount": -5})
            with pytest.raises(TaskFailed):
                await engine.result(bad, timeout=BOUND)
            assert (await tags_of(engine, bad.id))["amount"] == -4
            run = await engine.start_function("order", {}, tags={"customer": "c"})
            await engine.signal(run, "go")
            assert await engine.run_result(run, timeout=BOUND) == "done"
            expected = {"customer": "acme", "stage": "paid", "at": "2026-11-01T00:00:00.000Z", "amount": 6}
            assert await tags_of(engine, run.id) == expected
            found = await engine.kernel.search.list_runs("tag.stage = paid and tag.at <= 2026-11-01")
            assert [each.id for each in found.records] == [run.id]
        assert seen == ["stepped"]


async def test_an_invalid_tag_fails_the_work_with_its_reason() -> None:
    async with make_engine("memory://") as engine:

        @engine.function("order")
        async def order(payload: dict[str, Any], ctx: Any) -> None:
            ctx.tag({"no spaces": 1})

        async with engine.worker():
            with pytest.raises(RunFailed, match="cannot be the key of a tag"):
                await engine.run_result(await engine.start_function("order"), timeout=BOUND)


async def test_a_schedule_tags_what_it_starts_and_a_backfill_is_listed_by_creation() -> None:
    async with make_engine("memory://") as engine:
        await engine.schedules.create("nightly", cron="0 3 * * *", task="report", tags={"source": "nightly"})
        first = await engine.enqueue("report")
        started = await engine.schedules.backfill("nightly", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC))
        assert {len(await tags_of(engine, each.id)) for each in started.started} == {1}
        listed = [task.id for task in await engine.list_tasks()]
        assert listed[-1] == first.id
        assert len(listed) == 1 + len(started.started)
