"""Many tabs of one browser: they share the connection to the event stream, and hidden ones need none."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from playwright.async_api import Page
from tests.limits import BOUND
from tests.web.browser.conftest import IN_BROWSER, Screen

from treadle import Context
from treadle.interfaces.http.app_state import AppState

pytestmark = IN_BROWSER
TABS = 20


async def live(page: Page) -> None:
    await page.locator("[data-live-state]", has_text="live").wait_for()


async def until_waiting(state: AppState, count: int) -> None:
    """Wait until that many connections wait for events or entries."""
    async with asyncio.timeout(BOUND):
        while len(state.waiters) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_twenty_tabs_follow_over_one_connection(screen: Screen):
    task = await screen.engine.enqueue("greet")
    tabs = [screen.page, *[await screen.page.context.new_page() for _ in range(TABS - 1)]]
    for tab in tabs:
        await tab.goto(f"{screen.url}/tasks/{task.id}")
    for tab in tabs:
        await live(tab)
    await until_waiting(screen.state, 1)
    other = await screen.engine.enqueue("other")
    await tabs[1].goto(f"{screen.url}/tasks/{other.id}")
    await live(tabs[1])
    await until_waiting(screen.state, 1)
    await screen.engine.cancel(task)
    for tab in (tabs[0], tabs[2], tabs[-1]):
        await tab.locator("main .badge", has_text="canceled").first.wait_for()
    assert await tabs[1].locator("main .badge", has_text="pending").first.is_visible()
    for tab in tabs[1:]:
        await tab.close()
    await screen.engine.cancel(other)
    await until_waiting(screen.state, 1)


async def test_a_hidden_tab_unsubscribes_and_catches_up_when_visible(screen: Screen):
    task = await screen.engine.enqueue("greet")
    await screen.go(f"/tasks/{task.id}")
    await live(screen.page)
    await show(screen.page, "hidden")
    await until_waiting(screen.state, 0)
    await screen.engine.cancel(task)
    await show(screen.page, "visible")
    await until_waiting(screen.state, 1)
    await screen.page.locator("main .badge", has_text="canceled").first.wait_for()


async def show(page: Page, state: str) -> None:
    """Hide or show a tab, as far as its page can tell."""
    await page.evaluate(
        "state => { Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        state,
    )


async def test_tabs_without_shared_workers_follow_on_their_own(screen: Screen):
    await screen.page.add_init_script("delete window.SharedWorker")
    task = await screen.engine.enqueue("greet")
    await screen.go(f"/tasks/{task.id}")
    await live(screen.page)
    await screen.engine.cancel(task)
    await screen.page.locator("main .badge", has_text="canceled").first.wait_for()
    assert len(screen.state.waiters) == 1


async def test_streams_beyond_the_connections_of_a_browser_are_polled(screen: Screen):
    go = asyncio.Event()

    @screen.engine.handler("speak")
    async def speak(payload: Any, ctx: Context) -> None:
        tokens = ctx.stream("tokens")
        tokens.write("one ")
        await tokens.flush()
        await go.wait()
        tokens.write("two")
        await tokens.flush()

    async with screen.engine.worker(concurrency=10):
        tasks = [await screen.engine.enqueue("speak") for _ in range(8)]
        for task in tasks:
            async with aclosing(screen.engine.stream(task, "tokens")) as entries:
                await asyncio.wait_for(anext(entries), BOUND)
        tabs = [screen.page, *[await screen.page.context.new_page() for _ in range(len(tasks) - 1)]]
        for tab, task in zip(tabs, tasks, strict=True):
            await tab.goto(f"{screen.url}/tasks/{task.id}")
            await live(tab)
        await until_waiting(screen.state, 4)
        go.set()
        for tab in tabs:
            await tab.locator("pre.stream", has_text="one two").wait_for()


@pytest.mark.parametrize("clipboard", ["available", "gone", "refused"])
async def test_the_copy_button_reports_success_and_reverts(screen: Screen, clipboard: str):
    if clipboard != "available":
        await screen.page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    if clipboard == "refused":
        await screen.page.add_init_script("document.execCommand = () => false")
    else:
        await screen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    task = await screen.engine.enqueue("greet")
    await screen.go(f"/tasks/{task.id}")
    button = screen.page.get_by_role("button", name="Copy the id")
    await button.click()
    await button.get_by_text("Not copied" if clipboard == "refused" else "Copied", exact=True).wait_for()
    await button.get_by_text("Copy", exact=True).wait_for()
    if clipboard == "available":
        assert await screen.page.evaluate("navigator.clipboard.readText()") == task.id
