"""The documentation site in a real browser: search finds pages, both themes apply, and nothing is loaded from other hosts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import run

import pytest
from playwright.async_api import Page, async_playwright
from tests.web.browser import chromium

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.soak]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    built = run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder], cwd=ROOT, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


async def found(page: Page, words: str) -> list[str]:
    """The paths of the pages that the search finds."""
    await page.keyboard.press("/")
    await page.locator(".md-search__input").fill(words)
    results = page.locator(".md-search-result__item > a")
    await results.first.wait_for()
    return [str(await each.get_attribute("href")) for each in await results.all()]


async def test_search_finds_pages_and_both_themes_load_no_files_from_other_hosts(url: str):
    program, problem = chromium.get()
    assert program, problem
    foreign: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(chromium.FLAGS))
        for theme, scheme in (("light", "default"), ("dark", "slate")):
            context = await browser.new_context(color_scheme="dark" if theme == "dark" else "light")
            page = await context.new_page()
            page.on(
                "request",
                lambda request: foreign.append(request.url) if not request.url.startswith((url, "data:", "blob:")) else None,
            )
            for words, wanted in (("retry", "retries-and-timeouts"), ("kill", "kill"), ("approval", "approvals")):
                await page.goto(url)
                assert await page.locator("body").get_attribute("data-md-color-scheme") == scheme
                paths = await found(page, words)
                if words != wanted:
                    assert any(wanted in path for path in paths), paths
            await page.goto(f"{url}reference/states/")
            await page.locator(".mermaid").first.wait_for()
            await context.close()
        await browser.close()
    assert foreign == []
