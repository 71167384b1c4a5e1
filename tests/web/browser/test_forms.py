"""Messages that stay, forms that keep their input, the grouped menu, and rows as cards on a phone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, expect
from tests.web.browser.conftest import IN_BROWSER, Screen, on_screen

from treadle.engine import Engine

pytestmark = IN_BROWSER


@pytest_asyncio.fixture(loop_scope="session")
async def screen(browser: Browser) -> AsyncIterator[Screen]:
    async with Engine("memory://") as engine, on_screen(browser, engine) as shown:
        yield shown


async def test_a_confirmation_stays_until_it_is_dismissed(screen: Screen):
    task = await screen.engine.enqueue("nobody.Does", {})
    await screen.go(f"/tasks/{task.id}")
    await screen.page.get_by_role("button", name="Pause").click()
    message = screen.page.locator("#flash")
    await expect(message).to_contain_text("paused")
    await screen.is_live()
    await screen.page.evaluate("window.treadle.refresh()")
    await screen.engine.resume(task.id)
    await expect(screen.page.locator("main .badge").first).to_have_text("pending")  # the page has changed since
    await expect(message).to_be_visible()
    await message.get_by_role("button", name="Dismiss").click()
    await expect(message).to_have_count(0)


async def test_a_rejected_form_keeps_its_input_and_marks_the_invalid_field(screen: Screen):
    await screen.go("/schedules/new")
    await screen.page.get_by_label("Name", exact=False).first.fill("nightly")
    await screen.page.locator("input[name=cron]").fill("every now and then")
    await screen.page.locator("input[name=target]").fill("billing.Report")
    await screen.page.locator("select[name=kind]").select_option("task")
    await screen.page.get_by_role("button", name="Create").click()
    await screen.page.locator(".field-error").wait_for()
    screen.complaints.clear()  # the browser reports the answer 422
    wrong = screen.page.locator("input[name=cron]")
    await expect(wrong).to_have_attribute("aria-invalid", "true")
    await expect(wrong).to_have_value("every now and then")
    await expect(screen.page.locator("#error-cron")).to_contain_text("every now and then")
    await expect(screen.page.locator("input[name=target]")).to_have_value("billing.Report")
    await wrong.fill("0 3 * * *")
    await screen.page.get_by_role("button", name="Create").click()
    await expect(screen.page.locator("h1")).to_have_text("nightly")


async def test_rows_are_cards_on_a_phone_and_filters_are_collapsed(browser: Browser):
    async with Engine("memory://") as engine, on_screen(browser, engine, viewport={"width": 390, "height": 844}) as phone:
        for number in range(20):
            await engine.enqueue(f"a.rather.long.name.of.a.handler.Number{number}", {})
        await phone.go("/tasks")
        body = phone.page.locator("tbody")
        await expect(body.locator("tr").first).to_have_css("display", "block")
        assert await phone.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert await phone.page.evaluate("document.documentElement.scrollHeight") < 20 * 220
        search = phone.page.locator("form[data-filter] input").first
        await expect(search).to_be_hidden()
        await phone.page.get_by_role("button", name="Filters").click()
        await expect(search).to_be_visible()
        await phone.page.evaluate("treadle.refresh()")
        await expect(search).to_be_visible()
        assert await phone.page.get_by_role("button", name="Filters").count() == 1
