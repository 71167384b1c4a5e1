"""Pages about runs: found, watched, operated, forked."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import pytest
from tests.limits import BOUND
from tests.web.conftest import Visit

from treadle import NonRetryable, RunFailed
from treadle.api.runs import Activity, RunPage
from treadle.api.steps import StepTime, TimeSpan
from treadle.api.wire import Instant
from treadle.interfaces.web import runs as pages
from treadle.interfaces.web.conversation import conversation
from treadle.interfaces.web.filters import own_frames
from treadle.interfaces.web.step_tree import counts_text, folded, tree_order
from treadle.interfaces.web.traces import Scale, spans_of
from treadle.model.runs import ActivityKind, place_order
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
    for view in ("timeline", "steps", "source", "logs", "transitions", "values"):
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
    scale = Scale(Instant.of(0), 2000, Instant.of(2000))
    first = scale.bars(spans_of([], "step", Instant.of(0), Instant.of(1000)), "completed")
    second = scale.bars(spans_of(spans, "step", Instant.of(1000), None), "running")
    assert [(bar.kind, bar.x, bar.width) for bar in (*first, *second)] == [
        ("step", 0, 500),
        ("waiting", 500, 250),
        ("running live", 750, 250),
    ]
    assert scale.ticks == [0, 500, 1000, 1500, 2000]


def step(number: int, **more: object) -> StepTime:
    """An item of a foreach, or with other fields another step."""
    fields = {
        "id": f"s{number}", "path": f"W.orders[{number}]", "facet": None, "about": "", "state": "completed", "depth": 2,
        "task_id": None, "began_at": Instant.of(0), "ended_at": Instant.of(1000), "took_for": None, "kind": "item",
        "parent_id": "loop", "open": 0, "failed": 0, "total": None, "folds": True, "spans": [],
    }  # fmt: skip
    return StepTime(**fields | more)


def test_many_items_are_one_row_with_the_failures_below_it():
    items = [step(n, state="failed" if n == 150 else "running" if n == 160 else "completed") for n in range(200)]
    pay = [step(1000 + n, kind="step", path=f"W.orders[{n}].pay", parent_id=f"s{n}", depth=3) for n in range(200)]
    steps = tree_order([step(9999, id="loop", kind="block", path="W.orders", parent_id=None, depth=1), *items, *pay])
    rows = folded(steps, (), {"s7"})
    assert [each.id for each in rows] == ["loop", "s7", "s1007", "s150", "s1150", "s160", "s1160"]
    assert counts_text(Counter(each.state for each in items)) == "200 items · 198 ok · 1 failed · 1 running"
    few = tree_order([*items[:5], *pay[:5]])
    assert folded(few, (), ()) == few


def test_steps_of_a_gather_are_one_row_in_natural_order():
    branches = [
        step(n, path=f"1[{n}].fetch", kind="step", parent_id=None, state="failed" if n == 3 else "completed") for n in range(30)
    ]
    first = step(100, path="load", kind="step", parent_id=None)
    (load, (key, alike), failed) = folded([first, *branches], (), ())
    assert (load.id, len(alike), failed.id) == ("s100", 30, "s3")
    assert len(folded([first, *branches], [key], ())) == 32
    places = ["10", "2", "4.10.0", "4.2.1", "4.2.0"]
    assert sorted(places, key=place_order) == ["2", "4.2.0", "4.2.1", "4.10.0", "10"]
    assert place_order("W.orders[3]") == place_order("W.a")


def test_a_traceback_shows_the_frames_of_its_users():
    own = '  File "/home/ada/shop.py", line 3, in pay\n    charge()\n'
    library = '  File "/usr/lib/python3.12/site-packages/httpx/client.py", line 9, in send\n    raise Timeout\n'
    text = f"Traceback (most recent call last):\n{library}{own}{library}Timeout: slow\n"
    assert own_frames(text) == f"Traceback (most recent call last):\n{own}Timeout: slow\n"
    assert own_frames(text.replace(own, "")) == text.replace(own, "")


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}]},
        [
            {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hello?"}]},
            {"kind": "response", "parts": [{"part_kind": "text", "content": "Hi."}]},
        ],
    ],
)
def test_the_messages_of_an_agent_are_a_conversation(value: object):
    assert conversation(value) == [("prompt", "Hello?"), ("reply", "Hi.")]
    call = {"parts": [{"part_kind": "tool-call", "tool_name": "refund", "args": {"order": 7}}]}
    assert conversation(call)[0].role == "tool call"
    assert conversation({"amount": 3, "content": "text"}, [1, "x", None]) == []


IMPORT = """
namespace imports {
  event facet Load(n: Long) => (rows: Long)
  event facet Check(rows: Long) => (ok: Boolean)
  workflow Import(files: Json) => (rows: Json) andThen foreach file in $.files {
    load = Load(n = $.file)
    check = Check(rows = load.rows)
    yield Import(rows = [load.rows])
  }
}
"""


async def test_a_large_run_opens_at_the_item_that_failed(visit: Visit):
    @visit.engine.handler("imports.Load")
    async def load(payload: dict[str, int]) -> dict[str, int]:
        if payload["n"] == 150:
            raise NonRetryable("file 150 is empty")
        return {"rows": payload["n"]}

    @visit.engine.handler("imports.Check")
    async def check(payload: dict[str, int]) -> dict[str, bool]:
        return {"ok": True}

    async with visit.engine.worker(concurrency=20):
        flow, files = [("i.afl", IMPORT)], {"files": list(range(200))}
        run = await visit.engine.start_run(flow, "imports.Import", files, on_failure="finish")
        with pytest.raises(RunFailed):
            await visit.engine.run_result(run, timeout=BOUND)
    page = await visit.page(f"/runs/{run.id}")
    assert "200 items · 199 ok · 1 failed" in page
    tree = page.partition('<table class="fall tree">')[2].partition("</table>")[0]
    assert tree.count("<tr id=") < 12
    assert "n = 150" in tree
    assert "file 150 is empty" in page.partition('aria-label="Traceback">')[2].partition("</pre>")[0]
    opened = re.findall(r'class="fold" href="(/runs/[^"]+)"', page)
    pages = [await visit.page(address.replace("&amp;", "&")) for address in opened]
    assert any("(file = 7)" in each for each in pages)


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
