"""Human in the loop: nothing happens before the decision, and what was decided happens once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.patterns.programs import load, source

from treadle.testing import Environment, Stalled


@pytest.fixture
def program() -> Any:
    loaded = load("human_in_the_loop")
    loaded.paid = []

    async def pay(customer: str, amount: int, key: str) -> dict[str, str]:
        loaded.paid.append((customer, amount))
        return {"receipt": "r"}

    loaded.pay = pay
    return loaded


async def test_it_pays_the_edited_amount_after_the_approval_and_not_before(program: Any):
    async with Environment(program.engine) as env:
        run = await program.engine.start(program.refund, {"customer": "Linus", "amount": 120})
        with pytest.raises(Stalled, match="approval"):
            await env.result(run, within=3600)
        assert not program.paid
        await env.approve(run, actor="ada", edits={"amount": 60})
        assert await env.result(run) == {"state": "paid", "amount": 60, "by": "ada", "receipt": "r"}
    assert program.paid == [("Linus", 60)]


async def test_a_denied_or_forgotten_refund_is_not_paid(program: Any):
    async with Environment(program.engine) as env:
        denied = await program.engine.start(program.refund, {"customer": "Linus", "amount": 120})
        await env.deny(denied, actor="ada", reason="twice")
        result = await env.result(denied)
        assert (result["state"], "twice" in result["reason"]) == ("denied", True)
        forgotten = await program.engine.start(program.refund, {"customer": "Linus", "amount": 120})
        assert await env.result(forgotten) == {"state": "expired"}
    assert not program.paid


async def test_a_second_person_may_decide_after_a_day(program: Any):
    async with Environment(program.engine) as env:
        run = await program.engine.start(program.refund, {"customer": "Linus", "amount": 120})
        await env.advance(hours=23)
        with pytest.raises(Exception, match="grace"):
            await env.approve(run, actor="grace")
        await env.advance(hours=2)
        await env.approve(run, actor="grace")
        assert (await env.result(run))["by"] == "grace"


@pytest.mark.parametrize(("decision", "state"), [("approve", "paid"), ("deny", "denied"), (None, "expired")])
async def test_an_approval_in_afl(decision: str | None, state: str):
    async with Environment() as env:
        paid = []

        @env.engine.handler("shop.Pay")
        async def pay(payload: dict[str, Any]) -> dict[str, str]:
            paid.append(payload["amount"])
            return {"receipt": "r"}

        inputs = {"customer": "Linus", "amount": 120.0}
        run = await env.engine.start_run(source("human_in_the_loop.afl"), "shop.Refund", inputs)
        if decision == "approve":
            await env.approve(run, actor="ada", edits={"amount": 60})
        elif decision == "deny":
            await env.deny(run, actor="ada")
        assert (await env.result(run))["state"] == state
    assert paid == ([60] if decision == "approve" else [])
