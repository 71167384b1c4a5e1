"""Pages about flows: seen, started from a form, written in the editor."""

from __future__ import annotations

import json

import pytest
from tests.limits import BOUND
from tests.web.conftest import Visit

from treadle.interfaces.web.flows import highlight

SHOP = """
namespace shop {
  schema Item { sku: String, count: Int }
  event facet Charge(amount: Int) => (receipt: String)
  workflow Checkout(amount: Int, gift: Boolean = false, note: String = "<b>", items: [Item] = []) => (receipt: String) andThen {
    paid = Charge(amount = $.amount)
    yield Checkout(receipt = paid.receipt)
  }
}
"""
BROKEN = SHOP.replace("paid.receipt", "paid.recipt")


async def test_a_flow_shows_its_workflows_graph_and_source(visit: Visit):
    await visit.engine.kernel.flows.publish("shop", [("shop.afl", SHOP)], actor="ada")
    assert 'href="/flows/shop"' in await visit.page("/flows")
    page = await visit.page("/flows/shop")
    assert "shop.Checkout" in page
    assert '<span class="tok-keyword">workflow</span>' in page
    assert "paid = shop.Charge" in page


async def test_a_workflow_is_started_from_a_form_made_from_its_signature(visit: Visit):
    await visit.engine.kernel.flows.publish("shop", [("shop.afl", SHOP)], actor="ada")
    page = await visit.page("/flows/shop/start?workflow=shop.Checkout")
    assert 'type="number" step="1" name="in-amount"' in page
    assert 'value="&lt;b&gt;"' in page
    page = await visit.do(
        "/flows/shop/start",
        workflow="shop.Checkout",
        **{"in-amount": "12", "in-gift": "true", "in-items": '[{"sku": "a", "count": 2}]'},
    )
    assert "shop.Checkout has started." in page
    (run,) = await visit.engine.kernel.run_reads.list_runs()
    assert await visit.engine.kernel.runs.inputs(run) == {"amount": 12, "gift": True, "items": [{"sku": "a", "count": 2}]}
    assert "amount must be of type Int" in await visit.do("/flows/shop/start", workflow="shop.Checkout", **{"in-amount": "many"})


async def test_the_editor_reports_errors_and_publishes_valid_flows(visit: Visit):
    assert "It compiles" in await visit.page("/editor")
    page = await visit.do("/editor", name="shop.afl", text=BROKEN, do="publish", flow="shop")
    assert "It does not compile" in page
    assert "recipt" in page
    assert (await visit.engine.kernel.flows.list_versions()) == []
    assert "shop version 1 is published." in await visit.do("/editor", name="shop.afl", text=SHOP, do="publish", flow="shop")
    assert "recipt" not in await visit.page("/editor?flow=shop")
    fragment = await visit.do("/editor/check", name="shop.afl", text=BROKEN)
    assert "<html" not in fragment
    assert "It does not compile" in fragment


async def test_the_editor_publishes_sources_with_warnings_only_if_they_are_accepted(visit: Visit):
    doubtful = SHOP.replace("$.amount)", '"ten")')
    form = {"name": "shop.afl", "text": doubtful, "do": "publish", "flow": "shop"}
    page = await visit.do("/editor", **form)
    assert "It does not compile" in page
    assert "type-mismatch" in page
    assert "It compiles" in await visit.do("/editor/check", name="shop.afl", text=doubtful, lenient="yes")
    assert "shop version 1 is published." in await visit.do("/editor", **form, lenient="yes")


def test_colours_change_no_character_and_escape_all():
    text = '/* <a> */ workflow W(s: String = "<&>") => () // "x\n$.a 12 script """\n</pre>"""'
    lines = [str(line.striptags()) if "<span" in line else str(line.unescape()) for line in highlight(text)]
    assert [line.split() for line in lines] == [line.split() for line in text.split("\n")]
    assert not any("<a>" in line or "</pre>" in line for line in highlight(text))


async def test_an_invalid_or_missing_version_has_the_right_status(visit: Visit):
    await visit.engine.kernel.flows.publish("shop", [("shop.afl", SHOP)], actor="ada")
    for version, status in (("²", 422), ("x", 422), ("9" * 30, 404), ("2", 404)):
        assert (await visit.browser.get(f"/flows/shop?version={version}")).status_code == status


@pytest.mark.parametrize("typed", ["[" * 5000, "{", "1" * 5000, "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")])
async def test_unparsable_inputs_are_rejected(visit: Visit, typed: str):
    await visit.engine.kernel.flows.publish("shop", [("shop.afl", SHOP)], actor="ada")
    form = {"workflow": "shop.Checkout", "in-amount": "1", "in-items": typed}
    assert "in-items" not in await visit.do("/flows/shop/start", **form)
    assert (await visit.browser.get("/schedules/new", params={"inputs": typed})).status_code == 422
    assert await visit.engine.kernel.run_reads.list_runs() == []


async def test_a_function_is_started_from_its_form_and_errors_are_at_their_fields(visit: Visit):
    async def order(payload: dict[str, int]) -> int:
        return payload["id"]

    visit.engine.function("order")(order)
    async with visit.engine.worker():
        page = await visit.page("/flows")
        assert 'href="/functions/order/start"' in page
        assert "Start order" in await visit.page("/functions/order/start")
        visit.browser.headers["referer"] = "http://127.0.0.1/functions/order/start"
        answer = await visit.browser.post("/functions/order/start", data={"payload": '{"id": 1', "priority": "soon", "version": ""})
        assert answer.status_code == 422
        rejected = answer.text
        assert rejected.count("field-error") == 2
        assert 'aria-describedby="error-payload"' in rejected
        assert 'aria-describedby="error-priority"' in rejected
        assert "{&quot;id&quot;: 1" in rejected or '{"id": 1' in rejected
        done = await visit.do("/functions/order/start", payload='{"id": 7}', version="1")
        assert "order has started." in done
        (run,) = await visit.engine.kernel.run_reads.list_runs()
        assert await visit.engine.run_result(run.id, timeout=BOUND) == 7
        assert "order@1" in await visit.page("/handlers")
    answer = await visit.browser.get("/functions/nothing/start")
    assert answer.status_code == 404


async def test_the_editor_gets_completions_and_hovers_of_the_language_server(visit: Visit):
    text = SHOP.replace("paid.receipt)", "paid.)")
    line = next(number for number, each in enumerate(text.splitlines()) if "yield" in each)
    column = text.splitlines()[line].index("paid.") + 5
    found = json.loads(await visit.do("/editor/complete", name="shop.afl", text=text, line=str(line), column=str(column)))
    assert {"receipt", "amount"} <= {each["label"] for each in found}
    shown = json.loads(await visit.do("/editor/hover", name="shop.afl", text=SHOP, line="3", column="17"))
    assert shown["heading"] == "event facet shop.Charge(amount: Int) => (receipt: String)"
    assert json.loads(await visit.do("/editor/hover", name="shop.afl", text=SHOP, line="0", column="0")) is None
    assert "no such place" in await visit.do("/editor/complete", name="shop.afl", text=SHOP, source="1", line="0", column="0")
