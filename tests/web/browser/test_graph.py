"""The graph of a run in a browser: counts on foreach, folding, zoom, the keyboard, and very many items."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import expect
from tests.limits import BOUND
from tests.web.browser.conftest import IN_BROWSER, Screen

from treadle import NonRetryable
from treadle.model.errors import RunFailed

FLOW = """
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

pytestmark = IN_BROWSER


async def test_the_graph_counts_items_folds_zooms_and_obeys_the_keyboard(screen: Screen):
    engine, page = screen.engine, screen.page

    @engine.handler("imports.Load")
    async def load(payload: dict[str, Any]) -> dict[str, Any]:
        if payload["n"] == 3:
            raise NonRetryable("the file is bad")
        return {"rows": payload["n"]}

    @engine.handler("imports.Check")
    async def check(payload: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True}

    run = await engine.start_run([("i.afl", FLOW)], "Import", {"files": list(range(7))}, on_failure="finish")
    async with engine.worker():
        with pytest.raises(RunFailed):
            await engine.run_result(run.id, timeout=BOUND)
    await screen.go(f"/runs/{run.id}")
    graph = page.locator(".graph svg")
    foreach = graph.locator("[data-toggle]", has_text="foreach file")
    await expect(graph.locator(".block.bad .count")).to_have_text("6 of 7, 1 failed")
    await expect(graph.locator(".node.event.bad", has_text="Load")).to_contain_text("6 of 7, 1 failed")
    nodes = await graph.locator(".node").count()

    await foreach.focus()
    await page.keyboard.press("Enter")
    await expect(foreach).to_have_attribute("aria-expanded", "false")
    await expect(foreach).to_be_focused()
    await expect(graph.locator(".node.folded.bad .small")).to_have_text("6 of 7, 1 failed")
    assert await graph.locator(".node").count() < nodes
    await page.keyboard.press(" ")
    await expect(foreach).to_have_attribute("aria-expanded", "true")
    await page.get_by_role("button", name="Collapse all").click()
    await expect(graph.locator(".node.event")).to_have_count(0)
    await page.get_by_role("button", name="Expand all").click()
    await expect(graph.locator(".node")).to_have_count(nodes)

    async def width() -> float:
        return float(await graph.get_attribute("width") or 0)

    fitted = await width()
    await page.get_by_role("button", name="Zoom in").click()
    assert await width() > fitted
    await page.locator(".graph .canvas").focus()
    await page.keyboard.press("-")
    await page.keyboard.press("-")
    assert await width() < fitted
    await page.keyboard.press("0")
    assert await width() == fitted

    await graph.get_by_role("link", name="Items of").click()
    await screen.sees("(file = 3)")


async def test_a_run_of_5000_items_stays_a_small_page(screen: Screen):
    engine, page, items = screen.engine, screen.page, 5000
    run = await engine.start_run([("i.afl", FLOW)], "Import", {"files": list(range(items))})
    async with engine.worker():
        while (await engine.kernel.run_reads.get_run(run.id)).steps < 2 * items:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    sizes: list[int] = []

    async def measure(response: Any) -> None:
        if response.request.resource_type == "document":
            sizes.append(len(await response.body()))

    page.on("response", measure)
    for path, bound in ((f"/runs/{run.id}", 6000), (f"/runs/{run.id}?view=steps", 6000)):
        await screen.go(path)
        assert await page.evaluate("document.getElementsByTagName('*').length") < bound
    await screen.go(f"/runs/{run.id}")
    await expect(page.locator(".graph .block .count")).to_have_text(f"0 of {items}, {items} running")
    assert max(sizes) < 600_000
