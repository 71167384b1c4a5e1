"""Approval steps of workflows: asked once, by no handler, with the same inbox, reasons and errors as all approvals."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, make_engine, url_of
from tests.errors import raises_code
from tests.limits import BOUND

from treadle import Engine, RunFailed
from treadle.api.approvals import Approval

FLOW = """
workflow Ship(order: String, days: Double = null) => (by: String, reason: String?, order: Json, edited: Boolean, id: String)
andThen {
    ok = sys.approval(
        question = "Ship " ++ $.order ++ "?", context = #{order: $.order}, deciders = ["ada"], edits = true, expires = $.days,
    )
    yield Ship(by = ok.by, reason = ok.reason, order = ok.context.order, edited = ok.edited, id = ok.approval_id)
}
workflow Careful(order: String) => (why: String) andThen {
    ok = sys.approval(question = "Ship it?") catch when {
        case ok.error_type == "approval_denied" => { sys.log(denied = ok.error) }
        case _ => { sys.assert(false) }
    }
    yield Careful(why = ok.error_type)
}
"""
LATE = """
workflow Late() => (why: String) andThen { ok = sys.approval(question = "Now?", expires = 0.05) yield Late(why = ok.by) }
catch { yield Late(why = $.error_type) }
"""


@pytest.fixture(params=SHARED)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return make_engine(url_of(request.param, request, tmp_path))


async def asked(engine: Engine, count: int = 1) -> list[Approval]:
    async with asyncio.timeout(BOUND):
        while len(found := (await engine.approvals.list()).approvals) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


async def start(engine: Engine, workflow: str, **inputs: Any) -> Any:
    return await engine.start_run([("ship.afl", FLOW)], workflow, inputs)


@pytest.mark.postgres
async def test_a_step_waits_for_the_decision_and_has_it_as_its_returns(engine: Engine) -> None:
    async with engine:
        async with engine.worker():
            run = await start(engine, "Ship", order="A1")
            (shown,) = await asked(engine)
        assert (shown.run_id, shown.title, shown.deciders, shown.edits) == (run.id, "Ship A1?", ["ada"], True)
        assert (await engine.why(run)).code == "approval"
        # Decided while no worker is there; another one goes on.
        await engine.approvals.decide(shown.id, "approve", actor="ada", edits={"order": "B2"}, reason="swap")
        async with engine.worker():
            outputs = await engine.run_result(run, timeout=BOUND)
        assert outputs == {"by": "ada", "reason": "swap", "order": "B2", "edited": True, "id": shown.id}
        assert len((await engine.approvals.list(every=True)).approvals) == 1
        assert (await engine.kernel.verify()).holds


async def test_a_denial_fails_the_step_and_a_retry_requests_approval_again(engine: Engine) -> None:
    async with engine, engine.worker():
        run = await start(engine, "Ship", order="A1")
        (first,) = await asked(engine)
        await engine.approvals.decide(first.id, "deny", actor="ada", reason="no")
        with pytest.raises(RunFailed, match=r"Ship\.ok: approval denied by ada: no"):
            await engine.run_result(run, timeout=BOUND)
        await engine.runs.retry(run)
        (second,) = await asked(engine)
        assert second.id != first.id
        await engine.approvals.decide(second.id, "approve", actor="ada")
        assert (await engine.run_result(run, timeout=BOUND))["by"] == "ada"
        caught = await start(engine, "Careful", order="A1")
        (third,) = await asked(engine)
        await engine.approvals.decide(third.id, "deny", actor="bob")
        assert await engine.run_result(caught, timeout=BOUND) == {"why": "approval_denied"}


async def test_an_expired_request_fails_the_step_and_a_canceled_run_withdraws_it(engine: Engine) -> None:
    async with engine, engine.worker():
        with pytest.raises(RunFailed, match=r"Ship\.ok: approval expired: nobody decided"):
            await engine.run_result(await start(engine, "Ship", order="A1", days=0.1), timeout=BOUND)
        late = await engine.start_run([("late.afl", LATE)], "Late")
        assert await engine.run_result(late, timeout=BOUND) == {"why": "approval_expired"}
        run = await start(engine, "Ship", order="A2")
        (shown,) = await asked(engine)
        await engine.runs.cancel(run)
        assert (await engine.approvals.list()).approvals == []
        with raises_code("already_decided"):
            await engine.approvals.decide(shown.id, "approve", actor="ada")


async def test_invalid_options_fail_the_step_with_the_reason(engine: Engine) -> None:
    async with engine, engine.worker():
        flow = 'workflow W(n: Long) andThen { ok = sys.approval(question = "?", quorum = $.n) }'
        with pytest.raises(RunFailed, match="quorum"):
            await engine.run_result(await engine.start_run([("w.afl", flow)], "W", {"n": 0}), timeout=BOUND)
        assert (await engine.approvals.list(every=True)).approvals == []
