"""The real server in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect
from tests.limits import BOUND
from tests.web.browser import chromium

from treadle.engine import Engine
from treadle.interfaces.http.app_state import AppState
from treadle.interfaces.http.server import HttpOptions, HttpServer
from treadle.interfaces.web.site import add_pages


@dataclass
class Screen:
    """An engine under a server, a page of a browser that shows it, and what the browser complained of."""

    engine: Engine
    url: str
    page: Page
    state: AppState
    complaints: list[str] = field(default_factory=list)

    async def go(self, path: str) -> None:
        """Open a page of the dashboard."""
        await self.page.goto(f"{self.url}{path}")

    async def is_live(self) -> None:
        """Wait until the page follows what happens."""
        await self.page.locator("[data-live-state]", has_text="live").wait_for()

    async def sees(self, text: str, within: str = "main") -> None:
        """Wait until that is on the page."""
        await self.page.locator(within).get_by_text(text).first.wait_for()


IN_BROWSER = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("browser")]
"""All tests share one browser, which belongs to one event loop of one process."""


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A browser that all tests share; each has a profile of its own."""
    program, problem = chromium.get()
    if program is None:
        pytest.skip(problem)
    expect.set_options(timeout=BOUND * 1000)
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=program, args=list(chromium.FLAGS), timeout=BOUND * 1000)
        yield launched
        await launched.close()


@asynccontextmanager
async def on_screen(browser: Browser, engine: Engine, **options: Any) -> AsyncIterator[Screen]:
    """The dashboard of an open engine, in an empty profile; the browser must not complain. Options are the context's."""
    async with HttpServer(
        engine, HttpOptions(port=0, open_access=not await engine.kernel.tokens.any_live()), more=(add_pages,)
    ) as server:
        context = await browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        context.set_default_timeout(BOUND * 1000)
        page = await context.new_page()
        shown = Screen(engine, server.url, page, server.state)
        page.on("console", lambda said: shown.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: shown.complaints.append(str(error)))
        try:
            yield shown
            assert shown.complaints == []
        finally:
            await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def screen(browser: Browser) -> AsyncIterator[Screen]:
    """A dashboard on a store in memory."""
    async with Engine("memory://") as engine, on_screen(browser, engine) as shown:
        yield shown
