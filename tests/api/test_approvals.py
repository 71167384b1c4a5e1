"""Calls about approvals, on an engine and over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.api.conftest import Scene
from tests.errors import raises_code
from tests.limits import BOUND

from treadle import ApprovalRequest, AwaitingApproval, Context, Engine
from treadle.engine.operations import Operations
from treadle.interfaces.http.app import make_app
from treadle.model.access import OPEN
from treadle.model.errors import InvalidInput

NOBODY = "01935b8e-7c3a-7000-8000-000000000000"


async def ask(engine: Engine, count: int = 1, **options: Any) -> list[str]:
    """The ids of so many approvals that wait, oldest first; no worker runs any more."""

    @engine.handler("refund")
    async def refund(payload: Any, ctx: Context) -> Any:
        if ctx.approval_decision is None:
            return AwaitingApproval(ApprovalRequest.of("Refund it?", context=payload, **options))
        return {"amount": ctx.approval_decision["context"]["amount"], "by": ctx.approval_decision["by"]}

    for n in range(count):
        await engine.enqueue("refund", {"amount": n})
    async with engine.worker(), asyncio.timeout(BOUND):
        while len(found := (await engine.approvals.list()).approvals) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return [each.id for each in reversed(found)]


async def test_pending_approvals_are_listed_counted_and_shown(scene: Scene):
    (approval_id,) = await ask(scene.engine, deciders=["ada"], expires=3600, quorum=2)
    (listed,) = (await scene.api.approvals.list()).approvals
    assert (listed.id, listed.state, listed.title, listed.context) == (approval_id, "pending", "Refund it?", {"amount": 0})
    assert listed.expires_at is not None
    assert listed.expires_at.ms - listed.requested_at.ms == 3_600_000
    shown = await scene.api.approvals.get(approval_id)
    assert (shown.deciders, shown.votes, shown.transitions, shown.why.code) == (["ada"], [], [], "approval")
    assert approval_id in shown.why.text
    counts = await scene.api.approvals.counts()
    assert (counts.pending, counts.approved, counts.canceled) == (1, 0, 0)


async def test_pages_follow_one_another_and_filters_hold(scene: Scene):
    ids = await ask(scene.engine, 3)
    first = await scene.api.approvals.list(limit=2)
    rest = await scene.api.approvals.list(limit=2, before=first.next_before)
    assert [each.id for each in (*first.approvals, *rest.approvals)] == ids[::-1]
    assert rest.next_before is None
    await scene.api.approvals.deny(ids[0], reason="no")
    assert [each.id for each in (await scene.api.approvals.list(state=["denied"])).approvals] == [ids[0]]
    assert len((await scene.api.approvals.list()).approvals) == 2
    assert len((await scene.api.approvals.list(every=True)).approvals) == 3
    task_id = first.approvals[0].task_id
    assert [each.id for each in (await scene.api.approvals.list(task_id=task_id)).approvals] == [ids[2]]
    with pytest.raises(InvalidInput, match="open"):
        await scene.api.approvals.list(state=["open"])


async def test_an_approval_records_the_caller_and_the_task_continues_with_its_edits(scene: Scene):
    (approval_id,) = await ask(scene.engine, edits=True)
    done = await scene.api.approvals.approve(approval_id, reason="less", edits={"amount": 3})
    assert (done.state, done.ended_by, done.edited_by, done.reason) == ("approved", "local", "local", "less")
    async with scene.engine.worker():
        ended = await scene.api.tasks.result(done.task_id, wait_for=30)
    assert ended.result == {"amount": 3, "by": "local"}
    shown = await scene.api.approvals.get(approval_id)
    assert (shown.why.code, shown.why.text) == ("approved", "approved by local: less")
    assert [(transition.transition, transition.actor) for transition in shown.transitions] == [("approve", "local")]


async def test_each_approval_of_a_batch_is_decided_independently(scene: Scene):
    ids = await ask(scene.engine, 2)
    await scene.api.approvals.deny(ids[0])
    answers = (await scene.api.approvals.decide_many([*ids, NOBODY], "approve")).answers
    assert [each.state or each.error.code for each in answers] == ["already_decided", "approved", "approval_not_found"]
    with pytest.raises(InvalidInput, match="100"):
        await scene.api.approvals.decide_many([NOBODY] * 101, "deny")


async def test_invalid_decisions_are_refused(scene: Scene):
    (approval_id,) = await ask(scene.engine)
    with raises_code("approval_not_found"):
        await scene.api.approvals.get(NOBODY)
    with raises_code("edits_not_allowed"):
        await scene.api.approvals.approve(approval_id, edits={"amount": 9})
    await scene.api.approvals.deny(approval_id)
    with raises_code("already_decided"):
        await scene.api.approvals.approve(approval_id)


async def test_a_decider_cannot_assume_another_name_or_group():
    async with Engine("memory://") as engine:
        (approval_id,) = await ask(engine, deciders=["ada", "leads"])
        eve = Operations(engine, replace(OPEN, actor="eve"))
        with raises_code("may_not_decide"):
            await eve.approvals.approve(approval_id)
        transport = httpx.ASGITransport(make_app(engine, open_access=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/v1") as http:
            for claim in ({"actor": "ada"}, {"groups": ["leads"]}):
                assert (await http.post(f"/approvals/{approval_id}/approve", json=claim)).status_code == 422
        lead = Operations(engine, replace(OPEN, actor="eve", groups=("leads",)))
        assert (await lead.approvals.approve(approval_id)).ended_by == "eve"
