"""Pages about runs: found, watched, operated, forked."""

from __future__ import annotations

import re

import msgspec
import pytest
from tests.limits import BOUND
from tests.web.conftest import Visit

from treadle.api.runs import Activity, RunPage
from treadle.api.steps import StepTime, Timeline, TimeSpan
from treadle.api.wire import Instant
from treadle.interfaces.web import runs as pages
from treadle.interfaces.web.traces import waterfall
from treadle.model.runs import ActivityKind
from treadle.model.states import RunState

SHOP = """
namespace shop {
  event facet Charge(amount: Int) => (receipt: String)
  workflow Checkout(amount: Int) => (receipt: String) andThen {
    paid = Charge(amount = $.amount)
    yield Checkout(receipt = paid.receipt)
  }
}
"""

ACTIVITIES = {
    "running": "running",
    "waiting_for_approval": "waiting for a person",
    "waiting_for_signal": "waiting for a signal",
    "waiting_for_external_job": "waiting for an external job",
    "waiting_for_child": "waiting for a child run",
    "retrying": "retrying",
    "sleeping": "sleeping",
    "waiting_for_worker": "waiting for a worker",
    "blocked": "task list default is paused",
    "waiting_for_task": "waiting for a task",
    "stuck": "stuck",
}
"""The text of each activity in the list of runs; a blocked run shows the reason."""
TONES = {"pending": "wait", "running": "busy", "paused": "hold", "completed": "good", "failed": "bad", "canceled": "gone"}


async def started(visit: Visit, amount: int = 1) -> str:
    return (await visit.engine.start_run([("shop.afl", SHOP)], "shop.Checkout", {"amount": amount})).id


async def test_runs_are_listed_counted_and_filtered(visit: Visit):
    run_id = await started(visit)
    page = await visit.page("/runs")
    assert f"/runs/{run_id}" in page
    assert f"/runs/{run_id}" not in await visit.page("/runs?state=failed")
    assert f"/runs/{run_id}" in await visit.page("/runs?search=Check&kind=workflow")


async def test_each_state_and_activity_of_a_run_has_its_own_text(visit: Visit, monkeypatch: pytest.MonkeyPatch):
    await started(visit)
    (row,) = (await visit.engine.runs.list()).runs
    none = {"until": None, "name": None, "id": None, "counts": {}}
    reason = ACTIVITIES["blocked"]
    rows = [msgspec.structs.replace(row, id=kind, activity=Activity(kind=kind, text=reason, **none)) for kind in ActivityKind]
    rows += [msgspec.structs.replace(row, id=f"is-{state}", state=state, activity=None) for state in RunState]

    async def list_runs(*_: object, **__: object) -> RunPage:
        return RunPage(rows, next_before=None)

    monkeypatch.setattr(type(visit.engine.kernel.run_services.run_operations), "list", list_runs)
    page = await visit.page("/runs")
    activities = re.findall(r'<tr id="run-(\w+)">.*?<span class="activity">\s*([^<]*?)\s*</span>', page, re.DOTALL)
    assert dict(activities[: len(ActivityKind)]) == ACTIVITIES
    badges = re.findall(r'<tr id="run-is-(\w+)">.*?<span class="badge (\w+)">(\w+)</span>', page, re.DOTALL)
    assert badges == [(state, TONES[state], state) for state in RunState]


async def test_a_run_has_every_view(visit: Visit):
    run_id = await started(visit, 77)
    for view in ("timeline", "steps", "logs", "transitions", "values"):
        assert "shop.Checkout" in await visit.page(f"/runs/{run_id}?view={view}")
    assert "77" in await visit.page(f"/runs/{run_id}?view=values")
    answer = await visit.browser.get(f"/runs/{run_id}?view=other")
    assert answer.status_code == 422


async def test_a_run_is_paused_resumed_and_canceled(visit: Visit):
    run_id = await started(visit)
    assert "shop.Checkout is now paused." in await visit.do(f"/runs/{run_id}/pause")
    assert "shop.Checkout is now running." in await visit.do(f"/runs/{run_id}/resume")
    assert "shop.Checkout is now canceled." in await visit.do(f"/runs/{run_id}/cancel", reason="enough")
    assert "shop.Checkout is running again." in await visit.do(f"/runs/{run_id}/rerun", inputs='{"amount": 5}')
    assert "This is not JSON" in await visit.do(f"/runs/{run_id}/rerun", inputs="{")


