"""Asking and approving are separate: by scope for everyone, and by actor for models."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path

import pytest
from tests.mcp.transports import Way, by, refused, told

from treadle import ApprovalRequest, AwaitingApproval, Engine
from treadle.engine.operations import Operations
from treadle.model.access import Access, Scope, granted
from treadle.model.errors import Forbidden, Refused


@pytest.mark.parametrize("scope", Scope)
async def test_no_scope_but_admin_both_adds_and_approves_an_objective(scope: Scope) -> None:
    async with Engine("memory://") as engine:
        admin = Operations(engine, Access("root", frozenset(Scope)))
        new = await admin.objectives.add("a goal")
        caller = Operations(engine, Access("ada", granted([scope])))
        done = []
        for name, call in (
            ("add", lambda: caller.objectives.add("another")),
            ("approve", lambda: caller.objectives.approve(new.objective_id)),
        ):
            try:
                await call()
                done.append(name)
            except Forbidden:
                pass
        assert done == {Scope.OPERATE: ["add"], Scope.APPROVE: ["approve"], Scope.ADMIN: ["add", "approve"]}.get(scope, [])


@pytest.mark.parametrize(("for_model", "own"), [*product((False, True), (False, True))])
async def test_a_model_does_not_approve_its_own_objective(for_model: bool, own: bool) -> None:
    async with Engine("memory://") as engine:
        asker = Operations(engine, Access("claude" if own else "ada", frozenset(Scope), for_model=own and for_model))
        added = await asker.objectives.add("a goal")
        caller = Operations(engine, Access("claude", frozenset(Scope), for_model=for_model))
        if for_model and own:
            with pytest.raises(Refused, match=r"claude asked for the objective .* and cannot approve it over MCP"):
                await caller.objectives.approve(added.objective_id)
            assert (await caller.objectives.get(added.objective_id)).status == "NEW"
        else:
            assert (await caller.objectives.approve(added.objective_id)).approved_by == "claude"


@pytest.mark.parametrize("way", ["http", "far"])
async def test_a_model_does_not_approve_its_own_objective_by_any_way(way: Way, tmp_path: Path) -> None:
    async with by(way, tmp_path) as client:
        added = told(await client.call_tool("objective_add", {"title": "a goal"}))
        given = {"objective_id": added["objective_id"], "action": "approve"}
        assert "cannot approve it over MCP" in refused(await client.call_tool("objective_manage", given))["error"]


@pytest.mark.parametrize(("for_model", "own", "many"), [*product((False, True), (False, True), (False, True))])
async def test_a_model_does_not_approve_its_own_request(for_model: bool, own: bool, many: bool) -> None:
    engine = Engine("memory://")

    @engine.handler("refund")
    async def refund(payload: object) -> AwaitingApproval:
        return AwaitingApproval(ApprovalRequest.of("Refund?", requested_by="claude" if own else "ada"))

    async with engine:
        caller = Operations(engine, Access("claude", frozenset(Scope), for_model=for_model))
        await engine.enqueue("refund", {})
        async with engine.worker():
            while not (found := (await caller.approvals.list()).approvals):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (asked,) = found

        async def approve() -> None:
            if many:
                await caller.approvals.decide_many([asked.id], "approve")
            else:
                await caller.approvals.approve(asked.id)

        if for_model and own:
            with pytest.raises(Refused, match="cannot approve it over MCP"):
                await approve()
            assert (await caller.approvals.get(asked.id)).state == "pending"
            assert (await caller.approvals.deny(asked.id)).state == "denied"
        else:
            await approve()
            assert (await caller.approvals.get(asked.id)).state == "approved"


async def test_the_text_of_an_approved_objective_changes_only_with_the_scope_approve() -> None:
    async with Engine("memory://") as engine:
        admin = Operations(engine, Access("root", frozenset(Scope)))
        operator = Operations(engine, Access("ada", granted([Scope.OPERATE])))
        added = await operator.objectives.add("a goal")
        assert (await operator.objectives.edit(added.objective_id, title="a better goal")).title == "a better goal"
        await admin.objectives.approve(added.objective_id)
        for change in ({"title": "worse"}, {"acceptance_criteria": ["none"]}, {"prompt": "do it"}, {"metadata": {"a": 1}}):
            with pytest.raises(Forbidden, match="approve"):
                await operator.objectives.edit(added.objective_id, **change)
        assert (await operator.objectives.edit(added.objective_id, urgency=4)).urgency == 4
        assert (await admin.objectives.edit(added.objective_id, title="best")).title == "best"
