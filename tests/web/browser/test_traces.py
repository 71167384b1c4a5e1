"""The page of a trace in a browser: bars, groups, folding, links, live updates; usable by everybody, in both themes, on a phone."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Browser, expect
from tests.web.browser.conftest import IN_BROWSER, Screen, on_screen
from tests.web.browser.test_every_page import AXE, FOUND

from treadle import Engine

pytestmark = IN_BROWSER


async def fill(engine: Engine) -> str:
    """A run with many child runs and an approval."""

    async def look(number: int) -> int:
        return number

    @engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> int:
        return await ctx.step(look, payload["n"], name="look")

    @engine.handler("pack")
    async def pack(payload: dict[str, Any]) -> dict[str, Any]:
        return {}

    @engine.function("order")
    async def order(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.gather(*(ctx.call("pack", {"n": n}) for n in range(40)))
        await ctx.start("child", {"n": 1})
        await ctx.approval("Ship it?")

    return (await engine.start_function("order")).id


async def test_a_trace_is_one_timeline_that_updates_itself(screen: Screen) -> None:
    engine, page = screen.engine, screen.page
    run_id = await fill(engine)
    async with engine.worker():
        await screen.go(f"/runs/{run_id}")
        await page.get_by_role("link", name="Trace").click()
        await expect(page.locator("h1")).to_have_text("Trace of order")
        await screen.sees("Ship it?", "table.trace")
        await screen.sees("×40, 40 completed", "table.trace")
        await expect(page.locator("table.trace svg rect").first).to_be_visible()
        await page.get_by_role("link", name="Close child").click()
        await expect(page.get_by_text("look", exact=True)).to_have_count(0)
        await page.get_by_role("link", name="Open child").click()
        await expect(page.get_by_text("look", exact=True)).to_have_count(1)
        await page.get_by_role("link", name="Open all pack").click()
        await expect(page.locator("table.trace tbody tr")).to_have_count(40)
        await page.get_by_role("link", name="The whole trace").click()
        (approval,) = (await engine.approvals.list()).approvals
        await engine.approvals.decide(approval.id, "approve", actor="ann")  # the page shows it without a click
        await expect(page.locator("tr", has_text="Ship it?").locator(".badge", has_text="approved")).to_be_visible()
        await expect(page.locator(".facts .badge")).to_have_text("completed")


async def test_a_trace_can_be_used_in_both_themes_and_on_a_phone(browser: Browser) -> None:
    script = AXE.read_text() if AXE.is_file() else None
    async with Engine("memory://") as engine, engine.worker():
        run_id = await fill(engine)
        for theme, width in (("light", 1440), ("dark", 1440), ("dark", 390)):
            async with on_screen(browser, engine, viewport={"width": width, "height": 844}, color_scheme=theme) as shown:
                await shown.go(f"/traces/{run_id}")
                await shown.sees("Ship it?", "table.trace")
                assert await shown.page.evaluate("document.documentElement.scrollWidth") <= width
                if script is not None:
                    await shown.page.evaluate(script)
                    assert await shown.page.evaluate(FOUND, {}) == [], (theme, width)