async def test_a_bulk_action_is_previewed(visit: Visit):
    ids = [await started(visit, amount) for amount in range(3)]
    page = await visit.page("/runs/bulk?action=cancel&workflow=shop.Checkout")
    assert "Cancel 3 runs?" in page
    assert [(await visit.engine.kernel.run_reads.get_run(each)).state for each in ids] == ["running"] * 3
    assert "cancel: 3 runs." in await visit.do("/runs/bulk", action="cancel", workflow="shop.Checkout")
    assert [(await visit.engine.kernel.run_reads.get_run(each)).state for each in ids] == ["canceled"] * 3


async def test_a_bulk_action_on_many_rows_continues_from_its_preview(visit: Visit, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "_AT_ONCE", 1)
    monkeypatch.setattr(pages, "_PAGES_AT_ONCE", 2)
    for amount in range(3):
        await started(visit, amount)
    page = await visit.do("/runs/bulk", action="cancel", workflow="shop.Checkout")
    assert "cancel: 2 runs. More remain." in page
    assert "Cancel 1 run" in page
    assert "cancel: 1 runs." in await visit.do("/runs/bulk", action="cancel", workflow="shop.Checkout")


async def test_a_step_shows_its_attempts_and_a_run_is_forked_from_it(visit: Visit):
    @visit.engine.handler("shop.Charge")
    async def charge(payload: dict[str, int]) -> dict[str, str]:
        return {"receipt": f"r-{payload['amount']}"}

    async with visit.engine.worker():
        run_id = await started(visit)
        await visit.engine.run_result(run_id, timeout=BOUND)
    page = await visit.page(f"/runs/{run_id}/steps/Checkout.paid")
    assert "r-1" in page
    assert "Fork from here" in page
    assert "Forked from Checkout.paid." in await visit.do(f"/runs/{run_id}/fork", step="Checkout.paid")
    asked = await visit.page(f"/runs/{run_id}/steps/Checkout.paid?fork=1")
    assert "These calls have been made, and are made again" in asked
    assert "Forked from" in await visit.do(f"/runs/{run_id}/fork", step="Checkout.paid", result="", replace="1")


def test_bars_are_on_one_scale():
    spans = [TimeSpan("waiting", Instant.of(1000), Instant.of(1500)), TimeSpan("running", Instant.of(1500), None)]
    steps = [
        StepTime("a", "W.a", "x.A", "", "completed", 1, None, Instant.of(0), Instant.of(1000), None, []),
        StepTime("b", "W.b", "x.B", "", "running", 1, None, Instant.of(1000), None, None, spans),
    ]
    rows, ticks = waterfall(Timeline("r", Instant.of(2000), steps, None))
    assert [(bar.kind, bar.x, bar.width) for row in rows for bar in row.bars] == [
        ("step", 0, 500),
        ("waiting", 500, 250),
        ("running live", 750, 250),
    ]
    assert ticks == [0, 500, 1000, 1500, 2000]


async def test_a_partial_model_response_is_shown_while_it_streams(visit: Visit):
    run_id = await started(visit)
    assert "the model is responding" not in await visit.page(f"/runs/{run_id}")
    step = await visit.engine.kernel.run_reads.get_step(run_id, "Checkout.paid")
    await visit.engine.kernel.runs.update_step(run_id, step.id, {"_text": "Dear <Ada>, your order"})
    page = await visit.page(f"/runs/{run_id}")
    assert "the model is responding" in page
    assert "Dear &lt;Ada&gt;, your order" in page


async def test_the_steps_of_a_large_run_are_filtered_by_state(visit: Visit, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "_STEPS", 2)
    run_id = await started(visit)
    assert "paid" in await visit.page(f"/runs/{run_id}?view=steps&state=pending")
    assert "No failed steps." in await visit.page(f"/runs/{run_id}?view=steps&state=failed")
