"""Live pages in a browser: pages follow changes, and buttons act."""

from __future__ import annotations

import pytest
from tests.web.browser.conftest import IN_BROWSER, Screen

from treadle.interfaces.web.site import STATIC

pytestmark = IN_BROWSER
CODE = STATIC / "vendor/codemirror.js"


async def test_a_page_shows_a_task_finish_without_reloading(screen: Screen):
    made = await screen.engine.enqueue("greet", {"name": "Ada"})
    await screen.go(f"/tasks/{made.id}")
    await screen.sees("pending")
    await screen.page.locator("[data-live-state]", has_text="live").wait_for()

    @screen.engine.handler("greet")
    async def greet(payload: dict[str, str]) -> dict[str, str]:
        return {"hello": payload["name"]}

    async with screen.engine.worker():
        await screen.sees("completed")
        await screen.sees('"hello": "Ada"')


async def test_pause_acts_immediately_and_cancel_requires_confirmation(screen: Screen):
    made = await screen.engine.enqueue("greet", {"name": "Ada"})
    await screen.go(f"/tasks/{made.id}")
    await screen.page.get_by_role("button", name="Pause").click()
    await screen.sees("greet is now paused.")
    await screen.page.evaluate("treadle.refresh()")
    assert await screen.page.get_by_role("status").get_by_text("greet is now paused.").count() == 1  # until the next page
    screen.page.once("dialog", lambda dialog: dialog.dismiss())
    await screen.page.get_by_role("button", name="Cancel").click()
    assert (await screen.engine.kernel.reads.get_task(made)).shown_state == "paused"
    screen.page.once("dialog", lambda dialog: dialog.accept())
    await screen.page.get_by_role("button", name="Cancel").click()
    await screen.sees("greet is now canceled.")


async def test_keyboard_shortcuts_navigate_between_pages(screen: Screen):
    """No key is ignored: each page and the help appear."""
    await screen.go("/tasks")
    await screen.page.keyboard.press("g")
    await screen.page.keyboard.press("r")
    await screen.page.wait_for_url("**/runs")
    await screen.page.keyboard.press("?")
    await screen.page.get_by_role("heading", name="Keyboard shortcuts").wait_for()


SHOP = """
namespace shop {
  event facet Charge(amount: Int) => (receipt: String)
  workflow Checkout(amount: Int) => (receipt: String) andThen {
    paid = Charge(amount = $.amount)
    yield Checkout(receipt = paid.receipt)
  }
}
"""


@pytest.mark.skipif(not CODE.is_file(), reason="CodeMirror is not bundled: `make assets`")
async def test_the_editor_colours_afl_and_marks_diagnostics_in_the_text(screen: Screen):
    page = screen.page
    await screen.go("/editor")
    source = page.locator(".cm-content")
    await source.fill(SHOP.replace("paid.receipt", "paid.recipt"))
    await source.locator("span.tok-keyword", has_text="namespace").wait_for()
    await source.locator(".cm-lintRange-error", has_text="paid.recipt").wait_for()
    await page.locator(".diagnostic.error").click()
    await page.keyboard.insert_text("paid.receipt /* ")
    await page.keyboard.press("End")
    await page.keyboard.insert_text(" */)")
    await screen.sees("It compiles")
    await source.locator(".cm-lintRange-error").wait_for(state="detached")
    await page.get_by_role("button", name="Format").click()
    await screen.sees("It compiles")
    assert "yield Checkout(receipt = paid.receipt" in await page.locator(".cm-content").inner_text()


@pytest.mark.skipif(
    "cm-treadle-hover" not in (CODE.read_text() if CODE.is_file() else ""), reason="CodeMirror is not bundled anew: `make assets`"
)
async def test_the_editor_completes_names_and_explains_them(screen: Screen):
    page = screen.page
    await screen.go("/editor")
    source = page.locator(".cm-content")
    await source.fill(SHOP.replace("paid.receipt)", "paid"))
    await screen.sees("It does not compile")
    await source.locator(".cm-line", has_text="yield Checkout").click()
    await page.keyboard.press("End")
    await page.keyboard.type(".")
    await page.locator(".cm-tooltip-autocomplete li", has_text="receipt").click()
    await page.locator(".cm-tooltip-autocomplete").wait_for(state="detached")
    await page.keyboard.type(")")
    await screen.sees("It compiles")
    assert "yield Checkout(receipt = paid.receipt)" in await source.inner_text()
    await source.locator(".cm-line", has_text="paid = Charge").get_by_text("$.amount").hover()
    await page.locator(".cm-treadle-hover", has_text="(parameter) amount: Int").wait_for()


async def test_a_flow_is_fixed_in_the_editor_published_started_and_finishes(screen: Screen):
    @screen.engine.handler("shop.Charge")
    async def charge(payload: dict[str, int]) -> dict[str, str]:
        return {"receipt": f"r-{payload['amount']}"}

    page = screen.page
    await screen.go("/editor")
    await page.get_by_role("textbox", name="Source").fill(SHOP.replace("paid.receipt", "paid.recipt"))
    await screen.sees("It does not compile")
    await page.get_by_role("textbox", name="Source").fill(SHOP)
    await screen.sees("It compiles")
    await page.get_by_role("textbox", name="Name").fill("shop")
    await page.get_by_role("button", name="Publish").click()
    await screen.sees("shop version 1 is published.")
    await page.get_by_role("link", name="Start", exact=True).click()
    await page.get_by_label("amount").fill("12")
    await page.get_by_role("button", name="Start").click()
    await screen.sees("shop.Checkout has started.")
    await page.locator(".graph svg .node").first.wait_for()
    await page.locator("[data-live-state]", has_text="live").wait_for()
    async with screen.engine.worker():
        await page.locator(".graph svg .node.event.good").wait_for()
        await page.locator("p.facts .badge", has_text="completed").wait_for()
