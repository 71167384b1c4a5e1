"""Details in the browser: arguments, tracebacks, functions started from a form, rates, time zones, confirmations, forks."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Dialog, expect
from tests.limits import BOUND
from tests.web.browser.conftest import IN_BROWSER, Screen, on_screen

from treadle import Engine, FunctionContext, NonRetryable
from treadle.model.errors import RunFailed

pytestmark = IN_BROWSER


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def shop(browser: Browser) -> AsyncIterator[Screen]:
    """A store with a function of which one item fails, a schedule in Tokyo and ready tasks; the viewer is in New York."""
    engine = Engine("memory://")

    async def fetch(url: str, row: int) -> int:
        if row == 2:
            raise NonRetryable("the row is bad")
        return row

    @engine.function("crawl")
    async def crawl(payload: dict[str, Any], ctx: FunctionContext) -> list[int]:
        return await ctx.gather(*(ctx.step(fetch, f"https://a/{n}", n) for n in payload["rows"]))

    async with engine, engine.worker(), on_screen(browser, engine, timezone_id="America/New_York") as screen:
        await engine.schedules.create("nightly", cron="0 3 * * *", zone="Asia/Tokyo", task="billing.Report")
        for number in range(3):
            await engine.enqueue("nobody.Does", {"n": number}, task_list="night")
        yield screen


async def test_a_function_is_started_from_a_form_fails_and_shows_the_item_and_the_traceback(shop: Screen):
    page = shop.page
    await shop.go("/flows")
    await page.get_by_role("link", name="Start").click()
    payload = page.locator("textarea[name=payload]")
    await payload.fill('{"rows": [1, 2')
    await page.get_by_role("button", name="Start").click()
    await expect(page.locator("#error-payload")).to_contain_text("not JSON")
    shop.complaints.clear()  # the browser reports the answer 422
    await expect(payload).to_have_value('{"rows": [1, 2')
    await payload.fill('{"rows": [1, 2]}')
    await page.get_by_role("button", name="Start").click()
    await shop.sees("crawl has started.")
    run_id = page.url.rpartition("/")[2]
    with pytest.raises(RunFailed):
        await shop.engine.run_result(run_id, timeout=BOUND)
    await shop.go(f"/runs/{run_id}")  # which opens at the failure
    await shop.sees('(url = "https://a/2", row = 2)')
    await expect(page.get_by_label("Traceback", exact=True)).to_contain_text("the row is bad")
    await expect(page.get_by_text("the row is bad").filter(visible=True)).to_have_count(2)  # the message, and the traceback
    await page.keyboard.press("k")
    await page.wait_for_url("**?step=**")
    await expect(page.locator("#step pre[aria-label=Output]")).to_have_text('{\n  "value": 1\n}')
    await page.keyboard.press("j")
    await expect(page.get_by_label("Traceback", exact=True)).to_be_visible()
    await page.get_by_role("link", name="Fork from here").click()
    await page.get_by_label("Inputs to override").fill('{"rows": [1, 3]}')
    await page.get_by_role("button", name="Fork", exact=True).click()
    await shop.sees("Forked from")
    forked = page.url.rpartition("/")[2]
    assert await shop.engine.run_result(forked, timeout=BOUND) == [1, 3]
    await shop.go("/handlers")
    row = page.get_by_label("Rates and durations").locator("tr", has_text="crawl@1")
    await expect(row.locator("td").nth(2)).to_have_text("2")
    await expect(row.locator("td").nth(3)).to_have_text("1")


async def test_a_schedule_shows_its_own_time_zone_and_that_of_the_viewer(shop: Screen):
    await shop.go("/schedules/nightly")
    await shop.sees("03:00:00 JST")
    await expect(shop.page.locator("[data-local]").first).to_have_text(re.compile(r"E[SD]T for you"))


async def test_confirmations_name_the_consequence_and_the_number_affected(shop: Screen):
    page, asked = shop.page, []
    answers = iter([False, False, True])

    async def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        await (dialog.accept() if next(answers) else dialog.dismiss())

    page.on("dialog", answer)
    await shop.go("/schedules/nightly")
    await page.get_by_role("button", name="Remove").click()
    await shop.go("/lists/engine")
    await page.get_by_role("button", name="Pause").click()
    await shop.go("/lists/night")
    await page.get_by_role("button", name="Pause").click()
    await shop.sees("night")
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert asked[0].startswith("Remove the schedule nightly? It fired 0 times; it will not start billing.Report again.")
    assert asked[1].startswith("Pause the engine's own list? Schedules, watchers")
    assert asked[2] == "Pause night? 3 ready tasks wait until it is resumed; tasks that run continue."
    states = {each.task_list: each.paused for each in await shop.engine.kernel.store.operators.list_lists()}
    assert (states.get("engine", False), states["night"]) == (False, True)
