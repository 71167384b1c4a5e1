"""Durable functions that ask people: approved, denied, expired, canceled."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.limits import BOUND

from treadle import Engine, RunFailed
from treadle.api.approvals import Approval
from treadle.model.errors import ApprovalDenied, ApprovalExpired


@pytest.fixture(params=ALL)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return make_engine(url_of(request.param, request, tmp_path))


async def asked(engine: Engine, count: int = 1) -> list[Approval]:
    async with asyncio.timeout(BOUND):
        while len(found := (await engine.approvals.list()).approvals) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


@pytest.mark.postgres
async def test_a_function_requests_an_approval_once_and_continues_with_the_decision(engine: Engine) -> None:
    @engine.function("refund")
    async def refund(payload: Any, ctx: Any) -> Any:
        decision = await ctx.approval("Refund?", context=payload, deciders=["ada"], edits=True, expires=timedelta(hours=1))
        await ctx.sleep(0.01)
        return [decision["by"], decision["context"], decision["reason"]]

    async with engine:
        async with engine.worker():
            run = await engine.start_function("refund", {"amount": 5})
            (shown,) = await asked(engine)
        assert shown.expires_at is not None
        assert (shown.run_id, shown.expires_at - shown.requested_at) == (run.id, timedelta(hours=1))
        # Decided while no worker is there; another one goes on.
        await engine.approvals.decide(shown.id, "approve", actor="ada", edits={"amount": 4}, reason="less")
        async with engine.worker():
            assert await engine.run_result(run, timeout=BOUND) == ["ada", {"amount": 4}, "less"]
        assert len((await engine.approvals.list(every=True)).approvals) == 1
        assert (await engine.kernel.verify()).holds


async def test_denied_and_expired_approvals_raise_in_the_function(engine: Engine) -> None:
    @engine.function("refund")
    async def refund(payload: Any, ctx: Any) -> Any:
        try:
            await ctx.approval("Refund?", **payload)
        except (ApprovalDenied, ApprovalExpired) as error:
            return [type(error).__name__, str(error)]

    @engine.function("careless")
    async def careless(payload: Any, ctx: Any) -> Any:
        await ctx.approval("Refund?")

    async with engine, engine.worker():
        denied = await engine.start_function("refund")
        (shown,) = await asked(engine)
        await engine.approvals.decide(shown.id, "deny", actor="ada", reason="no")
        assert await engine.run_result(denied, timeout=BOUND) == ["ApprovalDenied", "approval denied by ada: no"]
        expired = await engine.start_function("refund", {"expires": 0.1})
        assert (await engine.run_result(expired, timeout=BOUND))[0] == "ApprovalExpired"
        failed = await engine.start_function("careless")
        (shown,) = await asked(engine)
        await engine.approvals.decide(shown.id, "deny", actor="ada")
        with pytest.raises(RunFailed, match="approval denied by ada"):
            await engine.run_result(failed, timeout=BOUND)


async def test_several_approvals_are_requested_concurrently(engine: Engine) -> None:
    @engine.function("both")
    async def both(payload: Any, ctx: Any) -> Any:
        decisions = await ctx.gather(*(ctx.approval(f"Question {number}?") for number in range(3)))
        return [each["by"] for each in decisions]

    async with engine, engine.worker():
        run = await engine.start_function("both")
        pending = {each.title: each.id for each in await asked(engine, 3)}
        for number, actor in ((2, "cyn"), (0, "ada"), (1, "bob")):
            await engine.approvals.decide(pending[f"Question {number}?"], "approve", actor=actor)
        assert await engine.run_result(run, timeout=BOUND) == ["ada", "bob", "cyn"]


async def test_canceling_the_run_or_its_parent_cancels_its_approvals(engine: Engine) -> None:
    @engine.function("child")
    async def child(payload: Any, ctx: Any) -> Any:
        await ctx.approval("Go?")

    @engine.function("parent")
    async def parent(payload: Any, ctx: Any) -> Any:
        await (await ctx.start("child")).result()

    async with engine, engine.worker():
        for name in ("child", "parent"):
            run = await engine.start_function(name)
            (shown,) = await asked(engine)
            await engine.runs.cancel(run.id)
            assert (await engine.approvals.get(shown.id)).state == "canceled"
        assert (await engine.kernel.verify()).holds


async def test_an_invalid_question_fails_the_function(engine: Engine) -> None:
    @engine.function("odd")
    async def odd(payload: Any, ctx: Any) -> Any:
        await ctx.approval("Go?", **payload)

    async with engine, engine.worker():
        for payload, said in (({"quorum": 0}, "quorum must be a whole number"), ({"colour": "red"}, "unexpected keyword argument")):
            with pytest.raises(RunFailed, match=said):
                await engine.run_result(await engine.start_function("odd", payload), timeout=BOUND)
