"""Switching between the namespaces of a directory in a browser."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect
from tests.directories import write_directory
from tests.web.browser.conftest import IN_BROWSER, Screen, on_screen
from tests.web.browser.screenshots import settled
from tests.web.browser.test_every_page import AXE, FOUND, PHONE, WIDE

from treadle import Engine
from treadle.settings import Settings

pytestmark = IN_BROWSER

LONG = "research-and-development-of-the-northern-region"


@asynccontextmanager
async def logged_in(browser: Browser, folder: Path, *names: str, **options: Any) -> AsyncIterator[tuple[Screen, dict[str, str]]]:
    """A dashboard in front of these namespaces, logged in to the server's own, and the tokens of the others."""
    secrets: dict[str, str] = {}
    stores = {name: f"sqlite:///{folder / f'{name}.db'}" for name in names}
    for name, url in stores.items():
        async with Engine(url, settings=Settings(namespace=name)) as engine:
            secrets[name] = (await engine.kernel.tokens.create("ada", ["read"])).secret
            await engine.enqueue(f"{name}.Work")
    write_directory(folder / "directory.toml", stores)
    settings = Settings(directory=str(folder / "directory.toml"))
    async with Engine(f"sqlite:///{folder / 'own.db'}", settings=settings) as engine:
        own = (await engine.kernel.tokens.create("ada", ["read"])).secret
        async with on_screen(browser, engine, **options) as screen:
            await screen.go("/")
            await log_in(screen.page, own)
            await screen.page.wait_for_url(f"{screen.url}/")
            yield screen, secrets


async def log_in(page: Page, secret: str) -> None:
    await page.get_by_label("Token").fill(secret)
    await page.get_by_role("button", name="Log in").click()


def switcher(page: Page) -> Locator:
    return page.locator("header details.places")


async def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(10):
        await page.keyboard.press("Tab")
        if await target.evaluate("each => each === document.activeElement"):
            return
    raise AssertionError("Tab does not reach it")


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
async def test_the_keyboard_alone_leads_to_the_dashboard_of_another_namespace(browser: Browser, tmp_path: Path, scripts: bool):
    async with logged_in(browser, tmp_path, "red", java_script_enabled=scripts) as (screen, secrets):
        page = screen.page
        summary, link = switcher(page).locator("summary"), switcher(page).get_by_role("link", name="red")
        await expect(summary).to_have_text("Namespace default")
        await expect(link).to_be_hidden()
        await tab_to(page, summary)
        await page.keyboard.press("Enter")
        await expect(link).to_be_visible()
        await tab_to(page, link)
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{screen.url}/ns/red/login?*")
        await expect(summary).to_have_text("Namespace red")  # also where a token is still missing: which one, and the way back
        await log_in(page, secrets["red"])
        await page.wait_for_url(f"{screen.url}/ns/red/")
        await expect(summary).to_have_text("Namespace red")
        await page.get_by_role("link", name="Runs", exact=True).click()
        await page.get_by_role("link", name="Tasks", exact=True).click()
        await screen.sees("red.Work")
        await summary.click()
        await switcher(page).get_by_role("link", name="default").click()
        await page.wait_for_url(f"{screen.url}/")


async def test_escape_and_a_click_elsewhere_close_the_switcher(browser: Browser, tmp_path: Path):
    async with logged_in(browser, tmp_path, "red") as (screen, _):
        page = screen.page
        summary, link = switcher(page).locator("summary"), switcher(page).get_by_role("link", name="red")
        await summary.click()
        await link.focus()
        await page.keyboard.press("Escape")
        await expect(link).to_be_hidden()
        await expect(summary).to_be_focused()
        await summary.click()
        await page.get_by_role("heading", level=1).click()
        await expect(link).to_be_hidden()
        await summary.click()
        await tab_to(page, page.get_by_role("button", name="Theme"))
        await expect(link).to_be_hidden()


@pytest.mark.parametrize("names", [(), ("default",)], ids=["none listed", "its own"])
async def test_one_namespace_has_no_switcher(browser: Browser, tmp_path: Path, names: tuple[str, ...]):
    async with logged_in(browser, tmp_path, *names) as (screen, _):
        await expect(page_title(screen.page)).to_be_visible()
        await expect(switcher(screen.page)).to_have_count(0)


async def test_tabs_of_many_namespaces_share_the_connections_of_a_browser(browser: Browser, tmp_path: Path):
    names = [f"n{number}" for number in range(8)]
    async with logged_in(browser, tmp_path, *names) as (screen, secrets):
        tabs = {}
        for name in names:
            tabs[name] = await screen.page.context.new_page()
            await tabs[name].goto(f"{screen.url}/ns/{name}/login")
            await log_in(tabs[name], secrets[name])
            await tabs[name].wait_for_url(f"{screen.url}/ns/{name}/")
            await tabs[name].goto(f"{screen.url}/ns/{name}/tasks")
        for name, tab in tabs.items():
            await expect(tab.locator("[data-live-state]")).to_have_text(re.compile("live|polling"))
            async with Engine(f"sqlite:///{tmp_path / f'{name}.db'}", settings=Settings(namespace=name)) as engine:
                await engine.cancel(await engine.enqueue(f"{name}.More"))
            await tab.locator("main").get_by_text(f"{name}.More").first.wait_for()
        states = [await tab.locator("[data-live-state]").text_content() for tab in tabs.values()]
        assert sorted(set(states)) == ["live", "polling"]


def page_title(page: Page) -> Locator:
    return page.get_by_role("heading", level=1)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
async def test_the_switcher_fits_in_the_header(browser: Browser, tmp_path: Path, theme: str, size: dict[str, int]):
    look = {"viewport": size, "color_scheme": theme, "reduced_motion": "reduce"}
    async with logged_in(browser, tmp_path, "red", LONG, **look) as (screen, secrets):
        page = screen.page
        await screen.go(f"/ns/{LONG}/")
        await log_in(page, secrets[LONG])
        await page.wait_for_url(f"{screen.url}/ns/{LONG}/")
        await screen.is_live()
        await switcher(page).locator("summary").click()
        await settled(page)
        assert await page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        for part in await page.locator("header.top > *:visible, .places ul").all():
            box = await part.bounding_box()
            assert box is not None
            assert box["x"] >= 0, box
            assert box["x"] + box["width"] <= size["width"], box
        header = await page.locator("header.top").bounding_box()
        assert header is not None
        assert header["height"] < 60, "the header has one line"
        if AXE.is_file():
            await page.evaluate(AXE.read_text())
            assert await page.evaluate(FOUND, {}) == []
